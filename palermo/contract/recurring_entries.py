"""Entries of recurring jobs: the part of a broker that stores recurring jobs and publishes them at their times.

An entry is a recurring job as the broker stores it: its times, the job to publish, and its progress. All brokers
compute its next state here, after a tick or a manual change. They store it together with the published jobs, so a tick
fires once even if a process dies at any point.
"""

import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from msgspec.structs import replace

from palermo.contract.recurring import RecurringJob
from palermo.contract.stored_records import Instant, read_record
from palermo.core.message import CLOCK_DIFFERENCE, Message
from palermo.core.plain import PlainWithMessages
from palermo.errors import NotFound

#: The headers of a published job: the entry's name, and its tick in Unix seconds.
RECURRING, TICK = "recurring", "tick"

#: The origins of an entry: the code of a module, whose name follows; the configuration; and everything else.
CODE, CONFIG, RUNTIME = "code:", "config", "runtime"

#: The kinds of changes; "run" fires the entry now.
PUT, REMOVE, SWITCH, RUN = "put", "remove", "switch", "run"


class RecurringEntry(PlainWithMessages, frozen=True, kw_only=True):
    """A recurring job as the broker stores it."""

    #: When it is due. Its arguments are in the message.
    recurring: RecurringJob
    #: The job to publish, without its id and its instants.
    message: Message
    #: Its origin: "code:<module>", "config" or "runtime".
    origin: str
    #: Ticks up to this instant, in Unix seconds, have been handled.
    since: Instant
    #: Seconds after its publication within which a job must start; None for no limit.
    expires: float | None = None
    #: When it last fired, in Unix seconds: the newest tick, or the instant of a manual run.
    last_run: Instant | None = None
    #: The id of the last manually published job.
    run_id: str = ""

    @property
    def name(self) -> str:
        return self.recurring.name

    @property
    def next(self) -> float | None:
        """The next instant at which it is due; None while it is disabled."""
        return self.recurring.next(self.since) if self.recurring.enabled else None

    def fired(self, now: float) -> "tuple[list[Message], RecurringEntry]":
        """The jobs to publish now, for ticks up to `now`, and the resulting entry."""
        due = self.next
        if due is None or due > now:
            return [], self
        ticks, _ = self.recurring.due(self.since, now)
        jobs = [self._job(f"{self.name}@{text(tick)}", tick, now) for tick in ticks]
        last = ticks[-1] if ticks else self.last_run
        return jobs, replace(self, since=now, last_run=last)

    def is_ahead(self, now: float) -> bool:
        """Whether a process with a fast clock has fired it too early, so that it would not fire again for a while."""
        return self.since > now + CLOCK_DIFFERENCE

    def mended(self, now: float) -> "RecurringEntry":
        """The same entry. If it `is_ahead`, its next tick is the first one after `now`."""
        return replace(self, since=now) if self.is_ahead(now) else self

    def _job(self, id: str, tick: float, now: float) -> Message:
        return replace(
            self.message,
            id=id,
            created_at=int(now),
            queued_at=now,
            expires_at=None if self.expires is None else now + self.expires,
            extra={**self.message.extra, RECURRING: self.name, TICK: tick},
        )

    @classmethod
    def from_stored(cls, name: str | bytes, stored: Any) -> "RecurringEntry | None":
        """The entry in a stored text; None, with a warning, if it cannot be read."""
        remedy = "it does not run until it is declared again or read by a worker that supports it"
        return read_record(cls.from_plain, stored, what="a recurring job", name=name, remedy=remedy)


class EntryChange(PlainWithMessages, frozen=True, kw_only=True):
    """A change to one entry."""

    name: str
    action: str
    #: For "put": the new entry.
    entry: RecurringEntry | None = None
    #: For "switch": whether it is enabled from now on.
    on: bool = True
    #: For "run": the id of the job.
    id: str = ""

    @classmethod
    def put(cls, entry: RecurringEntry) -> "EntryChange":
        """Add an entry, or replace the one with this name.

        A new entry makes up for ticks since its `since`. If the entry replaces another, it is enabled or disabled like
        that one. If the times are the same, it also keeps the progress, and makes up for missed ticks.
        """
        return cls(name=entry.name, action=PUT, entry=entry)

    @classmethod
    def remove(cls, name: str) -> "EntryChange":
        """Remove an entry."""
        return cls(name=name, action=REMOVE)

    @classmethod
    def switch(cls, name: str, *, on: bool) -> "EntryChange":
        """Enable or disable an entry. Ticks while it is disabled are not made up for."""
        return cls(name=name, action=SWITCH, on=on)

    @classmethod
    def run(cls, name: str, now: float) -> "EntryChange":
        """Publish an entry's job now, even if it is disabled, with a new id. Doesn't affect its ticks."""
        return cls(name=name, action=RUN, id=f"{name}@{text(float(int(now)))}-{uuid.uuid4().hex[:8]}")

    def made_to(self, old: RecurringEntry | None, now: float) -> tuple[RecurringEntry | None, list[Message]]:
        """The changed entry, None if removed, and the jobs to publish with it. If nothing changes, the entry is `old`.

        Raises NotFound for a missing entry.
        """
        if self.action == PUT and self.entry is not None:
            return _put(old, self.entry, now), []
        if old is None:
            raise NotFound(f"no recurring job {self.name!r}; `palermo recurring list` lists the recurring jobs.")
        match self.action:
            case "remove":
                return None, []
            case "switch" if self.on != old.recurring.enabled:
                switched = old.recurring.switched(on=self.on)
                # Ticks while it was disabled don't count as missed.
                return replace(old, recurring=switched, since=now), []
            case "run" if self.id != old.run_id:
                job = old._job(self.id, now, now)
                return replace(old, last_run=now, run_id=self.id), [job]
        return old, []


def _put(old: RecurringEntry | None, new: RecurringEntry, now: float) -> RecurringEntry:
    """The new entry with the old one's history. The old entry itself if nothing differs."""
    if old is None:
        return replace(new, since=min(new.since, now))
    times = old.recurring.times == new.recurring.times
    merged = replace(
        new,
        recurring=new.recurring.switched(on=old.recurring.enabled),
        since=old.since if times and not old.is_ahead(now) else now,
        last_run=old.last_run,
        run_id=old.run_id,
    )
    return old if merged == old else merged


def text(tick: float) -> str:
    """The text of an instant in a job's id."""
    moment = datetime.fromtimestamp(tick, UTC)
    return moment.isoformat(timespec="microseconds" if moment.microsecond else "seconds").replace("+00:00", "Z")


def is_stale(found: RecurringEntry, *, names: Iterable[str], modules: Sequence[str], configures: bool) -> bool:
    """Whether the code or configuration that declared the entry is loaded here but doesn't declare it any more.

    `names` are the declared entries; `configures` is whether the configuration has a schedule.
    """
    if found.name in names:
        return False
    if found.origin == CONFIG:
        return configures
    return found.origin.startswith(CODE) and found.origin.removeprefix(CODE) in modules


class RecurringEntries(Protocol):
    """Recurring jobs on a broker. The leader fires them: see palermo.contract.scheduled."""

    async def recurring(self) -> list[RecurringEntry]:
        """All entries, by name. Raises BrokerUnavailable."""

    async def change_recurring(self, change: EntryChange) -> None:
        """Make a change exactly once, even if a process dies during it; returns when it is stored.

        Raises NotFound for a missing entry, and BrokerUnavailable.
        """
