"""Fires recurring jobs on RabbitMQ: the leader holds the state of each entry and publishes its jobs at its ticks.

The durable queue `~recurring` has one record for every entry, its state, which the leader holds (state_log.py). To fire
or change an entry, the leader publishes the jobs (handover.py), and when they are confirmed it replaces the entry's
state by the next one. The next leader looks for the jobs of an entry's first tick before it fires that tick, since they
may be published already. Jobs and states that RabbitMQ refuses are kept and tried again; a job that is published
meanwhile is not published again. Of two states of one entry the newer counts.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.messages import to_properties
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.amqp.state_log import Record, StateLog
from palermo.brokers.rabbitmq.publishing.handover import Refusals, outcomes, traces
from palermo.brokers.rabbitmq.publishing.job_destinations import JobDestinations, TenantQueue
from palermo.contract.recurring_entries import EntryChange, RecurringEntry
from palermo.contract.scheduled import OnJobs
from palermo.core.message import Message
from palermo.core.topology import internal
from palermo.errors import BrokerUnavailable, PalermoError, PublishRefused

log = logging.getLogger("palermo.rabbitmq")

#: Seconds between two readings of the wall clock, however far the next tick is: the clock may jump.
_LOOK_EVERY = 0.5

#: Seconds until an entry that was refused is tried again: doubled from the first to the last while it is refused.
_AGAIN, _STILL_REFUSED = 1.0, 30.0

#: Jobs that are published together; entries after this many jobs wait for the next turn.
_AT_ONCE = 200

#: Seconds by which the clocks of two leaders may differ. A tick that is farther ahead at a takeover was not fired yet.
_SKEW = 60.0


@dataclass(slots=True)
class _Held:
    """The state of one entry."""

    entry: RecurringEntry
    #: The record of this state, and those that it replaces; the oldest first.
    records: list[Record]
    #: When it fires next; infinite while it is disabled.
    due: float
    #: Ticks up to here may have been fired by a leader that died; 0 for none.
    unsure_to: float = 0.0
    #: A step that is not done, because RabbitMQ refused some of it, and when it is tried again on the loop's clock.
    begun: "_Step | None" = None
    again_at: float = 0.0


@dataclass(slots=True)
class _Step:
    """One change of one entry: the jobs to publish, and its next state."""

    held: _Held | None
    #: Its next state; None if the entry is removed.
    entry: RecurringEntry | None
    #: The jobs that still have to be stored before that.
    jobs: list[Message]
    #: Whether a leader that died may have stored them.
    unsure: bool
    #: Why it is not done; None once it is.
    error: PalermoError | None = None


class RecurringJobs:
    """Holds and fires the recurring jobs of one exchange, for the leader."""

    def __init__(
        self,
        exchange: str,
        connection: Connection,
        publisher: Publisher,
        destinations: JobDestinations,
        arguments: Mapping[str, Any],
        *,
        now: Callable[[], float],
        fired: OnJobs,
    ) -> None:
        """`arguments` are those of the queue of states; `fired` is called with the jobs that were published."""
        self._exchange = exchange
        self._queue = internal(exchange, "recurring")
        self._connection = connection
        self._publisher = publisher
        self._destinations = destinations
        self._arguments = dict(arguments)
        self._now = now
        self._fired = fired
        self._loop = asyncio.get_running_loop()
        #: Held while the states are read or changed.
        self._turn = asyncio.Lock()
        self._news = asyncio.Event()
        self._log = StateLog(
            self._queue, connection, self._open_publisher, prepare=self._prepare, on_record=self._on_record
        )
        self._held: dict[str, _Held] = {}
        #: The refusals, by the name of the entry.
        self._refusals: dict[str, Refusals] = {}

    async def run(self) -> None:
        """Fire due entries until the call is cancelled. Raises the connection's error when that is lost."""
        while True:
            self._news.clear()
            try:
                async with self._turn:
                    await self._log.open()
                    wait = await self._fire()
            except PalermoError as error:
                if self._connection.error is not None:
                    raise
                log.warning("recurring jobs cannot be fired now error=%r", str(error))
                wait = _AGAIN
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._news.wait()

    async def entries(self) -> list[RecurringEntry]:
        """All entries, by name."""
        async with self._turn:
            await self._log.open()
            return [self._held[name].entry for name in sorted(self._held)]

    async def change(self, change: EntryChange) -> None:
        """Change an entry. Raises NotFound."""
        async with self._turn:
            await self._log.open()
            held = self._held.get(change.name)
            old = None if held is None else held.entry
            entry, jobs = change.made_to(old, self._now())
            if entry is not old:
                step = _Step(held, entry, jobs, held is not None and held.unsure_to > 0)
                await self._take([step])
                if step.error is not None:
                    raise step.error
            self._news.set()

    # -- firing

    async def _fire(self) -> float:
        """Fire due entries; returns the seconds until the next look."""
        while True:
            steps, count = list[_Step](), 0
            for held in sorted(self._held.values(), key=lambda one: one.due):
                if count >= _AT_ONCE:
                    break
                if (step := self._next(held)) is not None:
                    count += len(step.jobs)
                    steps.append(step)
            if not steps:
                break
            await self._take(steps)
            for step in steps:
                self._see_to(step)
        now = self._loop.time()
        waits = (max(held.due - self._now(), held.again_at - now) for held in self._held.values())
        return min(_LOOK_EVERY, max(0.0, min(waits, default=math.inf)))

    def _next(self, held: _Held) -> _Step | None:
        """The step that an entry needs now; None if it needs none."""
        if self._loop.time() < held.again_at:
            return None
        if held.begun is not None:
            return held.begun
        instant = self._now()
        if held.due <= instant:
            jobs, entry = held.entry.fired(instant)
            return _Step(held, entry, jobs, held.due <= held.unsure_to)
        return _Step(held, held.entry.renewed(), [], False) if held.records[0].is_old else None

    def _see_to(self, step: _Step) -> None:
        """Remember a step that was refused, to try it again later."""
        held, name = step.held, "" if step.held is None else step.held.entry.name
        if held is None or step.error is None:
            self._refusals.pop(name, None)
            return
        refusals = self._refusals.get(name)
        if refusals is None:
            what = f"what recurring job {name!r} publishes"
            refusals = self._refusals[name] = Refusals(what, first=_AGAIN, last=_STILL_REFUSED)
        held.begun, held.again_at = step, self._loop.time() + refusals.refused(step.error)
        step.error = None

    async def _take(self, steps: Sequence[_Step]) -> None:
        """Store the jobs of each step, then the states of steps whose jobs are all stored.

        A step that is not done keeps the jobs that were refused, and the error.
        """
        try:
            await self._forget_known(steps)
            await self._store_jobs(steps)
            await self._store_states([step for step in steps if step.error is None])
            if not self._log.is_open:
                raise BrokerUnavailable("the queue of recurring jobs was closed.")
        except BaseException:
            # The queue is read again, and shows how far this came.
            self._log.close()
            raise

    async def _forget_known(self, steps: Sequence[_Step]) -> None:
        """Drop jobs that a leader had published already, when it died before it could store the next state."""
        unsure = {job.id: job.queue for step in steps if step.unsure for job in step.jobs}
        if unsure:
            known = await traces(self._connection, self._exchange, unsure, self._destinations.ensure)
            for step in steps:
                step.jobs = [job for job in step.jobs if job.id not in known]

    async def _store_jobs(self, steps: Sequence[_Step]) -> None:
        jobs = [(step, job) for step in steps for job in step.jobs]
        errors = await outcomes(self._connection, [self._send(job) for _, job in jobs])
        stored = list[Message]()
        for step in steps:
            step.jobs = []
        for (step, job), error in zip(jobs, errors, strict=True):
            if error is None:
                stored.append(job)
            else:
                step.jobs.append(job)
                step.error = error
        self._fired(stored)

    async def _store_states(self, steps: Sequence[_Step]) -> None:
        for step in steps:
            if step.entry is None and step.held is not None:
                del self._held[step.held.entry.name]
                self._log.forget(*step.held.records)
        states = [(step, step.entry) for step in steps if step.entry is not None]
        errors = await outcomes(self._connection, [self._store_state(step.held, entry) for step, entry in states])
        for (step, _), error in zip(states, errors, strict=True):
            if error is not None and not isinstance(error, PublishRefused):
                raise error
            step.error = error

    async def _store_state(self, held: _Held | None, entry: RecurringEntry) -> None:
        (record,) = await self._log.replace([] if held is None else held.records, entry.to_plain())
        # We wrote it, so it covers all ticks that were fired. But if we fired nothing since we read the state before
        # it, that state's doubt remains.
        unsure_to = self._now() + _SKEW
        if held is not None:
            unsure_to = held.unsure_to if entry.since == held.entry.since else 0.0
        self._hold(_Held(entry, [record], _due(entry), unsure_to))

    async def _send(self, job: Message) -> None:
        """Store a job in its queue, or in its tenant's. Raises the reason if that fails."""
        place = TenantQueue.of(job) or job.queue
        await self._destinations.publish(place, to_properties(job), job.body, priority=job.priority)

    async def _open_publisher(self) -> Publisher:
        if not self._publisher.is_open:
            self._publisher = await Publisher.open(self._connection)
        return self._publisher

    # -- states

    async def _prepare(self) -> None:
        # A queue that exists with another type is used as it is.
        await self._connection.declare(self._queue, self._arguments)
        await self._connection.persist_queues()
        self._held.clear()

    def _on_record(self, record: Record, value: Any) -> None:
        try:
            entry = RecurringEntry.from_plain(value)
            found = _Held(entry, [record], _due(entry), self._now() + _SKEW)
        except (ValueError, KeyError, TypeError, AttributeError, PalermoError) as error:
            # A later version wrote it, or this machine lacks its time zone: it is held unchanged for another leader.
            log.warning("the state of a recurring job cannot be read error=%r state=%.200r", str(error), value)
            return
        self._hold(found)

    def _hold(self, new: _Held) -> None:
        old = self._held.get(new.entry.name)
        records = [*(one for one in ([] if old is None else old.records) if one.is_held), *new.records]
        counts = new if old is None or new.entry.version > old.entry.version else old
        counts.records = records
        self._held[new.entry.name] = counts


def _due(entry: RecurringEntry) -> float:
    """When the entry fires next; infinite while it is disabled."""
    return math.inf if entry.next is None else entry.next
