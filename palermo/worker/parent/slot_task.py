"""The task of a slot in the parent, which repeatedly takes a job, runs it and settles it.

The task sleeps in `Consumer.receive` until a job arrives. Plain jobs don't wake it: the consumer passes them to
`_take`, which sends them to the slot, and a success is acknowledged in a callback. Both happen without delay, in the
loop iteration in which the job or its result arrives.
"""

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from msgspec.structs import replace

from palermo.contract import clock
from palermo.contract.admission import runs_alone
from palermo.contract.broker import Delivery
from palermo.contract.tasks import spawn, wait_for_any
from palermo.contract.worker_info import ReportedArguments, RunningJob
from palermo.core.failure import Failure, from_exception
from palermo.core.journal_records import RecordKind
from palermo.core.latest import remember
from palermo.core.lifecycle import (
    INTERRUPTED,
    SUCCEEDED,
    Ack,
    Cancelled,
    Dropped,
    Fail,
    Raised,
    Release,
    Reschedule,
    Result,
    Retrying,
    RunResult,
    Settlement,
    results_of_each,
    settle,
    without_value,
)
from palermo.core.limits import demand_of
from palermo.core.message import Message
from palermo.core.unique_keys import UNIQUE_KEY, key_in
from palermo.errors import (
    BrokerError,
    BrokerUnavailable,
    DeliveryLost,
    DuplicateJob,
    NotFound,
    PalermoError,
    WorkerDied,
)
from palermo.worker.ipc.frames import MAX_TEXT
from palermo.worker.parent.broker_session import BrokerSession, backoff
from palermo.worker.parent.job_events import (
    SETTLED,
    Progress,
    log_end,
    log_step,
    log_success,
)
from palermo.worker.parent.outcomes import Adoption, Outcome, fingerprint
from palermo.worker.parent.worker_state import WorkerState

log = logging.getLogger("palermo.worker")

#: Maximum number of limit keys remembered by a worker, about 15 MB. If keys are customers' ids, a worker sees millions
#: within days.
_MAX_DEFERRED_KEYS = 100_000

#: Maximum seconds between attempts to store a result that the broker refuses, and maximum attempts for a retry.
_MAX_PAUSE, _RETRY_ATTEMPTS = 5.0, 4

#: Maximum seconds until a slot notices a changed pace.
_REST = 0.5


class SlotTask:
    """A slot, as seen by the parent."""

    __slots__ = (
        *("_admitted", "_free", "_plain", "_saving", "_settling", "_taken", "_worker"),
        *("listening", "number", "permitted", "progress", "started_at", "tag", "task"),
    )

    def __init__(self, number: int, tag: str, worker: WorkerState) -> None:
        self.number = number
        #: The slot's name in consumer tags and failures.
        self.tag = tag
        #: The running job's progress and log lines.
        self.progress = Progress(self._job_reported, self._save)
        self._worker = worker
        self._taken: list[Delivery] = []
        #: The job that is running or waiting for permission to run, and whether it has that permission.
        self._admitted: Message | None = None
        self.permitted = False
        #: When the job started, in Unix seconds.
        self.started_at = 0.0
        #: The session, delivery and message of a plain job that runs while the task sleeps, and the task that settles
        #: it.
        self._plain: tuple[BrokerSession, Delivery, Message] | None = None
        self._settling: asyncio.Task[None] | None = None
        #: Tasks that store the job's saved state on the broker.
        self._saving: set[asyncio.Task[None]] = set()
        #: Set while no plain job is running.
        self._free = asyncio.Event()
        #: The asyncio task that runs `serve`, and whether it is waiting for a job or for the pace. A plain job may be
        #: running in the meantime.
        self.task: asyncio.Task[None] | None = None
        self.listening = False

    @property
    def waiting(self) -> bool:
        """Whether it is waiting for a job, so that cancelling its task interrupts no job."""
        return self.listening and self._plain is None

    @property
    def busy(self) -> bool:
        """Whether it is running a job."""
        return bool(self._taken)

    @property
    def jobs(self) -> tuple[RunningJob, ...]:
        """The running jobs: one, or those of a batch."""
        return tuple(self._running(one.message) for one in self._taken)

    def _named(self, message: Message) -> Message:
        """Return the message with the default job of its queue if it names no job."""
        if message.job or (job := self._worker.registered.defaults.get(message.queue)) is None:
            return message
        return replace(message, job=job)

    def _running(self, message: Message) -> RunningJob:
        message, progress = self._named(message), self.progress
        return RunningJob(
            id=message.id,
            job=message.job,
            queue=message.queue,
            slot=self.number,
            started_at=self.started_at,
            progress=progress.fraction,
            text=progress.text,
            line=progress.lines[-1][:MAX_TEXT] if progress.lines else "",
            key=key_in(message.extra) if message.extra else "",
            parent=message.parent if message.extra else "",
            arguments=ReportedArguments.of(message),
        )

    @property
    def demand(self) -> tuple[str, str] | None:
        """The limit key and id of the job that is running or waiting to run; None if it has no limit."""
        message = self._admitted
        if message is None or (demand := demand_of(message)) is None:
            return None
        return demand.key, message.id

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages of the running jobs, or of the job that is waiting for permission to run."""
        waiting = () if self._admitted is None else (self._admitted,)
        return tuple(one.message for one in self._taken) or waiting

    async def serve(self) -> None:
        """Take and run jobs until the worker takes no more. Must be cancelled only while `waiting`."""
        worker = self._worker
        sessions = worker.sessions
        await worker.pool.prepare(self.number)
        while True:
            while self._plain is not None:
                await self._free.wait()
            if not worker.taking:
                return
            with self._listening():
                while worker.pace and (rest := self.rest) > 0:  # noqa: ASYNC110 - the pace may change in the meantime
                    await asyncio.sleep(min(rest, _REST))
                await sessions.available.wait()
            if (session := sessions.current) is None:
                continue
            try:
                with self._listening():
                    delivery = await session.consumer.receive(self.number, partial(self._take, session))
                self._log_received(delivery)
                await self._work(session, delivery)
            except (BrokerError, NotFound) as error:
                sessions.lose(session, error)
            except Exception as error:  # a bug must not end the slot
                log.exception("cannot take or finish a job slot=%d", self.number)
                sessions.lose(session, error)

    def _log_received(self, delivery: Delivery) -> None:
        """Log a received job, which may still have to wait for a key or a limit."""
        log_step("received", self.number, delivery.message, " redelivered=%s", "yes" if delivery.redelivered else "no")

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Allow cancelling the task within the context, unless a plain job is running."""
        self.listening = True
        try:
            yield
        finally:
            self.listening = False

    @property
    def rest(self) -> float:
        """Return the seconds until the next job may start, at most the pace even if the clock was set back."""
        pace = self._worker.pace
        return min(pace, self.started_at + pace - clock.now())

    async def _work(self, session: BrokerSession, delivery: Delivery) -> None:
        """Run the job, unless another worker is running it or it doesn't get its unique key or permit."""
        found = Adoption.NOT_RUNNING
        if delivery.running_at and not delivery.cancelled:
            found = await self._worker.adopted_jobs.adopt(session, delivery)
        admitted = None
        if found is not Adoption.ADOPTED:
            with suppress(DeliveryLost):
                admitted = await session.consumer.admit(delivery, copy=found is Adoption.COPY)
        if admitted is None:
            return
        self._admitted = admitted.message
        try:
            if await self._get_permit(session, admitted):
                await self._run(session, admitted)
        finally:
            self._admitted, self.permitted = None, False

    async def _get_permit(self, session: BrokerSession, delivery: Delivery) -> bool:
        """Wait briefly for the job's limit or rate. Returns False if the job was deferred."""
        try:
            wait = await session.consumer.permit(delivery)
        except DeliveryLost:
            return False
        self.permitted = wait is not None
        if wait is None and (demand := demand_of(delivery.message)) is not None:
            remember(self._worker.deferred_keys, demand.key, None, most=_MAX_DEFERRED_KEYS)
            self._worker.job_events.run_limited(self.number, delivery.message, demand)
        if wait:
            await asyncio.sleep(wait)
        return wait is not None

    async def _gather_batch(self, session: BrokerSession, delivery: Delivery) -> list[Delivery]:
        """Return the delivery, and as many more as its job takes in one call."""
        taken = [delivery]
        most, wait = self._worker.registered.batches.get(delivery.message.job, (1, 0.0))
        if delivery.redelivered or delivery.cancelled or runs_alone(delivery.message):
            return taken  # a job that ran before, or during which a worker died, must run alone
        until = time.monotonic() + wait
        while len(taken) < most and self._worker.taking:
            more = await session.consumer.next_for_batch(delivery, wait=max(0.0, until - time.monotonic()))
            if more is None:
                break
            self._log_received(more)
            taken.append(more)
        return taken

    async def _run(self, session: BrokerSession, delivery: Delivery) -> None:
        worker, message = self._worker, self._named(delivery.message)
        self._taken = taken = [delivery]
        self.started_at = ended_at = clock.now()
        worker.job_began()
        results: tuple[Result, ...]
        try:
            if message.job in worker.registered.batches:
                self._taken = taken = await self._gather_batch(session, delivery)
                for _ in taken[1:]:
                    worker.job_began()
                self.started_at = ended_at = clock.now()
                message = replace(message, companions=tuple(each.message for each in taken[1:]))
            worker.job_events.run_began(self.number, message, self.started_at)
            self.progress.runs = True
            if delivery.cancelled:
                results = (Cancelled(),)
            elif delivery.duplicate_of:
                results = (_duplicate_result(delivery),)
            elif (most := worker.options.settings.max_deaths) is not None and len(delivery.deaths) >= most:
                results = (Raised(_worker_died(delivery)),)
            else:
                log_step("started", self.number, message)
                results = results_of_each(await self._result_of(message), len(taken))
                ended_at = clock.now()
            saved = self.progress.end()
            for each, result in zip(taken, results, strict=True):
                await self._finish(session, each, result, ended_at, saved=saved)
        finally:
            self.progress.end()
            for each in self._taken:
                self._ended(each.message, INTERRUPTED, (self.started_at, ended_at), settled=False)
            self._taken = []

    def _ended(
        self,
        message: Message,
        result: Result,
        times: tuple[float, float],
        *,
        settled: bool,
        by: str = "",
        written: bool = False,
    ) -> None:
        """Record and count the end of a run; `times` are its start and end. See JobEvents.run_ended."""
        self._worker.job_events.run_ended(
            self.number, message, result, began_at=times[0], ended_at=times[1], settled=settled, by=by, written=written
        )
        self._worker.job_ended(message, result, settled=settled)

    def _job_reported(self, kind: RecordKind, fields: Mapping[str, Any]) -> None:
        """Record progress or a log line of the job, or of the first job in a batch."""
        self._worker.job_events.job_reported(self.number, self._taken[0].message, kind, fields)

    def _save(self, text: str) -> None:
        """Store the job's saved state on the broker, for the next worker if this one dies."""
        if (session := self._worker.sessions.current) is not None:
            spawn(self._saving, self._keep_saved(session, self._taken[0], text))

    async def _keep_saved(self, session: BrokerSession, delivery: Delivery, text: str) -> None:
        try:
            await session.consumer.save(delivery, text)
        except PalermoError as error:
            id = delivery.message.id
            log.warning("saved state not stored, it may be lost id=%s error=%r", id, str(error))

    async def _result_of(self, message: Message) -> RunResult:
        """Run the job in the pool and return its result."""
        result: asyncio.Future[RunResult] = asyncio.get_running_loop().create_future()
        self._worker.pool.run(self.number, message, lambda found: None if result.done() else result.set_result(found))
        return await result

    # Fast path: a plain job wakes no task. CPU time per job in benchmarks.drain: 530 µs, 658 without; in the parent
    # with benchmarks.drain threads: 196 µs, 288 without.

    def _take(self, session: BrokerSession, delivery: Delivery) -> bool:
        """Run a plain job. Returns False if the worker isn't taking jobs or has a pace, or the job may run in a
        batch.
        """
        worker, message = self._worker, delivery.message
        if not message.job:
            message = self._named(message)
        if self._plain is not None or not worker.taking or worker.pace or message.job in worker.registered.batches:
            return False
        # First, so that the slot starts while the rest is recorded here.
        worker.pool.run(self.number, message, self._plain_ended)
        self._plain, self._taken, self.started_at = (session, delivery, message), [delivery], clock.now()
        self._free.clear()
        worker.job_began()
        worker.job_events.run_began(self.number, message, self.started_at)
        self.progress.runs = True
        if log.isEnabledFor(logging.DEBUG):
            self._log_received(delivery)
            log_step("started", self.number, message)
        return True

    def _plain_ended(self, result: RunResult) -> None:
        """Acknowledge a plain job that succeeded without a result to keep. All others are settled by a task."""
        assert self._plain is not None
        (session, delivery, message), began, ended_at = self._plain, self.started_at, clock.now()
        worker = self._worker
        saved = self.progress.end()
        if result is SUCCEEDED and not message.keep_result:
            try:
                session.consumer.acknowledge(delivery)
            except (BrokerUnavailable, DeliveryLost):
                pass  # `settle` raises the same error, and `_finish` handles it
            else:
                self._taken = []
                if log.isEnabledFor(logging.INFO):
                    log_success(self.number, message, began)
                if log.isEnabledFor(logging.DEBUG):
                    log_step("settled", self.number, message, " as=%s", SETTLED[Ack])
                worker.job_events.run_ended(
                    self.number, message, SUCCEEDED, began_at=began, ended_at=ended_at, settled=True
                )
                worker.job_ended(message, SUCCEEDED, settled=True)
                self._plain_settled()
                return
        self._settling = asyncio.ensure_future(self._settle_plain(session, delivery, result, ended_at, saved))

    async def _settle_plain(
        self, session: BrokerSession, delivery: Delivery, result: RunResult, ended_at: float, saved: str | None
    ) -> None:
        try:
            await self._finish(session, delivery, results_of_each(result, 1)[0], ended_at, saved=saved)
        except Exception as error:  # a bug must not end the slot; the job is requeued when the session ends
            log.exception("cannot finish job id=%s job=%s", delivery.message.id, delivery.message.job)
            self._worker.sessions.lose(session, error)
        finally:
            self._plain_settled()

    def _plain_settled(self) -> None:
        """Free the slot. Cancel the waiting task if the worker takes no more jobs."""
        self._plain = None
        self._free.set()
        if self.listening and not self._worker.taking and self.task is not None:
            self.task.cancel()

    # How a job ends

    async def _finish(
        self,
        session: BrokerSession,
        delivery: Delivery,
        result: Result,
        ended_at: float,
        *,
        saved: str | None,
    ) -> None:
        """Log and record how a job ended, and settle it with its saved state."""
        worker, message = self._worker, self._named(delivery.message)
        began_at = self.started_at
        by, settled, written = "", False, False
        try:
            if isinstance(result, Cancelled):
                by = delivery.cancelled_by or worker.outcomes.cancelled_by.get(message.id, "")
            ran = not delivery.cancelled
            log_end(self.number, message, result, began=began_at, ran=ran, by=by, resumes=saved is not None)
            written = await worker.job_events.store_result(
                self.number, message, result, began_at=began_at, ended_at=ended_at, by=by
            )
            # The return value is in the journal now, so the records of the end don't need it.
            result = without_value(result)
            per_queue = worker.options.settings.failed_per_queue
            # Without a delay, the job must be due immediately by every clock, or it would wait for the leader.
            at_once = isinstance(result, Retrying) and not result.delay
            now = clock.wall_clock() if at_once else clock.now()
            settlement = settle(message, result, worker=self.tag, now=now, failed_per_queue=per_queue, saved=saved)
            outcome = Outcome(
                job=message.job,
                queue=message.queue,
                result=result,
                slot=self.tag,
                began_at=began_at,
                ended_at=ended_at,
                written=written,
                saved=saved,
            )
            try:
                settled = await self._settle(session, delivery, settlement)
            except (BrokerUnavailable, DeliveryLost) as error:
                worker.outcomes.keep(message.id, replace(outcome, mark=fingerprint(message)))
                log.warning(
                    "result dropped, because the broker has requeued the job id=%s job=%s error=%r",
                    message.id,
                    message.job,
                    str(error),
                )
                if isinstance(error, BrokerUnavailable):
                    worker.sessions.lose(session, error)
        finally:
            self._taken = [one for one in self._taken if one is not delivery]
            self._ended(message, result, (began_at, ended_at), settled=settled, by=by, written=written)

    async def _settle(self, session: BrokerSession, delivery: Delivery, settlement: Settlement) -> bool:
        """Settle the delivery. Returns False if the broker refused, and the job is back in its queue.

        A failed queue with overflow reject-publish refuses a failure when it is full, and a full job queue refuses a
        retry. Acknowledging such a job would lose it, and requeuing it immediately would run it again after every
        refusal. Therefore the slot keeps the delivery and retries until the worker stops. A retry is requeued after a
        few seconds, because this slot may be the one that makes room in the queue.
        """
        worker, message = self._worker, delivery.message
        for attempt in itertools.count(1):
            try:
                await session.consumer.settle(delivery, settlement)
                log_step("settled", self.number, message, " as=%s", SETTLED[type(settlement)])
                return True
            except (BrokerUnavailable, DeliveryLost):
                raise
            except PalermoError as error:
                if not isinstance(settlement, Fail | Reschedule):
                    raise
                worker.job_events.result_refused(settlement, error)
            if worker.stopping.is_set() or (attempt == _RETRY_ATTEMPTS and isinstance(settlement, Reschedule)):
                break
            await wait_for_any(worker.stopping, timeout=min(_MAX_PAUSE, backoff(attempt, random.random())))
        text = "result not stored, requeuing the job id=%s job=%s"
        log.warning(text, message.id, message.job)
        await session.consumer.settle(delivery, Release())
        return False


def _duplicate_result(delivery: Delivery) -> Result:
    """Return the result of a job that must not run because another job holds its unique key."""
    message, holder = delivery.message, delivery.duplicate_of
    if "recurring" in message.extra:
        return Dropped(f"job {holder} has its key")
    error = DuplicateJob(
        f"job {holder} has the key {message.extra.get(UNIQUE_KEY)!r}, so this one was not run. Requeue it when"
        " that one has ended, or discard it.",
        id=holder,
    )
    return Raised(from_exception(error, failed_at=int(clock.now())))


def _worker_died(delivery: Delivery) -> Failure:
    """Return the failure of a job during which too many workers have died."""
    count = len(delivery.deaths)
    error = WorkerDied(
        f"{count} {'worker' if count == 1 else 'workers'} died while they ran it: {', '.join(delivery.deaths)}."
        " It was not run again. Before you requeue it, find out why they died (out of memory, kill -9, a crash of the"
        " machine)."
    )
    return from_exception(error, failed_at=int(clock.now()))
