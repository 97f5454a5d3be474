"""Fires recurring jobs on RabbitMQ: the leader holds the state of each entry and publishes its jobs at its ticks.

The durable queue `~recurring` has one record for every entry, its state, which the leader holds (state_log.py). To fire
or change an entry, the leader publishes the jobs (handover.py), and when they are confirmed it replaces the entry's
state by the next one. The next leader looks for the jobs of an entry's first tick before it fires that tick, since they
may be published already. Jobs and states that RabbitMQ refuses are kept and tried again; a job that is published
meanwhile is not published again. A job that can never be published goes to `failed`. Of two states of one entry the
newer counts.

Many entries may be due at the same instant. So the leader makes the jobs of a tick ready shortly before it, publishes
all jobs that are due without waiting for a confirm in between, and stores the states after that.
"""

import asyncio
import logging
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from msgspec import Struct, field

from palermo.brokers.rabbitmq.amqp.connection import Connection, uninterrupted
from palermo.brokers.rabbitmq.amqp.messages import written
from palermo.brokers.rabbitmq.amqp.publisher import GONE, Publisher, Unfit, Written
from palermo.brokers.rabbitmq.amqp.state_log import Record, StateLog
from palermo.brokers.rabbitmq.publishing.handover import Refusals, outcomes, traces, unpublishable
from palermo.brokers.rabbitmq.publishing.job_destinations import JobDestinations, TenantQueue
from palermo.contract.clock import seconds_until
from palermo.contract.recurring_entries import EntryChange, RecurringEntry
from palermo.contract.scheduled import OnJobs
from palermo.contract.stored_records import UNREADABLE
from palermo.core.instants import Instants
from palermo.core.message import Message
from palermo.core.topology import internal
from palermo.errors import BrokerUnavailable, PalermoError, PublishRefused

log = logging.getLogger("palermo.rabbitmq")

#: Seconds between two readings of the wall clock, however far the next tick is: the clock may jump.
_LOOK_EVERY = 0.5

#: Seconds until entries are fired again after an error.
_AGAIN = 1.0

#: Jobs that are published together; entries after this many jobs wait for the next turn.
_AT_ONCE = 5_000

#: Jobs that are made ready, and states that are stored, before other tasks of this process have their turn.
_SLICE = 100

#: Seconds before a tick in which its jobs are made ready, and seconds after it for which they are as they should be.
_AHEAD, _FRESH = 2.0, 0.5

#: Seconds by which the clocks of two leaders may differ. A tick that is farther ahead at a takeover was not fired yet.
_SKEW = 3_600.0

#: Stands for the error of a job that was not sent yet.
_NOT_SENT: Final = BrokerUnavailable("not sent yet.")


class _Held(Struct):
    """The state of one entry."""

    entry: RecurringEntry
    #: The record of this state, and those that it replaces; the oldest first.
    records: list[Record]
    #: When it fires next; infinite while it is disabled.
    due: float
    #: Ticks up to here may have been fired by a leader that died; 0 for none. That leader's clock may have been ahead,
    #: and it may have made up for many ticks: the doubt ends at the first tick that it did not fire.
    unsure_to: float = 0.0
    #: The step for its next tick, made ready before that.
    ready: "_Step | None" = None
    #: A step that is not done, because RabbitMQ refused some of it.
    begun: "_Step | None" = None


class _Step(Struct):
    """One change of one entry: the jobs to publish, and its next state."""

    held: _Held | None
    #: Its next state; None if the entry is removed.
    entry: RecurringEntry | None
    #: The jobs that still have to be stored before that.
    jobs: list[Message]
    #: Whether a leader that died may have stored them.
    unsure: bool
    #: Whether a leader that died had stored the last of them.
    was_fired: bool = False
    #: Those that are ready, as bytes of the wire, by the job's id.
    written: dict[str, Written] = field(default_factory=dict)
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
        #: The entries that were held when their queue was deleted, by name, until they are stored again.
        self._deleted: dict[str, RecurringEntry] = {}
        #: By entry, on the wall clock: its next tick; and the same while its jobs are not ready.
        self._due, self._unready = Instants(), Instants()
        #: By entry, on the loop's clock: when its state is written anew, and when a refused step is tried again.
        self._old, self._again = Instants(), Instants()
        self._closed = False
        #: The refusals, by the name of the entry.
        self._refusals: dict[str, Refusals] = {}

    async def run(self) -> None:
        """Fire due entries until the call is cancelled. Raises the connection's error when that is lost."""
        while True:
            self._news.clear()
            try:
                wait = await uninterrupted(self._fire_in_turn())
            except PalermoError as error:
                if self._connection.error is not None:
                    raise
                log.warning("recurring jobs cannot be fired now error=%r", str(error))
                wait = _AGAIN
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._news.wait()

    async def close(self) -> None:
        """Fire no more, and wait for the states of what has fired: without them the next leader would fire it again."""
        self._closed = True
        async with self._turn:
            pass

    async def entries(self) -> list[RecurringEntry]:
        """All entries, by name."""
        async with self._turn:
            await self._read()
            return [self._held[name].entry for name in sorted(self._held)]

    async def change(self, change: EntryChange) -> None:
        """Change an entry. Raises NotFound."""
        async with self._turn:
            await self._read()
            held = self._held.get(change.name)
            old = None if held is None else held.entry
            entry, jobs = change.made_to(old, self._now())
            if entry is not old:
                step = _Step(held, entry, jobs, held is not None and held.unsure_to > 0)
                with self._reading_again():
                    await self._publish([step])
                    await self._store_states([step])
                if step.error is not None:
                    raise step.error
            self._news.set()

    # -- firing

    async def _fire_in_turn(self) -> float:
        async with self._turn:
            await self._read()
            return await self._fire()

    async def _fire(self) -> float:
        """Fire due entries; returns the seconds until the next look."""
        published = list[_Step]()
        with self._reading_again():
            while True:
                if steps := self._next_steps():
                    await self._publish(steps)
                    published += steps
                elif not published:
                    break
                # Jobs that come due meanwhile do not wait for all states.
                batch, published = published[:_SLICE], published[_SLICE:]
                await self._store_states(batch)
                for step in batch:
                    self._see_to(step)
        await self._make_ready()
        waits = [seconds_until(first, self._now) for first in (self._due.first,) if first is not None]
        waits += [first - self._loop.time() for first in (self._old.first, self._again.first) if first is not None]
        return min(_LOOK_EVERY, max(0.0, min(waits, default=math.inf)))

    @contextmanager
    def _reading_again(self) -> Iterator[None]:
        """Have the queue read again if the block fails: the states show how far it came."""
        try:
            yield
            if not self._log.is_open:
                raise BrokerUnavailable("the queue of recurring jobs was closed.")
        except BaseException:
            self._log.close()
            raise

    def _next_steps(self) -> list[_Step]:
        """The steps that entries need now."""
        steps, count = list[_Step](), 0
        if self._closed:
            return steps
        names = list(dict.fromkeys([*self._again.until(self._loop.time()), *self._due.until(self._now())]))
        for number, name in enumerate(names):
            if count >= _AT_ONCE:
                for left in names[number:]:
                    self._due.put(left, self._now())
                break
            step = self._next(self._held[name])
            count += max(1, len(step.jobs))
            steps.append(step)
        if not names:
            old = [self._held[name] for name in self._old.until(self._loop.time())]
            steps = [_Step(held, held.entry.renewed(self._now()), [], False) for held in old if held.begun is None]
        return steps

    def _next(self, held: _Held) -> _Step:
        """The step of an entry that is due, or whose last step was refused."""
        if held.begun is not None:
            return held.begun
        instant = self._now()
        if held.ready is not None and instant - held.due < _FRESH:
            return held.ready
        return self._step_at(held, instant)

    @staticmethod
    def _step_at(held: _Held, instant: float) -> _Step:
        jobs, entry = held.entry.fired(instant)
        return _Step(held, entry, jobs, held.due <= held.unsure_to)

    async def _make_ready(self) -> None:
        """Make the steps of the next ticks, which are then only sent."""
        names = self._unready.until(self._now() + _AHEAD)
        if not names:
            return
        publisher = await self._destinations.publisher()
        for number, name in enumerate(names):
            if number % _SLICE == 0:
                await asyncio.sleep(0)
            held = self._held[name]
            held.ready = step = self._step_at(held, held.due)
            for job in step.jobs:
                route = self._destinations.route(_place(job))
                with suppress(ValueError, struct.error):  # `send` reports a header that AMQP cannot carry
                    step.written[job.id] = publisher.write(*route, written(job), job.body, job.id)

    def _see_to(self, step: _Step) -> None:
        """Remember a step that was refused, to try it again later."""
        held, name = step.held, "" if step.held is None else step.held.entry.name
        if held is None or step.error is None:
            self._refusals.pop(name, None)
            return
        refusals = self._refusals.get(name)
        if refusals is None:
            what = f"what recurring job {name!r} publishes"
            refusals = self._refusals[name] = Refusals(what)
        held.begun = step
        self._again.put(name, self._loop.time() + refusals.refused(step.error))
        step.error = None

    async def _publish(self, steps: Sequence[_Step]) -> None:
        """Publish the jobs of these steps. A step keeps those that were refused, and the error."""
        await self._forget_known(steps)
        jobs = [(step, job) for step in steps for job in step.jobs]
        errors = await self._send_ready(jobs)
        # Those whose queue has to be made first, and those that were not ready.
        slow = [number for number, error in enumerate(errors) if error is _NOT_SENT or isinstance(error, GONE)]
        again = await outcomes(self._connection, [self._send(jobs[number][1]) for number in slow])
        for number, error in zip(slow, again, strict=True):
            errors[number] = error
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

    async def _forget_known(self, steps: Sequence[_Step]) -> None:
        """Drop jobs that a leader had published already, when it died before it could store the next state."""
        unsure = {job.id: job.queue for step in steps if step.unsure for job in step.jobs}
        if unsure:
            known = await traces(self._connection, self._exchange, unsure, self._destinations.ensure)
            for step in steps:
                step.was_fired = step.was_fired or bool(step.jobs and step.jobs[-1].id in known)
                step.jobs = [job for job in step.jobs if job.id not in known]

    async def _send_ready(self, jobs: "Sequence[tuple[_Step, Message]]") -> "list[PalermoError | None]":
        """Send at once all jobs that are ready; returns why each is not stored, or _NOT_SENT, or None."""
        publisher = await self._destinations.publisher()
        ready = dict[int, Written]()
        for number, (step, job) in enumerate(jobs):
            one = step.written.get(job.id)
            if one is not None and one.publisher is publisher and self._destinations.has(_place(job)):
                ready[number] = one
        errors: list[PalermoError | None] = [_NOT_SENT] * len(jobs)
        for number, error in zip(ready, await publisher.send_written(list(ready.values())), strict=True):
            errors[number] = error
            if isinstance(error, GONE):
                self._destinations.forget(_place(jobs[number][1]))
        if self._connection.error is not None:
            raise self._connection.error
        return errors

    async def _store_states(self, steps: Sequence[_Step]) -> None:
        """Store the states of those steps whose jobs are all stored."""
        for step in steps:
            if step.entry is None and step.held is not None:
                self._remove(step.held.entry.name)
                self._log.forget(*step.held.records)
        states = [(step, step.entry) for step in steps if step.entry is not None and step.error is None]
        errors = await outcomes(self._connection, [self._store_state(step, entry) for step, entry in states])
        for (step, _), error in zip(states, errors, strict=True):
            if error is not None and not isinstance(error, PublishRefused):
                raise error
            step.error = error

    async def _store_state(self, step: _Step, entry: RecurringEntry) -> None:
        held = step.held
        (record,) = await self._log.replace([] if held is None else held.records, entry.to_plain())
        # We wrote it, so it covers all ticks that were fired. But the doubt about the state before it remains if we
        # fired nothing since we read that, or if the leader that died had fired the last tick, and so maybe the next.
        unsure_to = self._now() + _SKEW
        if held is not None:
            unsure_to = held.unsure_to if step.was_fired or entry.since == held.entry.since else 0.0
        self._hold(_Held(entry, [record], _due(entry), unsure_to))

    async def _send(self, job: Message) -> None:
        """Store a job in its queue, or in its tenant's; in `failed` if it can never be published. Raises the reason."""
        try:
            await self._destinations.publish(_place(job), job)
        except Unfit as error:
            place = self._destinations.failed_place(job.queue)
            await self._destinations.publish(place, unpublishable(job, error, now=self._now()))

    async def _open_publisher(self) -> Publisher:
        if not self._publisher.is_open:
            self._publisher = await Publisher.open(self._connection)
        return self._publisher

    # -- states

    async def _read(self) -> None:
        """Read all states, unless they are held. Those that were deleted with the queue are stored again."""
        await self._log.open()
        for name, entry in list(self._deleted.items()):
            await self._store_state(_Step(None, entry, [], unsure=False), entry)
            del self._deleted[name]

    async def _prepare(self) -> None:
        if self._held and not (await self._connection.probe(self._queue)).exists:
            log.warning("the queue of recurring jobs was deleted, and is made anew queue=%s", self._queue)
            self._deleted |= {name: held.entry for name, held in self._held.items()}
        # A queue that exists with another type is used as it is.
        await self._connection.declare(self._queue, self._arguments)
        await self._connection.persist_queues()
        for name in list(self._held):
            self._remove(name)

    def _on_record(self, record: Record, value: Any) -> None:
        try:
            entry = RecurringEntry.from_plain(value)
            found = _Held(entry, [record], _due(entry), self._now() + _SKEW)
        except UNREADABLE as error:
            # This machine may lack its time zone: it is held unchanged for another leader.
            self._connection.unreadable.skip(self._queue, value, error)
            return
        self._hold(found)

    def _hold(self, new: _Held) -> None:
        old = self._held.get(new.entry.name)
        records = [*(one for one in ([] if old is None else old.records) if one.is_held), *new.records]
        counts = new if old is None or new.entry.version > old.entry.version else old
        counts.records = records
        self._held[new.entry.name] = counts
        if counts is new:
            name, due = new.entry.name, None if new.due == math.inf else new.due
            self._due.put(name, due)
            self._unready.put(name, due)
            self._old.put(name, records[0].old_at)
            self._again.put(name, None)

    def _remove(self, name: str) -> None:
        del self._held[name]
        for instants in (self._due, self._unready, self._old, self._again):
            instants.put(name, None)


def _due(entry: RecurringEntry) -> float:
    """When the entry fires next; infinite while it is disabled."""
    return math.inf if entry.next is None else entry.next


def _place(job: Message) -> str | TenantQueue:
    """Where the job is published: its queue, or its tenant's."""
    return TenantQueue.of(job) or job.queue
