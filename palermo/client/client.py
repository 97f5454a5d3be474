"""The client: builds a message from a job and its arguments, and returns once the broker has confirmed it.

Any number of threads can share a Client. It connects on first use, on its own thread (client/io_thread.py). A forked
child process gets its own thread and session. The default client, which `resize.enqueue(...)` uses, is created on
first use from the settings, or by `palermo.connect(...)`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, Self, TypeVar, Unpack, cast

from palermo import tracing
from palermo.client import forking
from palermo.client.announced_jobs import Announced, AnnouncedJobs
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

#: One job for enqueue_many: the job, its positional and its keyword arguments.
Call = tuple[JobDefinition | str, Sequence[Any], Mapping[str, Any]]

NOTHING: Mapping[str, Any] = {}


class Client:
    """Enqueues jobs and publishes events; an Inspector uses its session."""

    def __init__(self, settings: Settings | None = None, *, warns: bool = True, creates: bool = True) -> None:
        """Open nothing yet. Without `settings`, load them as usual. Raises SettingInvalid.

        With `warns=False`, log no warnings about the settings, because another process with the same settings logs
        them. With `creates=False`, don't create a missing SQLite file; raise StoreInvalid instead.
        """
        self.settings = settings or Settings.load()
        #: The argument serializers, shared by all clients of this process. Callers may register more.
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
        """Store one job; returns once the broker has confirmed it.

        A job given by name whose code is not imported here goes to `queue` or the default queue. Its arguments are
        not checked and its hooks do not run. It is unique if a worker has announced it as unique. If only its code
        can compute its key and no `unique_key` is given, OptionInvalid is raised.

        Raises ArgumentsInvalid, SerializationError, QueueNameInvalid, IdInvalid, and within the setting
        publish_timeout BrokerUnavailable, BrokerRefused or PublishRefused.
        """
        return self.enqueue_as("", job, args, kwargs, **options)

    def enqueue_as(
        self, id: str, job: JobDefinition | str, args: Sequence[Any], kwargs: Mapping[str, Any], /, **options: Any
    ) -> Job:
        """`enqueue` with an id from `new_id`, for a caller that has already returned that id.

        Unlike the option `id`, it doesn't become the key of a unique job. "" means a new id.
        """
        io = self._io()
        with tracing.enqueuing(job) as span:
            prepared = prepare(self, job, args, kwargs, options, span, id)
            return prepared.job if prepared.message is None else _stored(io, prepared)

    def enqueue_message(self, message: Message) -> Job:
        """Store a job from a finished message, for a caller that does not encode its arguments. See `enqueue`.

        If another job has its unique key, nothing is stored and DuplicateJob is raised.
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
        """`enqueue` for asyncio programs: does not block the event loop. Hooks run in the caller's loop."""
        io = self._io()
        with tracing.enqueuing(job) as span:
            if self._announced.stale and isinstance(job, str) and registry.find(job) is None:
                await asyncio.wait([asyncio.wrap_future(asked := self._ask_announced())])
                self._announced.learn(lambda: io.result(asked))
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
        """Store many jobs in order, with overlapping confirms; returns once all are stored.

        `calls` is read while the jobs are sent, and may have any length. If a call raises, the jobs before it are
        stored. If the broker refuses a job or is unavailable, jobs before and after it may be stored. A note on the
        error says how many are certainly stored.
        """
        io = self._io()
        with tracing.enqueuing(None) as span:
            return ManyJobs(io).store(prepare(self, *call, options, span) for call in calls)

    def publish(self, topic: str, payload: Any = None, **options: Unpack[PublishOptions]) -> str:
        """Publish an event to all groups that subscribe to its topic; returns its id once the broker has confirmed it.

        Raises TopicInvalid, SerializationError, NoSubscriber if the topic has no subscriber and the setting
        events_unsubscribed refuses such events, and within the setting publish_timeout BrokerUnavailable,
        BrokerRefused or PublishRefused.
        """
        io = self._io()
        with tracing.enqueuing(topic) as span:
            event = prepare_event(self, topic, payload, dict(options), span)
            io.store(event)
        return event.message.id

    async def publish_async(self, topic: str, payload: Any = None, **options: Unpack[PublishOptions]) -> str:
        """`publish` for asyncio programs: does not block the event loop."""
        io = self._io()
        with tracing.enqueuing(topic) as span:
            event = prepare_event(self, topic, payload, dict(options), span)
            await io.store_async(event)
        return event.message.id

    def run(
        self, function: Callable[[Broker], Coroutine[Any, Any, T]], *, again: bool = False, within: float | None = None
    ) -> T:
        """Run a coroutine function with the broker's session, on the client's own event loop; returns its result.

        With `again`, it runs a second time if the session turns out to be lost; use it only for idempotent work.
        Raises BrokerUnavailable if no session can be opened within publish_timeout. The function may run for any
        time, unless `within` limits how many seconds the caller waits; BrokerUnavailable is raised after that.
        """
        return self._io().run(function, again=again, within=within)

    def unique_job(self, name: str) -> UniqueJob | None:
        """The announcement of a unique job; it may be a few seconds old.

        None if the job is not unique, or if no worker has announced it. Raises BrokerUnavailable.
        """
        if self._announced.stale:
            asked = self._ask_announced()
            self._announced.learn(lambda: self._io().result(asked))
        return self._announced.find(name)

    def job_by_id(self, id: str) -> Job:
        """A handle of the job with this id, enqueued by any client. Sends no request. Raises IdInvalid."""
        return Job(check_id(id), "", "", _client=self)

    @staticmethod
    def unpickled_job(fields: dict[str, Any]) -> Job:
        """A handle that another process pickled; it uses the default client of this process."""
        return Job(**fields, _client=cast("Client", _DefaultClient()))

    @property
    def trouble(self) -> Trouble | None:
        """The last known problem with the broker or this user's permissions. Sends no request."""
        thread = self._thread
        return None if thread is None else thread.trouble

    def watch(self, question: Question[T]) -> T:
        """Run a coroutine function with the client's journal subscription, on its event loop; returns its result."""
        return self._io().result(self.begin_watch(question))

    def begin_watch(self, question: Question[T]) -> "Future[T]":
        """`watch` without waiting; returns a future to wait for."""
        return self._io().watch(question)

    async def watch_async(self, question: Question[T]) -> T:
        """`watch` for asyncio programs: does not block their event loop."""
        return await asyncio.wrap_future(self.begin_watch(question))

    def write_record(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Queue a record for the journal. palermo.core.journal_records.RecordKind lists the fields of each kind."""
        with suppress(BrokerUnavailable):  # the client is being closed
            self._io().write_record(kind, fields)

    def close(self) -> None:
        """End the session within a bounded time. The client can be used again, and then opens a new session."""
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

    def _ask_announced(self) -> "Future[Announced]":
        # A connection that died unnoticed is given up after half of the timeout. A connection that cannot be opened is
        # retried until the timeout, as for a publish.
        timeout = self.settings.publish_timeout
        return self._io().begin_patiently(self._announced.question(timeout / 2), within=timeout)

    def _io(self) -> IoThread:
        thread = self._thread
        # The parent's thread does not exist in a forked child, so it is not alive there.
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
        """Import what the first publish needs, under `forking.guard`: a fork waits for these imports."""
        import encodings.idna  # noqa: F401 - the first look-up of a host name imports it

        self.serializers.names()
        with suppress(ImportError, AttributeError, UrlInvalid):  # opening the session reports them
            opener(self._session.address)


def _stored(io: IoThread, prepared: Prepared) -> Job:
    return prepared.handle(iter(io.store(*prepared.parts).answers or ()))


_default: Client | None = None


def default_client() -> Client:
    """The default client, created from the settings on first use. Raises SettingInvalid."""
    global _default
    client = _default
    if client is None:
        made = Client()
        with forking.guard:
            client = _default = _default or made
    return client


class _DefaultClient:
    """Lazy reference to the default client, so that it need not exist before a handle is used."""

    unpickled_job = staticmethod(Client.unpickled_job)

    def __getattr__(self, name: str) -> Any:
        return getattr(default_client(), name)


def chosen_settings() -> Settings | None:
    """The settings of the default client, or None if it doesn't exist yet."""
    client = _default
    return None if client is None else client.settings


#: The client that a test has lent to this process. `use` does not replace it.
_lent: Client | None = None


def use(client: Client) -> Client:
    """Make this the default client, and close the previous one. A lent client stays the default."""
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
    """Make this the default client while the context lasts, even if the program calls `connect`; then close it.

    The previous default client stays open, and becomes the default again afterwards.
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
    """Choose the broker and other settings for this process; settings that aren't given are loaded as usual.

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
    """Store one job by its name, whether or not its code is imported here. See Client.enqueue."""
    return default_client().enqueue(job, args, kwargs, **options)


def publish(topic: str, payload: Any = None, **options: Unpack[PublishOptions]) -> str:
    """Publish an event to all groups that subscribe to its topic; returns its id. See Client.publish."""
    return default_client().publish(topic, payload, **options)


async def publish_async(topic: str, payload: Any = None, **options: Unpack[PublishOptions]) -> str:
    """`publish` for asyncio programs: does not block the event loop."""
    return await default_client().publish_async(topic, payload, **options)


def job_by_id(id: str) -> Job:
    """A handle of the job with this id, enqueued by any client. Raises IdInvalid."""
    return default_client().job_by_id(id)
