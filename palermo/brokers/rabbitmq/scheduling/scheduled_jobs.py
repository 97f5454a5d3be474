"""Publishes scheduled jobs when they are due, for the leader, and lists and changes them.

The leader holds the jobs that are due within minutes (due_jobs.py). The others wait in buckets (buckets.py). A job is
acknowledged only after its publish is confirmed, so a kill at any moment loses no job, and duplicates at most those
that were being confirmed.

During a request no job moves between queues, so the request either changes a job or finds that it was already due. Jobs
that become due in the meantime are published, because the leader holds those of the next minute.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.messages import Got
from palermo.brokers.rabbitmq.browsing import sweep as sweeping
from palermo.brokers.rabbitmq.publishing.handover import is_mark
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.brokers.rabbitmq.scheduling.buckets import Buckets
from palermo.brokers.rabbitmq.scheduling.due_jobs import DueJobs
from palermo.brokers.rabbitmq.scheduling.scheduled_index import ScheduledIndex
from palermo.contract.clock import wall_clock
from palermo.contract.scheduled import CANCEL, GIVE_UP, MOVE, RUN, AlteredJob, ScheduledFilter, ScheduledPage
from palermo.contract.sweep import Keep, Move, Remove, SweepDecision
from palermo.contract.tasks import together
from palermo.core.due_times import Intake, moved_to
from palermo.core.job_edit import JobEdit
from palermo.core.lifecycle import give_up
from palermo.core.message import Message
from palermo.core.topology import failed_queue
from palermo.errors import NotFound, PalermoError

#: Number of messages handled before other tasks of this process run, because due jobs must not wait.
_SLICE = 100

#: Stores messages; returns once all are confirmed.
Publish = Callable[[list[Message]], Awaitable[object]]


class ScheduledJobs:
    """The scheduled jobs of one exchange, in the leader."""

    def __init__(
        self,
        exchange: str,
        connection: Connection,
        outbox: Outbox,
        arguments: Mapping[str, Any],
        leaving: Callable[[list[Message]], Awaitable[object]],
        moving: Callable[[list[Message]], Awaitable[object]],
        as_they_run: sweeping.AsTheyRun,
        *,
        publishes: bool,
    ) -> None:
        """`arguments` are the queue arguments with which buckets are declared.

        `leaving` is called with jobs, and awaited, before they are cancelled or given up, and `moving` before they are
        published with another queue or due time. Without `publishes`, due jobs are not published.
        """
        self._exchange = exchange
        self._connection = connection
        self._outbox = outbox
        self._leaving = leaving
        self._moving = moving
        self._as_they_run = as_they_run
        self._publishes = publishes
        self.due_jobs = DueJobs(connection, outbox.open, outbox.destinations, now=wall_clock)
        self._index = ScheduledIndex()
        self._buckets = Buckets(exchange, connection, outbox, self._index, arguments, now=wall_clock)
        #: Number of jobs read by the current request, and of jobs to read; None if it reads none.
        self.progress: tuple[int, int] | None = None

    async def begin(self) -> None:
        """Create missing queues, and take the jobs that are due soon."""
        await self._buckets.read()
        if self._publishes:
            await self.due_jobs.open()

    async def run(self) -> None:
        """Publish jobs when they are due, until cancelled. Raises the connection's error."""
        await together(self._buckets.run(), self.due_jobs.run())

    async def close(self) -> None:
        """Stop publishing, once pending jobs are stored. May be cancelled."""
        await together(self.due_jobs.close(), self._buckets.close())
        async with self._buckets.turn:  # a closed index would return no jobs to the current request
            self._index.close()

    async def page(self, chosen: ScheduledFilter, *, offset: int, limit: int) -> ScheduledPage:
        """See palermo.contract.scheduled.ScheduledJobs.scheduled."""
        async with self._indexed(chosen):
            held = [message for message in self.due_jobs.jobs() if chosen.matches(message)]
            # At least this many indexed jobs come before the page, whatever the due times of the held ones.
            before = max(0, offset - len(held))
            first, last = offset - before, offset - before + limit
            indexed, total = await asyncio.to_thread(self._index.find, chosen, before, last)
            both = sorted([*held, *indexed], key=lambda message: (message.run_at or 0.0, message.id))
            return ScheduledPage(messages=tuple(both[first:last]), total=len(held) + total)

    async def alter(
        self, chosen: ScheduledFilter, action: str, at: float | None, *, failed_per_queue: bool
    ) -> list[AlteredJob]:
        """See palermo.contract.scheduled.ScheduledJobs.alter_scheduled."""
        instant = wall_clock() if action == RUN or at is None else at
        return await self._alter(_Judge(chosen, action, instant, None), failed_per_queue=failed_per_queue)

    async def edit(self, id: str, edit: JobEdit) -> list[AlteredJob]:
        """See palermo.contract.scheduled.ScheduledJobs.edit_scheduled."""
        chosen = ScheduledFilter(ids=frozenset({id}))
        return await self._alter(_Judge(chosen, MOVE, edit.run_at or wall_clock(), edit), failed_per_queue=False)

    async def _alter(self, judge: "_Judge", *, failed_per_queue: bool) -> list[AlteredJob]:
        publish: Publish = self._outbox.publish_many
        if judge.action == GIVE_UP:
            publish = partial(
                self._outbox.publish_many, into=lambda message: failed_queue(message.queue, per_queue=failed_per_queue)
            )

        async def gate(gone: list[tuple[Message, Message | None]]) -> list[bool]:
            if judge.action in (CANCEL, GIVE_UP):
                await self._leaving([there for there, _ in gone])
            else:
                await self._moving([put for _, put in gone if put is not None])
            return [True] * len(gone)

        async with self._indexed(judge.chosen):
            await self._alter_held(judge, publish, gate)
            for place in await asyncio.to_thread(self._index.places, judge.chosen):
                try:
                    with suppress(NotFound):
                        # Fast path: other jobs are not decoded. benchmarks.growth scheduled: 3.2 s, 8.8 without.
                        await sweeping.sweep(
                            sweeping.Reader(self._connection, self._exchange, name=self._buckets.queue(place)),
                            None,
                            judge,
                            publish,
                            lambda _: None,
                            gate=gate,
                            as_they_run=self._as_they_run,
                            ids=judge.chosen.ids or (),
                        )
                    await asyncio.to_thread(self._index.remove, place, list(judge.altered))
                except BaseException:
                    self._index.forget(place)
                    raise
        return sorted(judge.altered.values(), key=lambda one: one.run_at)

    async def _alter_held(self, judge: "_Judge", publish: Publish, gate: sweeping.Gate) -> None:
        """Change the held jobs: acknowledge those stored elsewhere, and hold those again that can't be stored."""
        due = self.due_jobs
        taken = due.take(judge.chosen.matches)
        for start in range(0, len(taken), _SLICE):
            batch = taken[start : start + _SLICE]
            try:
                messages = await self._as_they_run([held.message for held in batch])
                verdicts = [judge(message) for message in messages]
                moves = [one.message if isinstance(one, Move) else None for one in verdicts]
                await gate([(held.message, move) for held, move in zip(batch, moves, strict=True)])
                await publish([move for move in moves if move is not None])
            except PalermoError:
                for held in taken[start:]:
                    due.put_back(held)
                with suppress(PalermoError):
                    await self._moving([held.message for held in batch])  # they stay where they were
                raise
            for held, verdict in zip(batch, verdicts, strict=True):
                if isinstance(verdict, Keep):
                    due.put_back(held)
                else:
                    due.settle(held)

    @asynccontextmanager
    async def _indexed(self, chosen: ScheduledFilter) -> AsyncIterator[None]:
        """During the block, no job moves to another queue, and the index has all waiting jobs that this filter may
        choose, except the held ones. Buckets whose jobs are due later are not read.
        """
        async with self._buckets.turn:
            self._index.use()
            if self._publishes:
                await self.due_jobs.caught_up()
            for intake in Intake:
                self._index.forget(str(intake))
            until = math.inf if chosen.due is None else chosen.due[1]
            unread = {str(one) for one in await self._buckets.read() if one.opens <= until} - self._index.known
            counts = await self._buckets.count(
                {str(Intake.NEW), *unread, *(() if self._publishes else (str(Intake.SOON),))}
            )
            self.progress = 0, sum(counts.values())
            try:
                for place, count in counts.items():
                    self._index.forget(place)
                    async for some in self._read(place, count):
                        self._index.add((place, got) for got in some)
                    if place in unread:
                        self._index.known.add(place)
                yield
            finally:
                self.progress = None

    async def _read(self, place: str, count: int) -> AsyncIterator[list[Got]]:
        reader = sweeping.Reader(self._connection, self._exchange, name=self._buckets.queue(place), only_look=True)
        try:
            async for _, page in reader.pages(count):
                for start in range(0, len(page), _SLICE):
                    some = page[start : start + _SLICE]
                    if self.progress is not None:
                        self.progress = self.progress[0] + len(some), self.progress[1]
                    yield [got for got in some if not is_mark(got)]
                    await asyncio.sleep(0)
        finally:
            await reader.close()


class _Judge:
    """Decides about each scheduled job."""

    def __init__(self, chosen: ScheduledFilter, action: str, at: float, edit: JobEdit | None) -> None:
        """`at` is the new due time of moved jobs; `edit` has further changes."""
        self.chosen = chosen
        self.action = action
        self._at = at
        self._edit = edit
        self.altered: dict[str, AlteredJob] = {}

    def __call__(self, message: Message) -> SweepDecision:
        if message.run_at is None or not self.chosen.matches(message):
            return Keep()  # without a due time it is a mark (handover.py)
        known = message.id in self.altered
        if known and message.run_at == self._at:
            return Keep()  # this request has just put it there
        if not known:
            self.altered[message.id] = AlteredJob(
                id=message.id, job=message.job, queue=message.queue, run_at=message.run_at or 0.0
            )
        elif self.action != CANCEL:
            return Remove()  # a second copy, left by a crash
        if self.action == CANCEL:
            return Remove()
        if self.action == GIVE_UP:
            return Move(give_up(message))
        return Move(moved_to(message, self._at) if self._edit is None else self._edit.applied_to(message))
