"""Indexes of time slots: the leader makes one as it reads a slot, so that the next request reads nothing.

Law: an index says which jobs a listing shows, and which queues a change of some ids need not read. What is cancelled,
moved or run is decided by the queue alone.

Only the leader takes jobs out of a time slot that is not open. So an index is valid as long as the queue has as many
jobs as the index, because new jobs make the queue longer. The leader removes from the index the jobs that it removes
from the queue, and forgets the index when it opens the slot.

Cost: some 210 bytes of the leader's memory for each job, for at most MOST_JOBS jobs, and the messages of the soonest
ones, at most MOST_KEPT, and of the last pages with others, at most MOST_SHOWN. An index is forgotten ten minutes after
its last use.
"""

import asyncio
import math
import time
from collections.abc import Collection, Iterable
from sys import intern

from msgspec import Struct, field

from palermo.brokers.rabbitmq.amqp.messages import Got, Properties, to_message
from palermo.contract.scheduled import ScheduledFilter
from palermo.core.time_slots import TimeSlot, in_ms

#: The most jobs in all indexes.
MOST_JOBS = 300_000

#: The most messages that one index keeps, in number and in bytes, and the most that all keep: those of the first pages.
MOST_MESSAGES, MOST_BYTES = 300, 4 * 1024 * 1024
MOST_KEPT, MOST_KEPT_BYTES = 9_000, 128 * 1024 * 1024

#: The most messages that are kept besides, in number and in bytes: those of the last pages for which a slot was read.
MOST_SHOWN, MOST_SHOWN_BYTES = 2_000, 32 * 1024 * 1024

#: Seconds without a look after which an index is forgotten.
_UNUSED = 600.0

#: Jobs that are looked at before other tasks of this process have their turn.
_SLICE = 2_000

#: The header that a job has if it has failed.
_ERROR = "exception-class"


class IndexedJob(Struct, frozen=True, gc=False):
    """One job of a time slot, without its arguments."""

    due: float
    #: Its place in the queue.
    place: int
    id: str
    queue: str
    job: str
    failed: bool

    def meets(self, chosen: ScheduledFilter) -> bool:
        """Whether it meets the conditions."""
        return chosen.fits(self.id, self.queue, self.job, self.due, self.failed)


class FoundJobs(Struct, frozen=True):
    """The jobs of a time slot that meet the conditions of a look: how many, and the soonest of them."""

    total: int
    #: With their messages, as far as these are kept.
    soonest: list[tuple[IndexedJob, Got | None]]


class SlotIndex(Struct):
    """The index of one time slot."""

    #: The soonest first, once it is complete.
    jobs: list[IndexedJob] = field(default_factory=list)
    #: The ids of those that were taken out of the queue since it was completed.
    gone: set[str] = field(default_factory=set)
    #: The messages of the soonest ones, by their places.
    messages: dict[int, Got] = field(default_factory=dict)
    #: No message of a job that is due then or later is kept any more.
    kept_until: float = math.inf
    used_at: float = 0.0
    #: The bytes of the bodies of these messages.
    size: int = 0
    #: The messages of the last pages for which the time slot was read, by their places.
    shown: dict[int, Got] = field(default_factory=dict)

    def add(self, got: Got) -> None:
        """Add the next job of the queue."""
        properties = got.properties
        headers = properties.headers or {}
        queue, job = headers.get("queue"), headers.get("job-class")
        if not (queue and isinstance(queue, str) and isinstance(job, str)):
            message = to_message(properties, b"", taken_from=None)
            queue, job = message.queue, message.job
        place, due, id = len(self.jobs), due_of(properties), str(properties.message_id)
        self.jobs.append(IndexedJob(due, place, id, intern(queue), intern(job), _ERROR in headers))
        if due >= self.kept_until:
            return
        self.messages[place] = got
        self.size += len(got.body)
        if len(self.messages) > 2 * MOST_MESSAGES or self.size > 2 * MOST_BYTES:
            self._cut()

    def complete(self) -> None:
        """Sort the jobs, after the last one was added."""
        self._cut()
        # Those that are due in the same millisecond stay in the order of their places.
        self.jobs.sort(key=lambda job: in_ms(job.due))

    def drop_gone(self) -> None:
        """Drop the jobs that were taken out of the queue."""
        if self.gone:
            self.jobs = [job for job in self.jobs if job.id not in self.gone]
            self.shown = {}  # A job that was edited comes back with the same id.
            self.gone = set()

    def show(self, pages: Iterable[Got]) -> None:
        """Keep those of these messages that are in the queue, after the index is complete."""
        found = {(due_of(got.properties), str(got.properties.message_id)): got for got in pages}
        ids = {id for _, id in found}
        shown = (job for job in self.jobs if job.id in ids and (job.due, job.id) in found)
        self.shown = {job.place: found[job.due, job.id] for job in shown}

    def remove(self, ids: Collection[str]) -> None:
        """Take these jobs out, which are no longer in the queue."""
        self.gone.update(ids)
        if 2 * len(self.gone) > len(self.jobs):
            self.drop_gone()  # Frees their memory, even if nothing is listed.

    def count(self) -> int:
        """How many jobs it has."""
        return max(0, len(self.jobs) - len(self.gone))

    def has(self, ids: Collection[str]) -> bool:
        """Whether one of these jobs is in it."""
        return any(job.id in ids for job in self.jobs)

    async def find(self, chosen: ScheduledFilter, most: int) -> FoundJobs:
        """How many jobs meet the conditions, and the soonest `most` of them."""
        matching: list[IndexedJob] = self.jobs
        if not chosen.everything:
            matching = []
            for start in range(0, len(self.jobs), _SLICE):
                matching += [job for job in self.jobs[start : start + _SLICE] if job.meets(chosen)]
                await asyncio.sleep(0)
        soonest = [(job, self.messages.get(job.place) or self.shown.get(job.place)) for job in matching[:most]]
        return FoundJobs(len(matching), soonest)

    def drop_messages(self) -> None:
        """Keep no message: a look that shows jobs of this time slot reads it again."""
        self.messages, self.size = {}, 0

    def _cut(self) -> None:
        """Keep the messages of the soonest jobs alone."""
        before, self.messages, self.size = self.messages, {}, 0
        for due, place in sorted((due_of(got.properties), place) for place, got in before.items()):
            if len(self.messages) == MOST_MESSAGES or self.size + len(before[place].body) > MOST_BYTES:
                self.kept_until = due
                break
            self.size += len(before[place].body)
            self.messages[place] = before[place]


class SlotIndexes:
    """The indexes that one leader has made."""

    def __init__(self) -> None:
        self._indexes: dict[TimeSlot, SlotIndex] = {}

    def get(self, time_slot: TimeSlot, count: int) -> SlotIndex | None:
        """The index of a time slot if it still matches the queue, which has this number of jobs; else None."""
        found = self._indexes.get(time_slot)
        if found is None:
            return None
        found.drop_gone()
        if len(found.jobs) != count:
            del self._indexes[time_slot]
            return None
        found.used_at = time.monotonic()
        return found

    def put(self, time_slot: TimeSlot, index: SlotIndex, page: Iterable[Got]) -> None:
        """Keep an index that has just been made for this page; the one that was used least recently gives way.

        The messages of the farthest time slots give way: pages begin with the soonest jobs. Those of this page and of
        the last ones are kept besides.
        """
        index.complete()
        index.used_at = time.monotonic()
        before = self._indexes.pop(time_slot, None)
        index.show([*(before.shown.values() if before else ()), *page])
        self._indexes[time_slot] = index
        shown = shown_size = 0
        for one in reversed(self._indexes.values()):
            shown, shown_size = shown + len(one.shown), shown_size + sum(len(got.body) for got in one.shown.values())
            if shown > MOST_SHOWN or shown_size > MOST_SHOWN_BYTES:
                one.shown = {}
        self._limit()

    def _limit(self) -> None:
        """Drop what is too much: whole indexes first, then the messages of the farthest time slots."""
        while sum(one.count() for one in self._indexes.values()) > MOST_JOBS:
            del self._indexes[min(self._indexes, key=lambda one: self._indexes[one].used_at)]
        kept = size = 0
        for time_slot in sorted(self._indexes, key=lambda one: one.begins):
            found = self._indexes[time_slot]
            kept, size = kept + len(found.messages), size + found.size
            if kept > MOST_KEPT or size > MOST_KEPT_BYTES:
                found.drop_messages()

    def remove(self, time_slots: Iterable[TimeSlot], ids: Collection[str]) -> None:
        """Take jobs out that the leader has taken out of the queues of these time slots."""
        for time_slot in time_slots:
            if (found := self._indexes.get(time_slot)) is not None:
                found.remove(ids)

    def forget(self, *time_slots: TimeSlot) -> None:
        """Forget the indexes of these time slots, which are about to change."""
        for time_slot in time_slots:
            self._indexes.pop(time_slot, None)

    def forget_unused(self) -> None:
        """Forget those that have not been used for long."""
        now = time.monotonic()
        self.forget(*[one for one, index in self._indexes.items() if now - index.used_at > _UNUSED])


def due_of(properties: Properties) -> float:
    """When the job with these properties is due."""
    found = (properties.headers or {}).get("run-at")
    return float(found) if isinstance(found, int | float) else 0.0
