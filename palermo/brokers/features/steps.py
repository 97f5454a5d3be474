"""The steps by which SQLite and Redis change their data: conditions and changes, made together or not at all.

A feature reads what it needs, decides in Python, and asks for its changes under the condition that what it read is
still so. If it is not, the feature reads and decides again.

A condition or a change is a tuple: its name and its values. brokers/redis/scripts/change.lua and
brokers/sqlite/steps.py carry them out, and name them all.
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

#: Gets states as they are stored, None for no state; returns conditions and changes.
Decide = Callable[[Sequence[str | bytes | None]], tuple[Sequence[Step], Sequence[Step]]]

#: How many states are read at once where all of them are looked at.
_SCAN_SIZE = 500

#: A name or a state as the database returns it. Another program may have written bytes that are not UTF-8.
Stored = str | bytes


def text_of(name: Stored) -> str:
    """A stored name as text; of one that is not UTF-8, as another program may write it, all bytes are shown."""
    return name if isinstance(name, str) else name.decode(errors="backslashreplace")


class Job(Struct, frozen=True):
    """A job in a step: its message, and the queue that it goes to; None for the message's own."""

    message: Message
    queue: str | None = None


def put(message: Message, queue: str | None = None) -> Step:
    """The change that puts a job into this queue, or into its own; or among the scheduled jobs if it is due later."""
    return ("put", Job(message, queue))


def puts(jobs: Iterable[Message]) -> list[Step]:
    """The changes that put these jobs into their queues."""
    return [put(job) for job in jobs]


def unchanged(table: str, name: Stored, state: Stored | None) -> Step:
    """The condition that a table still has this state under this name; None for no state."""
    return ("field", table, name, False if state is None else state)


class Refused(Exception):
    """A condition did not hold, so nothing was changed."""


class Outcome(Struct, frozen=True):
    """The result of a step."""

    #: The number of the first condition that did not hold, from 1; 0 if the changes were made.
    failed: int
    #: The answer of each change.
    answers: list[Any]


class Extent(Struct, frozen=True):
    """The number of jobs that wait in a queue at one moment, and their places."""

    #: The newest number there is; later jobs have higher ones.
    last: int
    total: int
    #: The places where jobs of the queue wait.
    places: tuple[str, ...]


class Part(Struct, frozen=True):
    """Some jobs of one place."""

    #: Whether the place has no more jobs.
    ends: bool
    #: How many jobs were read, with those that nobody asks about.
    seen: int
    #: Where the next part begins.
    after: Any
    #: Of each job its place in this part, its number and its message.
    jobs: list[tuple[int, Any, Message]]


class Entry(Struct, frozen=True):
    """One entry of a log."""

    #: Later entries have higher places.
    place: int
    body: bytes
    topic: str
    #: Unix seconds, as its writer gave them.
    at: float


class Found(Struct, frozen=True):
    """A job that was found by its id: it waits in a queue or until it is due, or a worker has it."""

    message: Message
    #: The queue that it is in; None until it is due.
    queue: str | None = None
    worker: str | None = None


class StepStore(abc.ABC):
    """The data of one exchange, in tables of states by name; and its jobs, which only steps change."""

    #: The channels of commands to workers, and of cancelled jobs.
    commands = "commands"
    cancels = "cancelled"

    @abc.abstractmethod
    async def states(self, table: str, names: Sequence[Stored]) -> list[Stored | None]:
        """The states under these names; None for no state."""

    @abc.abstractmethod
    async def fields(self, table: str) -> Mapping[Any, Any]:
        """All states of a table by name, in the order of the names."""

    @abc.abstractmethod
    async def some(self, table: str, cursor: Stored, most: int) -> tuple[Stored, Sequence[tuple[Any, Any]]]:
        """About `most` states from a cursor on, each with its name, and the next cursor.

        An empty cursor is the first, and the one after the last state. A state that changes meanwhile may come twice
        or not at all.
        """

    async def scan(self, table: str) -> AsyncIterator[tuple[Any, Any]]:
        """All states of a large table, as `some` reads them."""
        cursor: Stored = ""
        while True:
            cursor, found = await self.some(table, cursor, _SCAN_SIZE)
            for one in found:
                yield one
            if not cursor:
                return

    @abc.abstractmethod
    async def permits(self, number: Any, permit: str) -> tuple[bool, int]:
        """Whether the job with this number has the permit, and how many jobs have it."""

    @abc.abstractmethod
    async def permit_counts(self, permits: Sequence[Stored]) -> Sequence[tuple[int, int, int]]:
        """Of each permit how many jobs run with it, are called to their queues with it, and wait for it."""

    @abc.abstractmethod
    async def absent(self, ids: Collection[str]) -> set[str]:
        """The ids among these of which no job waits, is held or is scheduled."""

    @abc.abstractmethod
    async def due(self, table: str, now: float, most: int) -> Sequence[str]:
        """The names that are due now, the longest overdue first."""

    @abc.abstractmethod
    async def flow_data(self, workflow: str, names: Sequence[str]) -> list[bytes | None]:
        """What is stored of a workflow under these names; None for nothing."""

    @abc.abstractmethod
    async def entries(self, log: str, first: int, last: int | None, most: int) -> Sequence[Entry]:
        """The first entries of a log from one place to another, both included; None for the end."""

    @abc.abstractmethod
    async def newest(self, log: str, count: int = 1) -> int | None:
        """The place of the first of the last `count` entries of a log; None for an empty log."""

    @abc.abstractmethod
    async def place_at(self, log: str, instant: float) -> int:
        """A place behind the entries that were appended before this instant, in Unix seconds."""

    @abc.abstractmethod
    async def size(self, log: str) -> int:
        """The number of entries of a log."""

    @property
    @abc.abstractmethod
    def ended(self) -> bool:
        """Whether the session was closed, or is lost."""

    @abc.abstractmethod
    async def listen(self, channel: str, callback: Callable[..., None]) -> None:
        """Call the function for each message of a channel, and whenever there may be news."""

    @abc.abstractmethod
    async def unlisten(self, channel: str, callback: Callable[..., None]) -> None:
        """Stop calling the function."""

    @abc.abstractmethod
    async def publish(self, channel: str, text: str) -> None:
        """Send a message to those that listen to a channel."""

    @abc.abstractmethod
    async def put_due(self, now: float, most: int) -> Sequence[float | None]:
        """Put scheduled jobs that are due into their queues.

        Returns when the next of these is due, None for never: jobs, keys, recurring jobs and workflows.
        """

    @abc.abstractmethod
    async def later_page(self, chosen: ScheduledFilter, offset: int, limit: int) -> tuple[list[Message], int]:
        """Scheduled jobs that are chosen, soonest first; and how many there are."""

    @abc.abstractmethod
    def later(self, chosen: ScheduledFilter) -> AsyncIterator[tuple[Any, Message]]:
        """The chosen scheduled jobs that exist when this begins, each with its number."""

    @abc.abstractmethod
    async def keys_held_by(self, ids: Sequence[str]) -> list[tuple[str, str]]:
        """The jobs among these that hold keys, each with the key's name."""

    @abc.abstractmethod
    async def tenants(self, queue: str) -> list[Tenant]:
        """The tenants that have jobs waiting in the queue."""

    @abc.abstractmethod
    async def tenant_jobs(self) -> Mapping[str, int]:
        """By queue, how many waiting jobs belong to tenants."""

    @abc.abstractmethod
    async def page(
        self, queue: str, offset: int, limit: int, max_body: int, *, newest: bool
    ) -> tuple[int, list[Message]]:
        """The number of jobs that wait in the queue, and some of them. Raises NotFound."""

    @abc.abstractmethod
    async def delete_empty(self, queue: str) -> bool:
        """Delete the queue if no job waits in it; returns whether none did. Raises NotFound."""

    @abc.abstractmethod
    async def find(self, ids: Collection[str], *, beginnings: bool) -> list[Found]:
        """The jobs with these ids, or whose ids begin with one of these texts."""

    @abc.abstractmethod
    async def extent(self, queue: str) -> Extent:
        """The extent of the queue now. Raises NotFound."""

    @abc.abstractmethod
    async def part(self, queue: str, place: str, after: Any, last: int, ids: Collection[str]) -> Part:
        """The next jobs of a place up to the number `last`; with `ids` only those with these ids."""

    @abc.abstractmethod
    async def purge_some(
        self, queue: str, places: Sequence[str], last: int, *, leave_keyed: bool
    ) -> tuple[int, bool, list[tuple[str, Any, Message]]]:
        """Remove some of the jobs that wait in these places, up to the number `last`.

        Returns how many were removed, whether there may be more, and of jobs with a key, if these are left, place,
        number and message.
        """

    @abc.abstractmethod
    async def try_change(self, conditions: Sequence[Step], changes: Sequence[Step]) -> Outcome:
        """Make these changes if all conditions hold."""

    async def try_decide(
        self, table: str, names: Sequence[Stored], decide: Decide, conditions: Sequence[Step], changes: Sequence[Step]
    ) -> Outcome:
        """Make these changes and those that `decide` names, if these conditions and its own hold.

        `decide` gets the states under these names. If another session changes one in the meantime, a condition of its
        own fails.
        """
        own, more = decide(await self.states(table, names) if names else [])
        if not changes and not more:
            return Outcome(0, [])
        return await self.try_change([*conditions, *own], [*changes, *more])

    async def change(self, conditions: Sequence[Step], changes: Sequence[Step]) -> list[Any]:
        """Make these changes if all conditions hold; returns what each change answers. Raises Refused."""
        outcome = await self.try_change(conditions, changes)
        if outcome.failed:
            raise Refused(f"condition {outcome.failed}")
        return outcome.answers

    async def retried(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """The result of reading, deciding and changing; done again as long as others change the same at once."""
        while True:
            try:
                return await attempt()
            except Refused:
                continue
