"""Enqueuing: from a job and its arguments to a message that the broker has confirmed.

A Client may be used by any number of threads. It connects when first used, on a thread of
its own (io_thread.py); a forked child gets a thread and a session of its own. The default
client, which `resize.enqueue(...)` uses, is made from the settings at first use, or by
`palermo.connect(...)`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self, TypeVar, Unpack

from palermo import forking, tracing
from palermo.broker import Broker, opener
from palermo.config import Settings
from palermo.core.journal import Level
from palermo.core.keys import Claim
from palermo.core.topology import check_id
from palermo.errand import Errand
from palermo.errors import BrokerUnavailable, UrlInvalid
from palermo.ids import many_ids
from palermo.io_thread import IoThread
from palermo.jobs import Job
from palermo.options import EnqueueOptions, ManyOptions, PublishOptions
from palermo.prepared import BATCHES, Prepared, batches, landed, prepare
from palermo.publishing import event
from palermo.registry import JobDefinition
from palermo.waiting import Watch

T = TypeVar("T")

#: One job for enqueue_many: which, its positional and its named arguments.
Call = tuple[JobDefinition | str, Sequence[Any], Mapping[str, Any]]

NOTHING: Mapping[str, Any] = {}


class Client:
    """Enqueues jobs, and lends its session to an Inspector."""

    def __init__(self, settings: Settings | None = None) -> None:
        """Nothing is opened yet. Without settings they are loaded as always. Raises SettingInvalid."""
        self.settings = settings or Settings.load()
        #: What arguments are serialized with; serializers may be added and taken away.
        self.serializers = self.settings.serializers()
        self._session = self.settings.session("client")
        self._thread: IoThread | None = None

    def enqueue(
        self,
        job: JobDefinition | str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = NOTHING,
        **options: Unpack[EnqueueOptions],
    ) -> Job:
        """Store one job; returns once the broker has confirmed it.

        A job given by name whose code is not imported here goes to `queue` or the default
        queue; its arguments cannot be checked and its hooks do not run.

        Raises ArgumentsInvalid, SerializationError, QueueNameInvalid, IdInvalid, and within
        the setting publish_timeout BrokerUnavailable, BrokerRefused or PublishRefused.
        """
        io = self._io()
        with tracing.enqueuing(job) as span:
            prepared = prepare(self, job, args, kwargs, options)
            if prepared.claim is not None:
                return prepared.answered(io.claim(_traced(span, prepared.claim)))
            if prepared.message is not None:
                io.publish(span.traced(prepared.message))
                prepared.enqueued()
        return prepared.job

    async def enqueue_async(
        self,
        job: JobDefinition | str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = NOTHING,
        **options: Unpack[EnqueueOptions],
    ) -> Job:
        """`enqueue` for asyncio programs: the event loop goes on while it waits. Hooks run in the caller's loop."""
        io = self._io()
        with tracing.enqueuing(job) as span:
            prepared = prepare(self, job, args, kwargs, options)
            if prepared.claim is not None:
                return prepared.answered(await io.claim_async(_traced(span, prepared.claim)))
            if prepared.message is not None:
                await io.publish_async(span.traced(prepared.message))
                prepared.enqueued()
        return prepared.job

    def enqueue_many(
        self,
        calls: Iterable[Call],
        **options: Unpack[ManyOptions],
    ) -> list[Job]:
        """Store many jobs in their order, with their confirms overlapping; returns once all are stored.

        `calls` is read as the jobs go out and may be endless in all but time. What raises
        leaves those before it stored, or the last of them perhaps; a note on the error
        tells how many are certain.
        """
        io = self._io()
        made: list[Job] = []
        waiting: deque[tuple[Errand, list[Prepared]]] = deque()
        stored = 0
        fresh = many_ids().__next__
        prepared = (prepare(self, *call, options, fresh) for call in calls)
        with tracing.enqueuing(None) as span:
            try:
                for batch in batches(prepared, made):
                    plain = [each.message for each in batch if each.message is not None and each.claim is None]
                    messages = [span.traced(message) for message in plain]
                    claims = [_traced(span, each.claim) for each in batch if each.claim is not None]
                    before = waiting[-1][0] if waiting else None
                    waiting.append((io.send(messages, after=before, claims=claims), batch))
                    if len(waiting) == BATCHES:
                        stored += landed(io, waiting, made)
                while waiting:
                    stored += landed(io, waiting, made)
            except BaseException as error:
                for errand, _ in waiting:
                    io.abandon(errand)
                error.add_note(f"{stored:,} jobs of this enqueue_many are stored for certain.")
                raise
        return made

    def publish(self, topic: str, payload: Any = None, **options: Unpack[PublishOptions]) -> str:
        """Tell an event to all groups that subscribe to its topic; its id. Returns once the broker has confirmed it.

        Raises TopicInvalid, SerializationError, NoSubscriber where nobody subscribes and settings say that such an
        event is refused, and within the setting publish_timeout BrokerUnavailable, BrokerRefused or PublishRefused.
        """
        io = self._io()
        with tracing.enqueuing(topic) as span:
            made = event(self, topic, payload, dict(options))
            io.publish(replace(made, message=span.traced(made.message)))
        return made.message.id

    async def publish_async(self, topic: str, payload: Any = None, **options: Unpack[PublishOptions]) -> str:
        """`publish` for asyncio programs: the event loop goes on while it waits."""
        io = self._io()
        with tracing.enqueuing(topic) as span:
            made = event(self, topic, payload, dict(options))
            await io.publish_async(replace(made, message=span.traced(made.message)))
        return made.message.id

    def run(self, function: Callable[[Broker], Coroutine[Any, Any, T]], *, again: bool = False) -> T:
        """What a coroutine function makes of the broker's session, on the client's own event loop.

        With `again` it is run a second time if the session, opened earlier, proves to be lost:
        only for what may be done twice. Raises BrokerUnavailable within publish_timeout if no
        session can be opened; the function itself may take as long as it likes.
        """
        return self._io().run(function, again=again)

    def job_by_id(self, id: str) -> Job:
        """A handle of the job with this id, whoever enqueued it; nobody is asked. Raises IdInvalid."""
        return Job(check_id(id), "", "", _client=self)

    def watch(self, function: Callable[[Watch], Coroutine[Any, Any, T]]) -> T:
        """What a coroutine function makes of the client's subscription to the journal, on its own event loop."""
        io = self._io()
        return io.result(io.watch(function))

    async def watch_async(self, function: Callable[[Watch], Coroutine[Any, Any, T]]) -> T:
        """The same for asyncio programs, whose event loop goes on meanwhile."""
        return await asyncio.wrap_future(self._io().watch(function))

    def write_down(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Write a record into the journal, soon: palermo.core.journal.Kind says what it holds."""
        with suppress(BrokerUnavailable):  # it is being closed
            self._io().write_down(kind, fields)

    def close(self) -> None:
        """End the session, in bounded time. The client may be used again, and then opens another."""
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
        # In a forked child the parent's thread does not exist, and so is not alive.
        if thread is not None and thread.alive:
            return thread
        with forking.guard:
            if self._thread is None or not self._thread.alive:
                self._import()
                self._thread = IoThread(self._session, Level(self.settings.journal))
                forking.running.add(self._thread)
            return self._thread

    def _import(self) -> None:
        """Import now, where a fork waits for it, what the first publish would."""
        import encodings.idna  # noqa: F401 - the first look-up of a host name does

        self.serializers.names()
        with suppress(ImportError, AttributeError, UrlInvalid):  # opening the session says it
            opener(self._session.address)


def _traced(span: tracing.Enqueuing, claim: Claim) -> Claim:
    return replace(claim, message=span.traced(claim.message))


_default: Client | None = None


def default_client() -> Client:
    """The client that jobs are enqueued with; made from the settings at first use. Raises SettingInvalid."""
    global _default
    client = _default
    if client is None:
        made = Client()
        with forking.guard:
            client = _default = _default or made
    return client


def use(client: Client) -> Client:
    """Make this the default client, and close the one before."""
    global _default
    with forking.guard:
        before, _default = _default, client
    if before is not None and before is not client:
        before.close()
    return client


def connect(url: str | None = None, **settings: Any) -> Client:
    """Choose the broker for this process, and any other settings: what is not given is loaded as always.

    Nothing is opened yet: the first enqueue does that. Replaces the default client and
    closes the one before. Raises SettingInvalid, UrlInvalid.
    """
    return use(Client(Settings.load(url=url, **settings)))


def enqueue(
    job: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] = NOTHING,
    **options: Unpack[EnqueueOptions],
) -> Job:
    """Store one job by its wire name, whether its code is imported here or not. See Client.enqueue."""
    return default_client().enqueue(job, args, kwargs, **options)


def publish(topic: str, payload: Any = None, **options: Unpack[PublishOptions]) -> str:
    """Tell an event to all groups that subscribe to its topic; its id. See Client.publish."""
    return default_client().publish(topic, payload, **options)


async def publish_async(topic: str, payload: Any = None, **options: Unpack[PublishOptions]) -> str:
    """`publish` for asyncio programs: the event loop goes on while it waits."""
    return await default_client().publish_async(topic, payload, **options)


def job_by_id(id: str) -> Job:
    """A handle of the job with this id, for `status` and `result`, whoever enqueued it. Raises IdInvalid."""
    return default_client().job_by_id(id)
