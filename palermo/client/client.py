"""The client: builds a message from a job and its arguments, and waits until the broker has confirmed it.

Threads can share a Client. It connects on first use, on its own thread (client/io_thread.py). A forked child gets its
own thread and session. The default client, which `resize.enqueue(...)` uses, is created on first use from the settings,
or by `palermo.connect(...)`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, Self, TypeVar, Unpack, cast

from palermo import tracing
from palermo.client import forking
from palermo.client.announced_jobs import AnnouncedJobs
from palermo.client.handle import Job
from palermo.client.io_thread import IoThread
from palermo.client.journal_watch import Question
from palermo.client.prepare import ManyJobs, Prepared, new_id, prepare, prepare_event
from palermo.client.recorded_jobs import RecordedArguments
from palermo.contract.broker import Broker, opener
from palermo.contract.trouble import Trouble
from palermo.contract.unique_jobs import UniqueJob
from palermo.core.journal_records import JournalLevel
from palermo.core.message import Message
from palermo.core.topology import check_id
from palermo.core.unique_keys import KeyRequest, lock_of
from palermo.core.unique_rules import RAISE
from palermo.errors import BrokerUnavailable, UrlInvalid
from palermo.jobs import registry
from palermo.jobs.definition import JobDefinition
from palermo.jobs.options import EnqueueOptions, ManyOptions, PublishOptions
from palermo.settings.settings import Settings
from palermo.settings.table import SettingArguments

T = TypeVar("T")

#: One call for enqueue_many: the job, and its positional and keyword arguments.
Call = tuple[JobDefinition | str, Sequence[Any], Mapping[str, Any]]

NOTHING: Mapping[str, Any] = {}


class Client:
    """Enqueues jobs and publishes events; an Inspector uses its session."""

    def __init__(self, settings: Settings | None = None, *, warns: bool = True, creates: bool = True) -> None:
        """Create the client without connecting. Settings default to the usual sources. Raises SettingInvalid.

        With `warns=False`, log no warnings about the settings, because another process with the same settings logs
        them. With `creates=False`, raise StoreInvalid instead of creating a missing SQLite file.
        """
        self.settings = settings or Settings.load()
        #: The argument serializers, shared by all clients in this process. More can be registered.
        self.serializers = self.settings.serializers()
        self._session = self.settings.session("client", warns=warns, creates=creates)
        self._thread: IoThread | None = None
        self._announced = AnnouncedJobs()

    def enqueue(
        self,
        job: JobDefinition | str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = NOTHING,
        **options: Unpack[EnqueueOptions],
    ) -> Job:
        """Store one job, and return once the broker has confirmed it.

        A job given by name whose code isn't imported here goes to `queue` or the default queue. Its arguments aren't
        checked and its hooks don't run. It is unique if a worker has announced it as unique. Raises OptionInvalid if
        its key can only be computed by its code and `unique_key` isn't given.

        Raises ArgumentsInvalid, SerializationError, QueueNameInvalid, IdInvalid, and within `publish_timeout`
        BrokerUnavailable, BrokerRefused or PublishRefused.
        """
        return self.enqueue_as("", job, args, kwargs, **options)

    def enqueue_as(
        self, id: str, job: JobDefinition | str, args: Sequence[Any], kwargs: Mapping[str, Any], /, **options: Any
    ) -> Job:
        """Like `enqueue`, with an id from `new_id` that has already been given to the user.

        Unlike the option `id`, it doesn't become the key of a unique job. "" means a new id.
        """
        io = self._io()
        with tracing.enqueuing(job) as span:
            prepared = prepare(self, job, args, kwargs, options, span, id)
            return prepared.job if prepared.message is None else _stored(io, prepared)

    def enqueue_message(self, message: Message) -> Job:
        """Store a job whose message is already built. See `enqueue`.

        If another job holds its unique key, nothing is stored and DuplicateJob is raised.
        """
        lock, request = lock_of(message), None
        if lock is not None:
            request = KeyRequest(key=lock.key, message=message, call=new_id(), on_duplicate=RAISE)
        job = Job(message.id, message.queue, message.job, True, None, message.created_at, message.keep_result, self)
        return _stored(self._io(), Prepared(job, message, key_request=request))

    async def enqueue_async(
        self,
        job: JobDefinition | str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = NOTHING,
        **options: Unpack[EnqueueOptions],
    ) -> Job:
        """Like `enqueue`, without blocking the event loop. Hooks run in the caller's loop."""
        io = self._io()
        with tracing.enqueuing(job) as span:
            if self._announced.stale and isinstance(job, str) and registry.find(job) is None:
                await asyncio.to_thread(self.unique_job, job)
            prepared = prepare(self, job, args, kwargs, options, span)
            if prepared.message is None:
                return prepared.job
            publish = await io.store_async(*prepared.parts)
            return prepared.handle(iter(publish.answers or ()))

    def enqueue_many(
        self,
        calls: Iterable[Call],
        **options: Unpack[ManyOptions],
    ) -> list[Job]:
        """Store many jobs in order with overlapping confirms, and return once all are stored.

        `calls` may have any length, and is read while jobs are sent. If preparing a call raises, the jobs before it are
        stored. If the broker refuses a job or becomes unavailable, jobs before and after it may be stored. A note on
        the error says how many are certainly stored.
        """
        io = self._io()
        with tracing.enqueuing(None) as span:
            return ManyJobs(io).store(prepare(self, *call, options, span) for call in calls)

    def publish(self, topic: str, payload: Any = None, **options: Unpack[PublishOptions]) -> str:
        """Publish an event to all groups that subscribe to its topic, and return its id once the broker has confirmed
        it.

        Raises TopicInvalid, SerializationError, NoSubscriber if nothing subscribes to the topic and
        `events_unsubscribed` refuses such events, and within `publish_timeout` BrokerUnavailable, BrokerRefused or
        PublishRefused.
        """
        io = self._io()
        with tracing.enqueuing(topic) as span:
            event = prepare_event(self, topic, payload, dict(options), span)
            io.store(event)
        return event.message.id

    async def publish_async(self, topic: str, payload: Any = None, **options: Unpack[PublishOptions]) -> str:
        """Like `publish`, without blocking the event loop."""
        io = self._io()
        with tracing.enqueuing(topic) as span:
            event = prepare_event(self, topic, payload, dict(options), span)
            await io.store_async(event)
        return event.message.id

    def run(
        self, function: Callable[[Broker], Coroutine[Any, Any, T]], *, again: bool = False, within: float | None = None
    ) -> T:
        """Run a coroutine function with the broker's session on the client's event loop, and return its result.

        With `again`, it runs a second time if the session turns out to be lost, so it must be idempotent. Raises
        BrokerUnavailable if no session can be opened within publish_timeout, or if the caller has waited for `within`
        seconds (default: no limit).
        """
        return self._io().run(function, again=again, within=within)

    def unique_job(self, name: str) -> UniqueJob | None:
        """Return the announcement of a unique job, which may be a few seconds old.

        None if no worker has announced the job as unique. Raises BrokerUnavailable.
        """
        if self._announced.stale:
            self._announced.refresh(self.run, self.settings.publish_timeout)
        return self._announced.find(name)

    def job_by_id(self, id: str) -> Job:
        """Return a handle for the job with this id, enqueued by any client. Sends no request. Raises IdInvalid."""
        return Job(check_id(id), "", "", _client=self)

    @staticmethod
    def unpickled_job(fields: dict[str, Any]) -> Job:
        """Return the handle that another process pickled. It uses this process's default client."""
        return Job(**fields, _client=cast("Client", _DefaultClient()))

    @property
    def trouble(self) -> Trouble | None:
        """The last known problem with the broker or the user's permissions. Sends no request."""
        thread = self._thread
        return None if thread is None else thread.trouble

    def watch(self, question: Question[T]) -> T:
        """Run a coroutine function with the client's journal subscription on its event loop, and return its result."""
        return self._io().result(self.begin_watch(question))

    def begin_watch(self, question: Question[T]) -> "Future[T]":
        """Like `watch`, but returns a future instead of waiting."""
        return self._io().watch(question)

    async def watch_async(self, question: Question[T]) -> T:
        """Like `watch`, without blocking the event loop."""
        return await asyncio.wrap_future(self.begin_watch(question))

    def write_record(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Queue a record for the journal. See palermo.core.journal_records.RecordKind for the fields of each kind."""
        with suppress(BrokerUnavailable):  # the client is being closed
            self._io().write_record(kind, fields)

    def close(self) -> None:
        """End the session within a bounded time. Later use opens a new session."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()
            forking.running.discard(thread)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<palermo client of {self.settings.address}>"

    def _io(self) -> IoThread:
        thread = self._thread
        # In a forked child, the parent's thread isn't alive.
        if thread is not None and thread.alive:
            return thread
        with forking.guard:
            if self._thread is None or not self._thread.alive:
                self._import()
                arguments = RecordedArguments(self.settings).fields
                self._thread = IoThread(self._session, JournalLevel(self.settings.journal), arguments)
                forking.running.add(self._thread)
            return self._thread

    def _import(self) -> None:
        """Import the modules for the first publish. Holds `forking.guard`, so that a fork waits for the imports."""
        import encodings.idna  # noqa: F401 - the first look-up of a host name imports it

        self.serializers.names()
        with suppress(ImportError, AttributeError, UrlInvalid):  # opening the session reports the error
            opener(self._session.address)


def _stored(io: IoThread, prepared: Prepared) -> Job:
    return prepared.handle(iter(io.store(*prepared.parts).answers or ()))


_default: Client | None = None


def default_client() -> Client:
    """Return the default client, created from the settings on first use. Raises SettingInvalid."""
    global _default
    client = _default
    if client is None:
        made = Client()
        with forking.guard:
            client = _default = _default or made
    return client


class _DefaultClient:
    """Reference to the default client, which is created when a handle first needs it."""

    unpickled_job = staticmethod(Client.unpickled_job)

    def __getattr__(self, name: str) -> Any:
        return getattr(default_client(), name)


def chosen_settings() -> Settings | None:
    """Return the default client's settings, or None before it exists."""
    client = _default
    return None if client is None else client.settings


#: The client of a running `lend`. `use` doesn't replace it.
_lent: Client | None = None


def use(client: Client) -> Client:
    """Make this the default client and close the previous one. A client set by `lend` stays the default."""
    global _default
    with forking.guard:
        if _lent is not None:
            return _lent
        before, _default = _default, client
    if before is not None and before is not client:
        before.close()
    return client


@contextmanager
def lend(client: Client) -> Iterator[Client]:
    """For tests: make this the default client within the context, even if the program calls `connect`, and close it
    afterwards.

    The previous default client stays open and is restored.
    """
    global _default, _lent
    with forking.guard:
        before, (_default, _lent) = (_default, _lent), (client, client)
    try:
        yield client
    finally:
        with forking.guard:
            _default, _lent = before
        client.close()


def connect(url: str | None = None, **settings: Unpack[SettingArguments]) -> Client:
    """Choose the broker and other settings for this process. Settings that aren't given come from the usual sources.

    Nothing is opened before the first enqueue. Replaces the default client and closes the previous one. Raises
    SettingInvalid, UrlInvalid.
    """
    return use(Client(Settings.load(url=url, **settings)))


def enqueue(
    job: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] = NOTHING,
    **options: Unpack[EnqueueOptions],
) -> Job:
    """Store one job by name, whether or not its code is imported here. See Client.enqueue."""
    return default_client().enqueue(job, args, kwargs, **options)


def publish(topic: str, payload: Any = None, **options: Unpack[PublishOptions]) -> str:
    """Publish an event to all groups that subscribe to its topic, and return its id. See Client.publish."""
    return default_client().publish(topic, payload, **options)


async def publish_async(topic: str, payload: Any = None, **options: Unpack[PublishOptions]) -> str:
    """Like `publish`, without blocking the event loop."""
    return await default_client().publish_async(topic, payload, **options)


def job_by_id(id: str) -> Job:
    """Return a handle for the job with this id, enqueued by any client. Raises IdInvalid."""
    return default_client().job_by_id(id)
