"""One worker's consumer: it takes jobs from the file and settles them.

Jobs that are acknowledged in one turn of the loop are deleted from the file in the next, and in the same transaction
each slot that became free gets its next job: one write to the disk for both, and for all slots whose jobs end in one
turn. The transaction runs in the loop, as all of them do (see store.py).
"""

import asyncio
import contextlib
import logging
import sqlite3
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from palermo.brokers.features.consumer import Claim, StepConsumer
from palermo.brokers.sqlite import workers
from palermo.brokers.sqlite.file.notifier import Notifier
from palermo.brokers.sqlite.file.store import Busy, Store, Work
from palermo.brokers.sqlite.job_claimer import JobClaimer, ServedQueues
from palermo.brokers.sqlite.steps import SqliteSteps
from palermo.brokers.sqlite.tables import claims
from palermo.brokers.sqlite.workers import CommandListener, CutOff, Heartbeat
from palermo.contract.broker import Delivery, TakeDelivery
from palermo.contract.worker_info import WorkerInfo
from palermo.core.lifecycle import Ack, Release
from palermo.core.queue_selection import QueueSelection
from palermo.errors import BrokerError, BrokerUnavailable, PalermoError


class Waiters:
    """Calls of one consumer that wait until they are woken, the one that has waited longest first."""

    def __init__(self) -> None:
        self._futures: deque[asyncio.Future[None]] = deque()

    def __bool__(self) -> bool:
        """Whether any call waits and is not cancelled."""
        return any(not future.done() for future in self._futures)

    async def wait(self) -> None:
        """Wait until this call is woken."""
        future = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        try:
            await future
        finally:
            if future in self._futures:
                self._futures.remove(future)

    def wake(self) -> None:
        """Wake the call that has waited longest."""
        while self._futures:
            future = self._futures.popleft()
            if not future.done():
                future.set_result(None)
                return

    def wake_all(self) -> None:
        """Wake all calls."""
        while self._futures:
            self.wake()


log = logging.getLogger("palermo.sqlite")

T = TypeVar("T")

_DONE = Ack()


class SqliteConsumer(StepConsumer):
    """Takes jobs for the slots of one worker."""

    def __init__(
        self,
        store: Store,
        notifier: Notifier,
        *,
        directory: str,
        lock: workers.WorkerLock,
        holder: int,
        exchange: str,
        selection: QueueSelection,
        report: Callable[[], WorkerInfo],
        reported: WorkerInfo,
        commands: CommandListener,
        order: str,
        resumes: bool,
        recorded: Callable[[], None],
    ) -> None:
        """`resumes` is whether the holder has jobs from a session before it (workers.take_over)."""
        steps = SqliteSteps(store, exchange, notifier, lambda work, _: self._write(work))
        super().__init__(steps, reported.id, store.display_path, recorded)
        self._store = store
        self._notifier = notifier
        self._lock = lock
        self._holder = holder
        self._commands = commands
        self._heartbeat = Heartbeat(store, directory, holder, report, reported, lock.touch)
        self._flushing: asyncio.Task[None] | None = None
        #: Calls that wait for a job, and by slot the calls that wait for the slot to be free.
        self._waiting = Waiters()
        self._waiting_for_slot: defaultdict[int, Waiters] = defaultdict(Waiters)
        #: By slot: the delivery that its waiting call returns.
        self._ready: dict[int, Delivery] = {}
        #: Whether the next turn of the loop deletes what is done, and claims jobs for the free slots.
        self._scheduled = False
        #: Set by `close` if the session was lost and the worker holds jobs.
        self.cut_off: CutOff | None = None
        self._claimer = JobClaimer(
            exchange, holder, ServedQueues(exchange, selection), order=order, worker=reported.id, resumes=resumes
        )
        self._closing = False
        self._beating = self._loop.create_task(self._heartbeat.run(commands, notifier.notify, self._waiting.wake))
        self._beating.add_done_callback(self._heartbeat_ended)

    async def receive(self, slot: int, take: TakeDelivery | None = None) -> Delivery:
        self._takes[slot] = take
        try:
            empty = False
            while True:
                while slot in self._held and slot not in self._ready:
                    empty = True  # `_delete_and_claim` has already found the jobs that are there
                    await self._waiting_for_slot[slot].wait()
                self._check()
                delivery = self._ready.pop(slot, None)
                if delivery is not None:
                    return delivery
                delivery = await self._claim(slot, likely_empty=empty)
                if delivery is None:
                    empty = True
                    await self._wait()
                    continue
                # One notification may stand for many jobs: each call that finds one wakes the next.
                self._waiting.wake()
                if not self._offered(delivery):
                    return delivery
        except asyncio.CancelledError:
            # Perhaps a notification woke this call: pass it on.
            self._waiting.wake()
            if slot in self._ready:
                with contextlib.suppress(BrokerError):
                    await self.settle(self._ready.pop(slot), Release())
            raise

    def acknowledge(self, delivery: Delivery) -> None:
        claim: Claim = delivery.token
        if self._held.get(delivery.slot) != claim:
            raise self._not_ours(delivery)
        self._check()
        del self._held[delivery.slot]
        if delivery.message.extra and self._end_soon(delivery, _DONE):
            self._claim_soon()
        else:
            self._delete_soon(claim)

    async def next_for_batch(self, delivery: Delivery, *, wait: float) -> Delivery | None:
        until = self._loop.time() + wait
        while True:
            self._check()
            there, found = await self._write(lambda db: self._claimer.claim_similar(db, delivery))
            if found is not None:
                self._detached.add(found.token)
                return found
            left = until - self._loop.time()
            if there or left <= 0:
                return None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._wait()

    async def queues_with_jobs(self) -> set[str]:
        return await self._store.read(self._claimer.queue_of_next)

    async def pause_slot(self, slot: int) -> None:
        # A job is claimed only by a `receive` that returns it, so none is ever on its way.
        await self.flush()

    async def flush(self) -> None:
        """Delete finished jobs from the file now, and end the steps of workflows that have run."""
        await self.end_steps()
        if self._done and self._lost is None:
            await self._write(lambda db: None)

    async def close(self) -> None:
        if self._lost is None:
            await self.end_steps()
        was_lost = self._lost is not None and not self._closing
        self._closing = True
        self._lost = self._lost or BrokerUnavailable("the consumer is closed.")
        await self._commands.end()
        self._beating.cancel()
        with contextlib.suppress(asyncio.CancelledError, BrokerError):
            await self._beating
        held = [*self._held, *self._detached]
        self._held, self._detached = {}, set()
        self._wake_all()
        if was_lost and (held or self._done or self._claimer.resumes):
            # The worker goes on: its next session gets the jobs. Perhaps nothing can be written now.
            self.cut_off = CutOff(self._holder, self._lock, tuple(self._done))
        if self.cut_off is not None:
            return
        try:
            with contextlib.suppress(BrokerError):
                await self._write(lambda db: workers.remove(db, self._holder))
            if self._flushing is not None:
                await self._flushing
            if held:
                self._notifier.notify()
        finally:
            # Whatever happened above: once the lock's file is gone, others give back the jobs that we held.
            self._lock.release()

    # -- claiming ------------------------------------------------------------

    async def _claim(self, slot: int, *, likely_empty: bool) -> Delivery | None:
        """The next job for the slot, if there is one.

        If the queues are `likely_empty` we read first, since a read keeps no writer waiting.
        """
        if likely_empty and not self._done and await self._store.read(self._claimer.find) is None:
            return None
        delivery = await self._write(lambda db: self._claimer.claim(db, slot))
        if delivery is not None:
            self._held[slot] = delivery.token
        return delivery

    def _delete_soon(self, claim: Claim) -> None:
        """Delete this job, because it is done, in the next transaction, or else in the next turn of the loop."""
        self._done.append(claim)
        self._claim_soon()

    def _claim_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._delete_and_claim)

    def _delete_and_claim(self) -> None:
        """Delete what is done, and claim the next jobs for all free slots that wait in `receive`."""
        self._scheduled = False
        slots = [slot for slot, waiters in self._waiting_for_slot.items() if slot not in self._held and waiters]
        claimed: list[Delivery] = []
        if slots or self._done:
            try:
                claimed = self._claim_now(slots)
            except (Busy, PalermoError):
                # A task and `receive` wait until they can write, and report what is wrong.
                self._flush_soon()
        for delivery in claimed:
            slots.remove(delivery.slot)
            if not self._offered(delivery):
                self._ready[delivery.slot] = delivery
                self._waiting_for_slot[delivery.slot].wake_all()
        for slot in slots:
            self._waiting_for_slot[slot].wake_all()

    def _claim_now(self, slots: Sequence[int]) -> list[Delivery]:
        """Delete finished jobs and claim the next jobs for these slots. Raises Busy, or what `settle` raises."""
        self._check()
        claimer = self._claimer

        def claim(db: sqlite3.Connection) -> list[Delivery]:
            found: list[Delivery] = []
            for slot in slots:
                delivery = claimer.claim(db, slot)
                if delivery is None:
                    break
                found.append(delivery)
            return found

        found = self._flushed(self._store.try_write(self._with_done(claim)))
        for delivery in found:
            self._held[delivery.slot] = delivery.token
        return found

    def _flush_soon(self) -> None:
        """Start a task that deletes finished jobs from the file."""
        if self._done and self._flushing is None:
            self._flushing = self._loop.create_task(self._flush())

    # -- writing -----------------------------------------------------------

    async def _write(self, work: Work[T]) -> T:
        """Do the work, and in the same transaction delete the jobs that are done by now."""
        return self._flushed(await self._store.write(self._with_done(work)))

    def _with_done(self, work: Work[T]) -> Work[tuple[T, int, bool]]:
        def delete_and_work(db: sqlite3.Connection) -> tuple[T, int, bool]:
            done = tuple(self._done)
            deleted = [claims.delete(db, claim) for claim in done]
            return work(db), len(done), all(deleted)

        return delete_and_work

    def _flushed(self, found: tuple[T, int, bool]) -> T:
        result, done, ours = found
        del self._done[:done]
        if not ours:
            self._lose(BrokerUnavailable(f"{self._store.display_path}: another process took this worker for dead."))
        return result

    async def _flush(self) -> None:
        try:
            await self.flush()
        except BrokerError as error:
            self._lose(error)
        finally:
            self._flushing = None

    # -- waiting, and the heartbeat -----------------------------------------

    async def _wait(self) -> None:
        """Wait until there may be a job."""
        if not self._waiting:
            self._notifier.listen(self._waiting.wake)
        try:
            await self._waiting.wait()
        finally:
            if not self._waiting:
                self._notifier.unlisten(self._waiting.wake)

    def _lose(self, error: BrokerError) -> None:
        """Note that the session is lost, and wake all calls that wait, so that they raise the error."""
        self._lost = self._lost or error
        self._wake_all()

    def _wake_all(self) -> None:
        self._waiting.wake_all()
        for waiters in self._waiting_for_slot.values():
            waiters.wake_all()

    def _free_slot(self, slot: int) -> None:
        """Let the slot receive again."""
        del self._held[slot]
        self._waiting_for_slot[slot].wake_all()
