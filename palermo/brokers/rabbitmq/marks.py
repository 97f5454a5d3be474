"""Which queues are paused and which jobs are cancelled, kept in two streams: they outlive every restart.

A stream is made when the first mark is, so a broker on which nobody ever pauses or cancels has
none. All records are JSON objects:

    ~pauses    {"pause": queue, "by": who, "at": seconds}     {"resume": queue, …}
    ~cancels   {"cancel": [id, …], "at": seconds, "by": who}  {"forget": {id: at, …}}  {"restore": [id, …]}

The stream of pauses is as short as people are slow. That of cancels is bounded by its size and
not by age, since a job may be scheduled for years ahead.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import islice
from typing import Protocol, TypeVar

from palermo.brokers.rabbitmq.link import Link
from palermo.brokers.rabbitmq.presence import tell_workers
from palermo.brokers.rabbitmq.publisher import Publisher
from palermo.brokers.rabbitmq.stream import Record, Stream
from palermo.core.message import Message
from palermo.core.topology import internal
from palermo.core.values import dataclass
from palermo.errors import BrokerUnavailable

#: Marks that are remembered: about 20 MB of memory in each worker.
MOST = 100_000

_CANCELS = {"x-max-length-bytes": 16_000_000, "x-stream-max-segment-size-bytes": 2_000_000}

#: Ids in one record.
_BATCH = 100


class State(Protocol):
    """What the records of a stream come to."""

    def apply(self, record: Record) -> None:
        """Take one more into account."""


S = TypeVar("S", bound=State)


class Pauses:
    """The queues that are paused."""

    def __init__(self) -> None:
        self.queues: set[str] = set()

    def apply(self, record: Record) -> None:
        if "pause" in record:
            self.queues.add(str(record["pause"]))
        if "resume" in record:
            self.queues.discard(str(record["resume"]))


@dataclass(frozen=True, slots=True)
class Mark:
    """That a job is cancelled."""

    #: Whole Unix seconds: it is about what was enqueued then or before.
    at: int
    by: str

    def means(self, message: Message) -> bool:
        """Whether the message is what was cancelled, and not a later one with its id."""
        return message.created_at is None or int(message.created_at) <= self.at


class Cancels:
    """The jobs that are cancelled, by id."""

    def __init__(self) -> None:
        self.marks: dict[str, Mark] = {}

    def apply(self, record: Record) -> None:
        match record:
            case {"cancel": list(ids), "at": int(at)}:
                mark = Mark(at, str(record.get("by", "")))
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
        """The mark that is on this message."""
        mark = self.marks.get(message.id)
        return mark if mark is not None and mark.means(message) else None


class Marks:
    """The marks of one exchange, as one session reads and writes them."""

    def __init__(
        self, exchange: str, link: Link, publisher: Callable[[], Awaitable[Publisher]], *, patience: float
    ) -> None:
        """`patience` is how many seconds reading waits for a stream that is down, and storing one record may take."""
        self._link = link
        self._exchange = exchange
        self._patience = patience
        self.pauses = Stream(
            internal(exchange, "pauses"), publisher, patience=patience, holds="which queues are paused"
        )
        self.cancels = Stream(
            internal(exchange, "cancels"),
            publisher,
            patience=patience,
            holds="which jobs are cancelled",
            arguments=_CANCELS,
        )

    async def pause(self, queue: str, by: str) -> None:
        await self._write(self.pauses, {"pause": queue, "by": by, "at": int(time.time())})
        await tell_workers(self._link, self._exchange, {"ask": "look", "queue": queue, "paused": True})

    async def resume(self, queue: str, by: str) -> None:
        if queue in await self.paused():
            await self._write(self.pauses, {"resume": queue, "by": by, "at": int(time.time())})
            await tell_workers(self._link, self._exchange, {"ask": "look", "queue": queue, "paused": False})

    async def cancel(self, ids: Iterable[str], by: str) -> None:
        at = int(time.time())
        waiting = iter(ids)
        while batch := list(islice(waiting, _BATCH)):
            await self._write(self.cancels, {"cancel": batch, "at": at, "by": by})

    async def restore(self, ids: Iterable[str]) -> None:
        marked = iter(set(ids) & (await self.cancelled()).marks.keys())
        while batch := list(islice(marked, _BATCH)):
            await self._write(self.cancels, {"restore": batch})

    async def forget(self, done: Mapping[str, Mark]) -> None:
        """Their jobs are gone."""
        items = iter(done.items())
        while batch := dict(islice(items, _BATCH)):
            await self._write(self.cancels, {"forget": {id: mark.at for id, mark in batch.items()}})

    async def paused(self) -> set[str]:
        """The queues that are paused now. Raises BrokerUnavailable if the stream is down and stays so."""
        return (await self._read(self.pauses, Pauses())).queues

    async def cancelled(self) -> Cancels:
        """The jobs that are cancelled now. Raises the same."""
        return await self._read(self.cancels, Cancels())

    async def _read(self, stream: Stream, state: S) -> S:
        follower = await stream.follow(self._link, state.apply)
        if follower is not None:
            await follower.close()
        return state

    async def _write(self, stream: Stream, record: Record) -> None:
        try:
            async with asyncio.timeout(self._patience):
                if not stream.made:
                    await stream.make()
                    # A worker that looked for the stream before it was made does not follow it. Said before the
                    # first record is written: whoever dies in between has changed nothing.
                    await tell_workers(self._link, self._exchange, {"ask": "look"})
                await stream.write(record)
        except TimeoutError:
            raise BrokerUnavailable(
                f"RabbitMQ at {self._link.where} did not store within {self._patience:g} s {stream.holds}: it is too"
                " busy, or its memory or disk alarm blocks publishers."
            ) from None
