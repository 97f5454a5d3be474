"""One worker's consumer: takes jobs from the file and settles them.

Jobs acknowledged in one turn of the event loop are deleted in the next, in the transaction that claims the next job for
each free slot. So one disk write serves both purposes for all slots whose jobs end in one turn. The transaction runs on
the loop, like all others (see store.py).
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from typing import TypeVar

from palermo.brokers.features.consumer import StepConsumer
from palermo.brokers.sqlite import workers
from palermo.brokers.sqlite.channels import Channels
from palermo.brokers.sqlite.file.store import Busy, Store, Work
from palermo.brokers.sqlite.job_claimer import JobClaimer
from palermo.brokers.sqlite.steps import SqliteSteps
from palermo.brokers.sqlite.tables import claims
from palermo.brokers.sqlite.workers import CutOff, SqliteHeartbeat
from palermo.contract.broker import Delivery
from palermo.contract.worker_info import OnCommand, WorkerInfo
from palermo.core.queue_selection import QueueSelection
from palermo.errors import BrokerError, BrokerUnavailable, PalermoError

T = TypeVar("T")


class SqliteConsumer(StepConsumer):
    """Takes jobs for the slots of one worker."""

    def __init__(
        self,
        store: Store,
        channels: Channels,
        *,
        directory: str,
        lock: workers.WorkerLock,
        holder: int,
        exchange: str,
        selection: QueueSelection,
        report: Callable[[], WorkerInfo],
        reported: WorkerInfo,
        on_command: OnCommand,
        order: str,
        resumes: bool,
    ) -> None:
        """`resumes` says that the holder has jobs of an earlier session (workers.take_over)."""
        heartbeat = SqliteHeartbeat(store, directory, holder, report, reported, lock.touch, channels.ring)
        super().__init__(SqliteSteps(store, exchange, channels, self._write), heartbeat, on_command, store.display_path)
        self._store = store
        self._channels = channels
        self._lock = lock
        self._holder = holder
        self._claimer = JobClaimer(exchange, holder, selection, order=order, worker=reported.id, resumes=resumes)
        #: The task that deletes and claims jobs while other processes write.
        self._working: asyncio.Task[None] | None = None
        #: Whether the last claim left a slot without a job.
        self._idle = False
        self._listening = False
        #: Set by `close` if the session was lost and the worker holds jobs.
        self.cut_off: CutOff | None = None

    async def queues_with_jobs(self) -> set[str]:
        return await self._store.read(self._claimer.queue_of_next)

    async def flush(self) -> None:
        await self.end_steps()
        if self._done and self._lost is None:
            await self._write(lambda db: None)

    async def _leave(self, *, cut_off: bool) -> None:
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait({self._working})
        if self._listening:
            self._channels.jobs.unlisten(self._look)
        if cut_off and (self._held or self._detached or self._done or self._claimer.resumes):
            # The worker continues, and its next session gets the jobs. It may be impossible to write now.
            self.cut_off = CutOff(self._holder, self._lock, tuple(self._done))
            return
        try:
            with contextlib.suppress(BrokerError):
                await self._write(lambda db: workers.remove(db, self._holder))
                self._channels.ring()
        finally:
            # In any case, since other processes release this one's jobs when the lock file is removed.
            self._lock.release()

    # -- claiming ------------------------------------------------------------

    def _work(self) -> None:
        """Delete finished jobs and claim jobs for the waiting slots. If another process is writing, do so in a task."""
        self._scheduled = False
        if self._lost is not None or self._working is not None:
            return
        try:
            if self._done or (self._free_slots() and self._may_find()):
                self._hand_out_all(self._flushed(self._store.try_write(self._with_done(self._claim))))
        except (Busy, PalermoError):
            self._working = self._loop.create_task(self._work_patiently())
        self._listen()

    def _may_find(self) -> bool:
        """Whether there may be a job. Reads first if one is unlikely, since a read blocks no writer."""
        return not self._idle or self._store.try_read(self._claimer.find) is not None

    async def _work_patiently(self) -> None:
        try:
            self._hand_out_all(await self._write(self._claim))
        except BrokerError as error:
            self._lose(error)
        finally:
            self._working = None
        self._work_soon()

    def _claim(self, db: sqlite3.Connection) -> list[Delivery]:
        """Claim at most one job for each waiting slot."""
        found: list[Delivery] = []
        slots = self._free_slots()
        for slot in slots:
            delivery = self._claimer.claim(db, slot)
            if delivery is None:
                break
            found.append(delivery)
        self._idle = len(found) < len(slots)
        return found

    def _hand_out_all(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries if self._lost is None else ():
            self._hand_out(delivery)

    async def _claim_similar(self, delivery: Delivery) -> tuple[bool, Delivery | None]:
        found = await self._write(lambda db: self._claimer.claim_similar(db, delivery))
        self._listen()
        return found

    def _listen(self) -> None:
        """Listen for new jobs only while a slot waits, so that a busy worker isn't woken for each job."""
        wanted = self._idle or bool(self._batches)
        if wanted != self._listening:
            self._listening = wanted
            (self._channels.jobs.listen if wanted else self._channels.jobs.unlisten)(self._look)

    # -- writing -----------------------------------------------------------

    async def _write(self, work: Work[T]) -> T:
        """Do the work, and delete the finished jobs in the same transaction."""
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
            self._lose(BrokerUnavailable(f"{self._store.display_path}: another process considered this worker dead."))
        return result
