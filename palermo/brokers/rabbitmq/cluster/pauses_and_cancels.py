"""The paused queues and the cancelled jobs, kept in two streams: they outlive every restart.

A stream is made with its first mark, so a broker on which nobody ever pauses or cancels has
none. All records are JSON objects:

    ~pauses    {"pause": queue, "by": who, "at": seconds}     {"resume": queue, …}; "~all" stands for all queues
    ~cancels   {"cancel": [id, …], "at": seconds, "by": who}  {"forget": {id: at, …}}  {"restore": [id, …]}
               {"cancel": [id, …], "at": seconds, "by": who, "created-at": seconds}

The stream of pauses stays short, since people are slow. The stream of cancels is bounded by its size and
not by age, since a job may be scheduled for years ahead.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import islice
from typing import Protocol, TypeVar

from msgspec import Struct

from palermo.brokers.rabbitmq.amqp.alarms import why_late
from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.amqp.stream import Record, Stream
from palermo.brokers.rabbitmq.cluster.worker_control import tell_workers
from palermo.contract import clock
from palermo.contract.stored_records import instant
from palermo.core.message import Message
from palermo.core.queue_selection import EVERY_QUEUE, PausedQueues
from palermo.core.topology import internal, is_queue_name
from palermo.errors import BrokerUnavailable

#: The most cancels that are remembered: about 20 MB of memory in each worker.
MOST = 100_000

_CANCELS = {"x-max-length-bytes": 16_000_000, "x-stream-max-segment-size-bytes": 2_000_000}

#: Ids in one record.
_BATCH = 100


class State(Protocol):
    """The state that the records of a stream add up to."""

    def apply(self, record: Record) -> None:
        """Apply one more record."""


S = TypeVar("S", bound=State)


class Pauses:
    """The queues that are paused, by name; EVERY_QUEUE is one of the names."""

    def __init__(self) -> None:
        self.queues: set[str] = set()

    @property
    def paused(self) -> PausedQueues:
        return PausedQueues(frozenset(self.queues - {EVERY_QUEUE}), every=EVERY_QUEUE in self.queues)

    def apply(self, record: Record) -> None:
        match record:
            case {"pause": str(queue)}:
                if not _is_paused_name(queue):
                    raise ValueError(f"{queue!r} names no queue")
                self.queues.add(queue)
            case {"resume": str(queue)}:
                self.queues.discard(queue)
            case {"pause": _} | {"resume": _}:
                raise ValueError("the name of a queue is not text")


def _is_paused_name(name: str) -> bool:
    """Whether a pause may name this: a queue, every queue, or the mark of a migration (RabbitmqBroker.migrate)."""
    return name == EVERY_QUEUE or is_queue_name(name.removeprefix("~migrating."))


class Mark(Struct, frozen=True):
    """The mark of a cancelled job."""

    #: Whole Unix seconds: the mark means a job that was enqueued in this second or before.
    at: int
    by: str
    #: The mark means a job that was enqueued in this second too: that job was seen, and its clock is ahead.
    created_at: int | None = None

    def means(self, message: Message) -> bool:
        """Whether the message is the cancelled job, and not a later one with its id."""
        if message.created_at is None:
            return True
        created = int(message.created_at)
        return created <= self.at or created == self.created_at


class Cancels:
    """The jobs that are cancelled, by id."""

    def __init__(self) -> None:
        self.marks: dict[str, Mark] = {}

    def apply(self, record: Record) -> None:
        match record:
            case {"cancel": list(ids), "at": int(at)}:
                instant(at)
                created = record.get("created-at")
                mark = Mark(at, str(record.get("by", "")), created if isinstance(created, int) else None)
                for id in ids:
                    self.marks.pop(str(id), None)
                    self.marks[str(id)] = mark
                for id in list(islice(self.marks, max(0, len(self.marks) - MOST))):
                    del self.marks[id]
            case {"forget": dict(done)}:
                for id, at in done.items():
                    # A mark made since is about another job, or another turn of it.
                    if (found := self.marks.get(id)) is not None and found.at == at:
                        del self.marks[id]
            case {"restore": list(ids)}:
                for id in ids:
                    self.marks.pop(str(id), None)

    def find(self, message: Message) -> Mark | None:
        """The mark that means this message; None if it is not cancelled."""
        mark = self.marks.get(message.id)
        return mark if mark is not None and mark.means(message) else None


class PausesAndCancels:
    """The pauses and cancels of one exchange, as one session reads and writes them."""

    def __init__(
        self,
        exchange: str,
        connection: Connection,
        reading: Callable[[], Awaitable[Connection]],
        publisher: Callable[[], Awaitable[Publisher]],
        *,
        patience: float,
    ) -> None:
        """`connection` is the connection to write on; `reading` returns the connection to read on.

        `patience` is how many seconds reading waits for a stream that is down, and storing one record may take.
        """
        self._connection = connection
        self._reading = reading
        self._exchange = exchange
        self._patience = patience
        self.pauses = Stream(
            internal(exchange, "pauses"),
            publisher,
            patience=patience,
            holds="which queues are paused",
            copied=True,
        )
        self.cancels = Stream(
            internal(exchange, "cancels"),
            publisher,
            patience=patience,
            holds="which jobs are cancelled",
            arguments=_CANCELS,
            copied=True,
        )

    async def pause(self, queue: str, by: str) -> None:
        await self._write(self.pauses, {"pause": queue, "by": by, "at": int(clock.now())})
        await tell_workers(self._connection, self._exchange, {"ask": "look", "queue": queue, "paused": True})

    async def resume(self, queue: str, by: str) -> None:
        if queue in (await self._read(self.pauses, Pauses())).queues:
            await self._write(self.pauses, {"resume": queue, "by": by, "at": int(clock.now())})
            await tell_workers(self._connection, self._exchange, {"ask": "look", "queue": queue, "paused": False})

    async def cancel(self, ids: Iterable[str], by: str, created_at: int | None) -> None:
        record = {"at": int(clock.now()), "by": by} | ({} if created_at is None else {"created-at": created_at})
        waiting = iter(ids)
        while batch := list(islice(waiting, _BATCH)):
            await self._write(self.cancels, {"cancel": batch, **record})

    async def restore(self, ids: Iterable[str], among: Cancels | None = None) -> None:
        """Remove the marks of these jobs. `among` are marks that were read before; without them all are read now."""
        marked = iter(set(ids) & (among or await self.cancelled()).marks.keys())
        while batch := list(islice(marked, _BATCH)):
            await self._write(self.cancels, {"restore": batch})

    async def forget(self, done: Mapping[str, Mark]) -> None:
        """Remove these marks, whose jobs are gone."""
        items = iter(done.items())
        while batch := dict(islice(items, _BATCH)):
            await self._write(self.cancels, {"forget": {id: mark.at for id, mark in batch.items()}})

    async def paused(self) -> PausedQueues:
        """The queues that are paused now. Raises BrokerUnavailable if the stream is down and stays so."""
        return (await self._read(self.pauses, Pauses())).paused

    async def cancelled(self) -> Cancels:
        """The jobs that are cancelled now. Raises the same error."""
        return await self._read(self.cancels, Cancels())

    async def _read(self, stream: Stream, state: S) -> S:
        follower = await stream.follow(await self._reading(), state.apply)
        if follower is not None:
            await follower.close()
        return state

    async def _write(self, stream: Stream, record: Record) -> None:
        try:
            async with asyncio.timeout(self._patience):
                if not stream.made:
                    await stream.make()
                    # A worker that looked for the stream before it was made does not follow it. It is told before the
                    # first record is written: a process that dies in between has changed nothing.
                    await tell_workers(self._connection, self._exchange, {"ask": "look"})
                await stream.write_patiently(record)
        except TimeoutError:
            raise BrokerUnavailable(
                f"RabbitMQ at {self._connection.where} did not store within {self._patience:g} s {stream.holds}:"
                f" {why_late(self._connection)}"
            ) from None
