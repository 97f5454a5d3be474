"""The steps by which SQLite and Redis change their data: conditions and changes, applied together or not at all.

A feature reads, decides in Python, and requests changes on condition that the data it read is unchanged. If the
condition fails, it starts again.

A condition or a change is a tuple of a name and values. brokers/redis/scripts/change.lua and brokers/sqlite/steps.py
list and implement them.
"""

import abc
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from palermo.contract.broker import Tenant
from palermo.contract.scheduled import ScheduledFilter
from palermo.core.message import Message

T = TypeVar("T")

#: A condition or a change: its name and its values.
Step = tuple[Any, ...]

#: Receives stored states, None for a missing one; returns conditions and changes.
Decide = Callable[[Sequence[str | bytes | None]], tuple[Sequence[Step], Sequence[Step]]]

#: Number of states read in one batch when all are read.
_SCAN_SIZE = 500

#: A name or a state as the database returns it. Another program may have written invalid UTF-8.
Stored = str | bytes


def text_of(name: Stored) -> str:
    """A stored name as text. Bytes of another program that aren't UTF-8 are escaped."""
    return name if isinstance(name, str) else name.decode(errors="backslashreplace")


class Job(Struct, frozen=True):
    """A job in a step: its message, and its queue, or None for the message's own queue."""

    message: Message
    queue: str | None = None


def put(message: Message, queue: str | None = None) -> Step:
    """The change that puts a job into this queue, or schedules it if it is due later."""
    return ("put", Job(message, queue))


def puts(jobs: Iterable[Message]) -> list[Step]:
    """The changes that put these jobs into their queues."""
    return [put(job) for job in jobs]


def unchanged(table: str, name: Stored, state: Stored | None) -> Step:
    """The condition that the state under this name is still `state`; None for no state."""
    return ("field", table, name, False if state is None else state)


class Refused(Exception):
    """A condition failed, so nothing was changed."""


class Outcome(Struct, frozen=True):
    #: The number, from 1, of the first condition that failed; 0 if the changes were made.
    failed: int
    #: The results of the changes.
    answers: list[Any]


class Extent(Struct, frozen=True):
    """The jobs that wait in a queue at one moment."""

    #: The highest job number at that moment. Jobs that arrive later have higher ones.
    last: int
    total: int
    #: The places in which the queue has jobs: see sweep.py.
    places: tuple[str, ...]


class Part(Struct, frozen=True):
    """Some of the jobs in one place."""

    #: Whether the place has no more jobs.
    ends: bool
    #: Number of jobs read, including those that weren't asked for.
    seen: int
    #: Start of the next part.
    after: Any
    #: For each job its place in this part, its number and its message.
    jobs: list[tuple[int, Any, Message]]


class Entry(Struct, frozen=True):
    """One entry of a log."""

    #: Position in the log; later entries have higher ones.
    place: int
    body: bytes
    topic: str
    #: Unix seconds, set by the writer.
    at: float


class Found(Struct, frozen=True):
    """A job found by its id: waiting in a queue, scheduled, or held by a worker."""

    message: Message
    #: Its queue; None while it is scheduled.
    queue: str | None = None
    worker: str | None = None


class StepStore(abc.ABC):
    """The data of one exchange: jobs, and tables of states by name. It changes only in steps."""

    #: The channels for commands to workers, and for cancelled jobs.
    commands = "commands"
    cancels = "cancelled"

    @abc.abstractmethod
    async def states(self, table: str, names: Sequence[Stored]) -> list[Stored | None]:
        """The states under these names; None for a missing one."""

    @abc.abstractmethod
    async def fields(self, table: str) -> Mapping[Any, Any]:
        """All states of a table, in the order of their names."""

    @abc.abstractmethod
    async def some(self, table: str, cursor: Stored, most: int) -> tuple[Stored, Sequence[tuple[Any, Any]]]:
        """Return about `most` states from a cursor on, each with its name, and the next cursor.

        The cursor is empty at the start and after the last state. A state that changes during the scan may be returned
        twice or not at all.
        """

    async def scan(self, table: str) -> AsyncIterator[tuple[Any, Any]]:
        """All states of a large table, in batches."""
        cursor: Stored = ""
        while True:
            cursor, found = await self.some(table, cursor, _SCAN_SIZE)
            for one in found:
                yield one
            if not cursor:
                return

    @abc.abstractmethod
    async def permits(self, number: Any, permit: str) -> tuple[bool, int]:
        """Whether the job with this number has the permit, and the number of jobs that have it."""

    @abc.abstractmethod
    async def permit_counts(self, permits: Sequence[Stored]) -> Sequence[tuple[int, int, int]]:
        """Return three counts for each permit.

        They are the jobs running with the permit, the jobs queued with it, and the jobs waiting for it.
        """

    @abc.abstractmethod
    async def absent(self, ids: Collection[str]) -> set[str]:
        """The ids among these that belong to no waiting, held or scheduled job."""

    @abc.abstractmethod
    async def due(self, table: str, now: float, most: int) -> Sequence[str]:
        """The names of due states, longest overdue first."""

    @abc.abstractmethod
    async def flow_data(self, workflow: str, names: Sequence[str]) -> list[bytes | None]:
        """The data of a workflow under these names; None for a missing value."""

    @abc.abstractmethod
    async def entries(self, log: str, first: int, last: int | None, most: int) -> Sequence[Entry]:
        """At most `most` entries of a log, from the position `first` to `last`, both included; None for the end."""

    @abc.abstractmethod
    async def newest(self, log: str, count: int = 1) -> int | None:
        """The position of the oldest of the last `count` entries of a log; None for an empty log."""

    @abc.abstractmethod
    async def place_at(self, log: str, instant: float) -> int:
        """A position before which all entries are older than this instant, in Unix seconds."""

    @abc.abstractmethod
    async def size(self, log: str) -> int:
        """The number of entries in a log."""

    @property
    @abc.abstractmethod
    def ended(self) -> bool:
        """Whether the session is closed or lost."""

    @abc.abstractmethod
    async def listen(self, channel: str, callback: Callable[..., None]) -> None:
        """Call the function for each message of a channel, and whenever messages may have been missed."""

    @abc.abstractmethod
    async def unlisten(self, channel: str, callback: Callable[..., None]) -> None:
        """Stop calling the function."""

    @abc.abstractmethod
    async def publish(self, channel: str, text: str) -> None:
        """Send a message to the listeners of a channel."""

    @abc.abstractmethod
    async def put_due(self, now: float, most: int) -> Sequence[float | None]:
        """Move due scheduled jobs to their queues.

        Returns when the next job, key, recurring job and workflow is due, each None for never.
        """

    @abc.abstractmethod
    async def later_page(self, chosen: ScheduledFilter, offset: int, limit: int) -> tuple[list[Message], int]:
        """A page of the matching scheduled jobs, soonest first, and their total number."""

    @abc.abstractmethod
    def later(self, chosen: ScheduledFilter) -> AsyncIterator[tuple[Any, Message]]:
        """The matching scheduled jobs that exist at the start, each with its number."""

    @abc.abstractmethod
    async def keys_held_by(self, ids: Sequence[str]) -> list[tuple[str, str]]:
        """The jobs among these that hold keys, each with the key's name."""

    @abc.abstractmethod
    async def tenants(self, queue: str) -> list[Tenant]:
        """The tenants with jobs waiting in the queue."""

    @abc.abstractmethod
    async def tenant_jobs(self) -> Mapping[str, int]:
        """By queue, the number of waiting jobs that belong to tenants."""

    @abc.abstractmethod
    async def page(
        self, queue: str, offset: int, limit: int, max_body: int, *, newest: bool
    ) -> tuple[int, list[Message]]:
        """The number of jobs waiting in the queue, and a page of them. Raises NotFound."""

    @abc.abstractmethod
    async def delete_empty(self, queue: str) -> bool:
        """Delete the queue if no job waits in it; return whether it was empty. Raises NotFound."""

    @abc.abstractmethod
    async def find(self, ids: Collection[str], *, beginnings: bool) -> list[Found]:
        """The jobs with these ids, or, if `beginnings`, with these prefixes."""

    @abc.abstractmethod
    async def extent(self, queue: str) -> Extent:
        """The jobs that are in the queue now. Raises NotFound."""

    @abc.abstractmethod
    async def part(self, queue: str, place: str, after: Any, last: int, ids: Collection[str]) -> Part:
        """The next jobs of a place, up to the number `last`. With `ids`, only jobs with these ids."""

    @abc.abstractmethod
    async def purge_some(
        self, queue: str, places: Sequence[str], last: int, *, leave_keyed: bool
    ) -> tuple[int, bool, list[tuple[str, Any, Message]]]:
        """Remove some of the jobs waiting in these places, up to the number `last`.

        Returns the number of removed jobs and whether there may be more. With `leave_keyed`, leaves jobs with a unique
        key, and also returns the place, number and message of each.
        """

    @abc.abstractmethod
    async def try_change(self, conditions: Sequence[Step], changes: Sequence[Step]) -> Outcome:
        """Apply the changes if all conditions hold."""

    async def try_decide(
        self, table: str, names: Sequence[Stored], decide: Decide, conditions: Sequence[Step], changes: Sequence[Step]
    ) -> Outcome:
        """Apply `changes` and the changes from `decide`, if `conditions` and the conditions from `decide` hold.

        `decide` receives the states under these names. Its conditions must fail if another session changes these states
        in the meantime.
        """
        own, more = decide(await self.states(table, names) if names else [])
        if not changes and not more:
            return Outcome(0, [])
        return await self.try_change([*conditions, *own], [*changes, *more])

    async def change(self, conditions: Sequence[Step], changes: Sequence[Step]) -> list[Any]:
        """Apply the changes if all conditions hold; return their results. Raises Refused."""
        outcome = await self.try_change(conditions, changes)
        if outcome.failed:
            raise Refused(f"condition {outcome.failed}")
        return outcome.answers

    async def retried(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat `attempt`, which reads, decides and changes, while other sessions change the same data."""
        while True:
            try:
                return await attempt()
            except Refused:
                continue
