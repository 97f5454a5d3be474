"""The marks of cancelled jobs, in the stream `~cancels`, which survives every restart.

    {"cancel": [id, …], "at": seconds, "by": user}  {"forget": {id: at, …}}  {"restore": [id, …]}
    {"cancel": [id, …], "at": seconds, "by": user, "created-at": seconds}

The stream is bounded by size only, since a job may be scheduled years ahead.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import islice

from msgspec import Struct

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.followed_stream import FollowedStream
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.amqp.stream import Record
from palermo.contract import clock
from palermo.contract.stored_records import instant
from palermo.core.message import Message
from palermo.core.topology import internal

#: Maximum number of marks in memory: about 20 MB in each worker.
MOST = 100_000

_BOUNDS = {"x-max-length-bytes": 16_000_000, "x-stream-max-segment-size-bytes": 2_000_000}

#: Number of ids in one record.
_BATCH = 100


class Mark(Struct, frozen=True):
    """The mark of a cancelled job."""

    #: Unix seconds. The mark applies to a job that was enqueued in this second or before.
    at: int
    by: str
    #: The second in which the cancelled job was enqueued, by a clock that is ahead; the mark applies to it too.
    created_at: int | None = None

    def applies_to(self, message: Message) -> bool:
        """Whether the message is the cancelled job, rather than a later one with its id."""
        if message.created_at is None:
            return True
        created = int(message.created_at)
        return created <= self.at or created == self.created_at


class Cancels:
    """The cancelled jobs, by id."""

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
                    # A newer mark is for another job, or another run of it.
                    if (found := self.marks.get(id)) is not None and found.at == at:
                        del self.marks[id]
            case {"restore": list(ids)}:
                for id in ids:
                    self.marks.pop(str(id), None)

    def records(self) -> Iterator[Record]:
        """Records from which these marks can be rebuilt."""
        return (_cancel([id], mark.at, mark.by, mark.created_at) for id, mark in self.marks.items())

    def find(self, message: Message) -> Mark | None:
        """The mark that applies to this message; None if it is not cancelled."""
        mark = self.marks.get(message.id)
        return mark if mark is not None and mark.applies_to(message) else None


def _cancel(ids: list[str], at: int, by: str, created_at: int | None) -> Record:
    return {"cancel": ids, "at": at, "by": by} | ({} if created_at is None else {"created-at": created_at})


class CancelMarks(FollowedStream[Cancels]):
    """One session's access to the marks of one exchange."""

    def __init__(
        self, exchange: str, connection: Connection, publisher: Callable[[], Awaitable[Publisher]], *, patience: float
    ) -> None:
        """See FollowedStream."""
        super().__init__(
            internal(exchange, "cancels"),
            connection,
            publisher,
            Cancels,
            patience=patience,
            holds="the list of cancelled jobs",
            arguments=_BOUNDS,
        )

    async def cancel(self, ids: Iterable[str], by: str, created_at: int | None) -> None:
        """Mark these jobs as cancelled."""
        at, waiting = int(clock.now()), iter(ids)
        while batch := list(islice(waiting, _BATCH)):
            await self.write(_cancel(batch, at, by, created_at))

    async def restore(self, ids: Iterable[str], among: Cancels) -> None:
        """Remove the marks of these jobs. `among` has the marks that were read; only those can be removed."""
        marked = iter(set(ids) & among.marks.keys())
        while batch := list(islice(marked, _BATCH)):
            await self.write({"restore": batch})

    async def forget(self, done: Mapping[str, Mark]) -> None:
        """Remove these marks, whose jobs no longer exist."""
        items = iter(done.items())
        while batch := dict(islice(items, _BATCH)):
            await self.write({"forget": {id: mark.at for id, mark in batch.items()}})
