"""Lists and changes scheduled jobs for the leader: shows, cancels, runs, moves them or gives them up.

A job is either held in memory (due_jobs.py) or lies in the delay queue of a time slot that nobody reads meanwhile. So
each is met exactly once, and whether it came due before is a fact and not a guess.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.messages import Got, Properties, to_message
from palermo.brokers.rabbitmq.browsing import sweep as sweeping
from palermo.brokers.rabbitmq.publishing.job_destinations import delay_queue_name
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.brokers.rabbitmq.scheduling.due_jobs import DueJobs, HeldJob
from palermo.brokers.rabbitmq.scheduling.slot_index import IndexedJob, SlotIndex, SlotIndexes, due_of
from palermo.contract.scheduled import CANCEL, GIVE_UP, AlteredJob, ScheduledFilter, ScheduledPage
from palermo.contract.sweep import Keep, Move, Remove, SweepDecision
from palermo.core.job_edit import JobEdit
from palermo.core.lifecycle import give_up
from palermo.core.message import Message
from palermo.core.time_slots import TimeSlot, in_ms, in_order, moved_to
from palermo.core.topology import failed_queue
from palermo.errors import NotFound, PalermoError

#: Messages handled before other tasks of this process have their turn: jobs that are due must not wait.
_SLICE = 100

#: The header that a job has if it has failed.
_ERROR = "exception-class"

#: A job of a page: its message, or the time slot and the place in its index of one whose message is not kept.
_Shown = Got | Message | tuple[TimeSlot, IndexedJob]

#: Stores messages, and returns once all are confirmed.
Publish = Callable[[list[Message]], Awaitable[object]]


class Section(Struct):
    """Time slots that overlap, so that their jobs are sorted together."""

    ends: float
    total: int
    time_slots: list[TimeSlot]
    held: bool = False


class ScheduledListing:
    """Lists scheduled jobs and changes them, for the leader."""

    def __init__(
        self,
        exchange: str,
        connection: Connection,
        outbox: Outbox,
        leaving: Callable[[list[Message]], Awaitable[object]],
        as_they_run: sweeping.AsTheyRun,
    ) -> None:
        """`leaving` is awaited with the jobs that are about to be cancelled or given up."""
        self._as_they_run = as_they_run
        self._leaving = leaving
        self._exchange = exchange
        self._connection = connection
        self._outbox = outbox
        #: What was read of time slots.
        self.indexes = SlotIndexes()
        #: How many jobs the look under way has read, or found in an index, and how many lie in the time slots that it
        #: reads; None if none is under way.
        self.progress: tuple[int, int] | None = None

    async def browse(
        self,
        chosen: ScheduledFilter,
        *,
        offset: int,
        limit: int,
        held: Sequence[Message],
        lying: Mapping[TimeSlot, int],
    ) -> ScheduledPage:
        """One page of scheduled jobs, soonest first. Without a filter no section before or behind that page is read.

        Each is read once, and again when jobs have come into it. Jobs that are due in the same millisecond come in the
        order of their time slots and queues.

        `held` are the jobs in memory, in order; `lying` says how many are in each time slot that is not open.
        """
        lying = _overlapping(chosen, lying)
        first, last = offset, offset + limit
        total = seen = 0
        self.progress = 0, 0 if chosen.everything else sum(lying.values())
        found: list[Message] = []
        for section in _sections(held, lying):
            if chosen.everything:
                total += section.total
                if seen + section.total <= first or seen >= last:
                    seen += section.total
                    continue
            jobs = _Soonest(last - min(seen, last))
            if section.held:
                for message in held:
                    if chosen.matches(message):
                        jobs.add(message.run_at or 0.0, message)
            made: dict[TimeSlot, SlotIndex] = {}
            for time_slot in section.time_slots:
                if chosen.everything:
                    self._advance(0, more=lying[time_slot])
                await self._collect(time_slot, lying[time_slot], chosen, jobs, made)
            shown = jobs.page(max(0, first - seen), max(0, last - seen))
            page = await self._read_missing(shown, lying, made)
            found += [
                to_message(job.properties, job.body, taken_from=None) if isinstance(job, Got) else job for job in page
            ]
            for time_slot, index in made.items():
                self.indexes.put(time_slot, index, [job for job in page if isinstance(job, Got)])
            seen += section.total if chosen.everything else jobs.total
            if not chosen.everything:
                total += jobs.total
        return ScheduledPage(messages=tuple(found), total=total)

    async def _collect(
        self,
        time_slot: TimeSlot,
        count: int,
        chosen: ScheduledFilter,
        jobs: "_Soonest",
        made: dict[TimeSlot, SlotIndex],
    ) -> None:
        """Add the chosen jobs of a time slot, which has so many jobs in all. `made` gets its index if it is read."""
        if (index := self.indexes.get(time_slot, count)) is not None:
            known = await index.find(chosen, jobs.most)
            for job, got in known.soonest:
                jobs.add(job.due, got or (time_slot, job))
            jobs.total += known.total - len(known.soonest)
            self._advance(count)
            return
        index = made[time_slot] = SlotIndex()
        everything = chosen.everything
        async for got in self._read(time_slot):
            self._advance(1)
            index.add(got)
            if everything or _means(chosen, got.properties):
                jobs.add(due_of(got.properties), got)

    async def _read_missing(
        self, page: "list[_Shown]", lying: Mapping[TimeSlot, int], made: dict[TimeSlot, SlotIndex]
    ) -> list[Got | Message]:
        """The page with the messages that no index keeps: their time slots are read, and indexed in `made`."""
        missing = {job[0] for job in page if isinstance(job, tuple)}
        self._advance(0, more=sum(lying[time_slot] for time_slot in missing))
        found: dict[tuple[TimeSlot, float, str], Got] = {}
        for time_slot in sorted(missing):
            wanted = {(job[1].due, job[1].id) for job in page if isinstance(job, tuple) and job[0] == time_slot}
            made[time_slot] = SlotIndex()
            async for got in self._read(time_slot):
                self._advance(1)
                made[time_slot].add(got)
                key = due_of(got.properties), str(got.properties.message_id)
                if key in wanted:
                    found[time_slot, *key] = got
        there = (found.get((job[0], job[1].due, job[1].id)) if isinstance(job, tuple) else job for job in page)
        return [job for job in there if job is not None]

    def _advance(self, read: int, *, more: int = 0) -> None:
        seen, total = self.progress or (0, 0)
        self.progress = seen + read, total + more

    async def alter(
        self,
        chosen: ScheduledFilter,
        action: str,
        at: float,
        *,
        held: DueJobs,
        lying: Mapping[TimeSlot, int],
        apart: bool = False,
        edit: JobEdit | None = None,
    ) -> list[AlteredJob]:
        """Do this to the chosen jobs and return them; `at` is the instant at which moved jobs are to run.

        `apart` is for jobs that are given up: it puts the failed jobs of every queue into a queue of their own. `edit`
        is for jobs that are moved: it changes more of them than their instant.
        """
        lying = _overlapping(chosen, lying)
        judge = _Judge(chosen, action, at, edit)
        publish: Publish = self._outbox.publish_many
        if action == GIVE_UP:
            publish = partial(
                self._outbox.publish_many, into=lambda message: failed_queue(message.queue, per_queue=apart)
            )

        async def gate(gone: list[tuple[Message, Message | None]]) -> list[bool]:
            if action in (CANCEL, GIVE_UP):
                await self._leaving([there for there, _ in gone])
            return [True] * len(gone)

        await self._alter_held(held, held.take(chosen.matches), judge, publish, gate)
        # Far time slots first: a job moved from one to a nearer one is recognized there by its new instant.
        try:
            for time_slot in sorted(lying, reverse=True):
                if lying[time_slot] and self._may_have(time_slot, lying[time_slot], chosen):
                    reader = sweeping.Reader(
                        self._connection, self._exchange, name=delay_queue_name(self._exchange, time_slot)
                    )
                    with suppress(NotFound):
                        # Fast path: the other jobs are not decoded. benchmarks.growth scheduled: 3.2 s for 8.8 s.
                        await sweeping.sweep(
                            reader,
                            None,
                            judge,
                            publish,
                            lambda _: None,
                            gate=gate,
                            as_they_run=self._as_they_run,
                            ids=chosen.ids or (),
                        )
        except BaseException:
            self.indexes.forget(*lying)
            raise
        self.indexes.remove(lying, judge.altered.keys())
        return sorted(judge.altered.values(), key=lambda one: one.run_at)

    def _may_have(self, time_slot: TimeSlot, count: int, chosen: ScheduledFilter) -> bool:
        """Whether the queue of a time slot may have chosen jobs: an index that is true has all of its ids."""
        index = None if chosen.ids is None else self.indexes.get(time_slot, count)
        return index is None or index.has(chosen.ids or ())

    async def _alter_held(
        self, due: DueJobs, taken: list[HeldJob], judge: "_Judge", publish: Publish, gate: sweeping.Gate
    ) -> None:
        """Change the jobs in memory: acknowledge those that are stored elsewhere, put back those that cannot be."""
        for start in range(0, len(taken), _SLICE):
            batch = taken[start : start + _SLICE]
            try:
                messages = await self._as_they_run([held.message for held in batch])
                verdicts = [judge(message) for message in messages]
                await gate([(held.message, None) for held in batch])
                await publish([one.message for one in verdicts if isinstance(one, Move)])
            except PalermoError:
                for held in taken[start:]:
                    due.put_back(held)
                raise
            for held, verdict in zip(batch, verdicts, strict=True):
                if isinstance(verdict, Keep):
                    due.put_back(held)
                else:
                    held.ack()

    async def _read(self, time_slot: TimeSlot) -> AsyncIterator[Got]:
        name = delay_queue_name(self._exchange, time_slot)
        reader = sweeping.Reader(self._connection, self._exchange, name=name, only_look=True)
        try:
            count = await reader.count()
            async for _, page in reader.pages(count):
                for number, got in enumerate(page):
                    if number % _SLICE == 0:
                        await asyncio.sleep(0)
                    yield got
        except NotFound:
            return
        finally:
            await reader.close()


class _Judge:
    """Decides what becomes of each scheduled job."""

    def __init__(self, chosen: ScheduledFilter, action: str, at: float, edit: JobEdit | None) -> None:
        self._chosen = chosen
        self._edit = edit
        self._action = action
        self._at = at
        self.altered: dict[str, AlteredJob] = {}

    def __call__(self, message: Message) -> SweepDecision:
        if not self._chosen.matches(message):
            return Keep()
        known = message.id in self.altered
        if known and message.run_at == self._at:
            return Keep()  # We have just put it there.
        if not known:
            self.altered[message.id] = AlteredJob(
                id=message.id, job=message.job, queue=message.queue, run_at=message.run_at or 0.0
            )
        elif self._action != CANCEL:
            return Remove()  # A second copy, left by a crash.
        if self._action == CANCEL:
            return Remove()
        if self._action == GIVE_UP:
            return Move(give_up(message))
        return Move(moved_to(message, self._at) if self._edit is None else self._edit.applied_to(message))


class _Soonest:
    """The soonest `most` of the jobs that it is given, with bounded memory."""

    def __init__(self, most: int) -> None:
        self.total = 0
        self.most = max(0, most)
        #: With the milliseconds in which they are due, and their places among all.
        self._jobs: list[tuple[int, int, _Shown]] = []

    def add(self, due: float, job: _Shown) -> None:
        self.total += 1
        self._jobs.append((in_ms(due), self.total, job))
        if len(self._jobs) > 2 * self.most + 1_000:
            self._cut()

    def page(self, first: int, last: int) -> list[_Shown]:
        """From one place up to another."""
        self._cut()
        return [job for _, _, job in self._jobs[first:last]]

    def _cut(self) -> None:
        self._jobs.sort(key=lambda one: one[:2])
        del self._jobs[self.most :]


def _sections(held: Sequence[Message], lying: Mapping[TimeSlot, int]) -> Iterator[Section]:
    """All scheduled jobs in sections, soonest first; time slots that overlap share a section."""
    now: Section | None = None
    if held:
        now = Section(held[-1].run_at or 0.0, len(held), [], held=True)
    for time_slot in in_order(one for one, count in lying.items() if count):
        if now is not None and (
            time_slot.begins < now.ends or (now.held and not now.time_slots and time_slot.begins <= now.ends)
        ):
            now.ends = max(now.ends, time_slot.ends)
            now.total += lying[time_slot]
            now.time_slots.append(time_slot)
            continue
        if now is not None:
            yield now
        now = Section(time_slot.ends, lying[time_slot], [time_slot])
    if now is not None:
        yield now


def _overlapping(chosen: ScheduledFilter, lying: Mapping[TimeSlot, int]) -> Mapping[TimeSlot, int]:
    """The time slots that may hold chosen jobs."""
    if chosen.due is None:
        return lying
    first, last = chosen.due
    return {
        one: count
        for one, count in lying.items()
        if in_ms(one.begins) <= in_ms(last) and in_ms(first) <= in_ms(one.ends)
    }


def _means(chosen: ScheduledFilter, properties: Properties) -> bool:
    """ScheduledFilter.matches on the raw AMQP properties: making a Message of each of 100,000 takes seconds."""
    if chosen.ids is not None and properties.message_id not in chosen.ids:
        return False
    if chosen.due is not None and not chosen.due[0] <= due_of(properties) <= chosen.due[1]:
        return False
    if chosen.retries is not None and chosen.retries is not (_ERROR in (properties.headers or {})):
        return False
    return (chosen.queue is None and chosen.job is None) or chosen.matches(to_message(properties, b"", taken_from=None))
