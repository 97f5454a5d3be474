"""Reports the events of a worker and its jobs: in the journal, in the log, and as progress in listings."""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from palermo.client.recorder import Recorder
from palermo.contract import clock
from palermo.contract.broker import Broker
from palermo.contract.recurring_entries import RECURRING
from palermo.contract.worker_info import WorkerInfo
from palermo.core.failure import Failure
from palermo.core.journal_records import RUN_ENDS, JournalLevel, RecordKind
from palermo.core.lifecycle import (
    SUCCEEDED,
    Ack,
    Cancelled,
    Dropped,
    Fail,
    Interrupted,
    Raised,
    Release,
    Reschedule,
    Result,
    Retrying,
    Settlement,
    Succeeded,
)
from palermo.core.limits import LimitDemand
from palermo.core.message import Message
from palermo.errors import BrokerUnavailable, PalermoError
from palermo.worker.ipc.frames import Report
from palermo.worker.logs import log_event
from palermo.worker.parent.shutdown import RestartReason

log = logging.getLogger("palermo.worker")

#: Seconds that a job with a kept result waits for the journal before it is acknowledged, normally and while the journal
#: is known to be unavailable.
STORE_TIMEOUT, AWAY_TIMEOUT = 10.0, 0.5

#: Seconds that the shutdown waits for the journal.
_CLOSE_TIMEOUT = 2.0

#: Minimum seconds between log lines about queues that refuse results.
_LOG_EVERY = 60.0

#: Maximum number of characters of an error's text.
_MAX_TEXT = 500


#: Counts a run by outcome, queue and job, with the seconds that it waited and ran.
CountRun = Callable[[str, str, str, float | None, float | None], None]


class JobEvents:
    """Converts the events of a worker and its slots to journal records."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        #: Counts a run for the worker's metrics at any journal level; None without metrics.
        self.count_run: CountRun | None = None
        self._every_run = RecordKind.SUCCEEDED in recorder.kinds
        self._warned = False
        #: When a refused result was last logged, by the monotonic clock.
        self._refusal_logged_at = -math.inf

    def worker_started(self, info: WorkerInfo) -> None:
        fields = {
            "worker": info.id,
            "host": info.host,
            "pid": info.pid,
            "queues": list(info.queues),
            "slots": info.slots,
            "version": info.version,
        }
        self.recorder.add(RecordKind.WORKER_UP, fields | ({"release": info.release} if info.release else {}))

    async def session_ends(self, broker: Broker) -> None:
        """Write this session's records. If it is lost, the next session will write them."""
        if not broker.is_lost:
            await self.recorder.flush(_CLOSE_TIMEOUT)
        self.recorder.detach()

    async def worker_ended(self, info: WorkerInfo, code: int | RestartReason) -> None:
        """Record that the worker ends or restarts, and wait up to 2 s for all records to be written."""
        fields = {"worker": info.id, "processed": info.processed, "failed": info.failed}
        self.recorder.add(
            RecordKind.WORKER_DOWN, fields | ({"code": code} if isinstance(code, int) else {"restarts": True})
        )
        await self.recorder.close(_CLOSE_TIMEOUT)
        if self.recorder.unwritten:
            log.warning(
                "journal unavailable when the worker ended, records lost=%d",
                self.recorder.unwritten,
            )

    def recurring_published(self, jobs: Sequence[Message]) -> None:
        """Record the recurring jobs that this worker has published as the leader."""
        for job in jobs:
            fields = {"name": job.extra.get(RECURRING, ""), "id": job.id, "job": job.job, "queue": job.queue}
            self.recorder.add(RecordKind.FIRED, fields)
            self.recorder.count(RecordKind.ENQUEUED, job.queue, job.job)
            self.recorder.add(RecordKind.ENQUEUED, {"id": job.id, "job": job.job, "queue": job.queue})

    def run_began(self, slot: int, message: Message, at: float) -> None:
        """Record the start of a run at this Unix time."""
        if self._every_run:
            self.recorder.tentative[slot] = partial(_started, slot, message, at)
            self.recorder.remind()

    def run_limited(self, slot: int, message: Message, demand: LimitDemand) -> None:
        """Record that a job was deferred by its limit or rate."""
        if self._every_run:
            fields = {"key": demand.key, "limit": demand.limit, "rate": demand.written}
            fields = {name: value for name, value in fields.items() if value}
            self.recorder.add(RecordKind.LIMITED, {**_run(slot, message), **fields})

    def job_reported(self, slot: int, message: Message, kind: RecordKind, fields: Mapping[str, Any]) -> None:
        """Record a log line or the progress of a slot's job."""
        self.recorder.add(kind, {**_run(slot, message), **fields})

    async def store_result(
        self, slot: int, message: Message, result: Result, *, began_at: float, ended_at: float, by: str = ""
    ) -> bool:
        """Store the end of a job with a kept result, before the job is acknowledged. Returns whether it was stored.

        Waits 10 s for an unavailable journal, or half a second once that is known. The job is then acknowledged without
        a record, because the journal must not stop the work.
        """
        kind, more = _kind(result, by)
        kept = isinstance(result, Succeeded) and (result.value is not None or result.refused)
        if not RUN_ENDS[kind] or not (kept or message.keep_result):
            return False
        if self.recorder.level is JournalLevel.OFF:
            if not self._warned:
                log.warning(
                    'result not kept, because the "journal" setting is "off" id=%s job=%s', message.id, message.job
                )
            self._warned = True
            return False
        wait, took = _times(message, began_at, ended_at)
        fields = {**_run(slot, message, wait=wait, took=took), "created": message.created_at, **more}
        fields |= self.recorder.arguments(message)
        timeout = AWAY_TIMEOUT if self.recorder.is_failing else STORE_TIMEOUT
        try:
            await self.recorder.add_confirmed(kind, fields, timeout=timeout)
        except BrokerUnavailable as error:
            log.error(
                "end of a job not stored, its result may be lost id=%s job=%s error=%r",
                message.id,
                message.job,
                str(error),
            )
        return True

    def run_ended(
        self,
        slot: int,
        message: Message,
        result: Result,
        *,
        began_at: float,
        ended_at: float,
        settled: bool,
        by: str = "",
        written: bool = False,
    ) -> None:
        """Record the end of a run with this result.

        `settled` is false if the broker couldn't store the settlement, in which case the job may run again. For a job
        cancelled before it ran, `began_at` equals `ended_at`. `written` is the return value of `store_result`.
        """
        more: Mapping[str, Any]
        kind, more = (RecordKind.SUCCEEDED, {}) if result is SUCCEEDED else _kind(result, by)
        wait, took = _times(message, began_at, ended_at)
        self.recorder.count(kind, message.queue, message.job, wait, took)
        if self.count_run is not None:
            self.count_run(kind, message.queue, message.job, wait, took)
        # Recorded at every level, because the job's last known state would otherwise remain its failure.
        recovered = kind is RecordKind.SUCCEEDED and settled and bool(message.retries)
        if self._every_run:
            self.recorder.tentative.pop(slot, None)
        elif kind is RecordKind.SUCCEEDED and settled and not recovered:
            return
        if not settled:
            kind, more = RecordKind.RELEASED, {}
        if not written and (recovered or kind in self.recorder.kinds):
            fields = {**_run(slot, message, wait=wait, took=took), **more}
            if RUN_ENDS[kind] or message.attempt == 1:
                # Recording the arguments at the enqueue would be costly for the program, and until now the broker has
                # had them. A waiting retry may be cancelled there, and then no worker records its end.
                fields |= self.recorder.arguments(message)
            self.recorder.add(kind, fields, at=ended_at, rare=recovered)

    def result_refused(self, settlement: Fail | Reschedule, error: PalermoError) -> None:
        """Log that a queue refuses a job's result, at most once a minute."""
        if time.monotonic() - self._refusal_logged_at < _LOG_EVERY:
            return
        self._refusal_logged_at = time.monotonic()
        log.error(
            "queue refuses jobs or results, slots are waiting, make room in the queue queue=%s error=%r",
            settlement.message.queue if isinstance(settlement, Reschedule) else settlement.queue,
            str(error),
        )

    def adopted_run_ended(
        self, worker: str, message: Message, result: Result, *, began_at: float, ended_at: float
    ) -> None:
        """Record the end of a run whose session was lost, after an adopted delivery of the job is settled with its
        result.

        `worker` is the tag of the slot that ran it. The worker that ran it has counted the run and recorded it as
        released.
        """
        kind, more = _kind(result, "")
        wait, took = _times(message, began_at, ended_at)
        fields = {**_run(worker, message, wait=wait, took=took), **more, **self.recorder.arguments(message)}
        self.recorder.add(kind, fields, at=ended_at)


def _run(slot: int | str, message: Message, *, wait: float | None = None, took: float | None = None) -> dict[str, Any]:
    """Return the fields common to all records of a run. `wait` and `took` are in seconds.

    `slot` is a slot number of this worker, or the tag of another worker's slot.
    """
    fields: dict[str, Any] = {
        "id": message.id,
        "job": message.job,
        "queue": message.queue,
        "attempt": message.attempt,
        "slot" if isinstance(slot, int) else "worker": slot,
    }
    if wait is not None:
        fields["wait"] = round(wait, 6)
    if took is not None:
        fields["took"] = round(took, 6)
    return fields


def _times(message: Message, began_at: float, ended_at: float) -> tuple[float | None, float | None]:
    """Return the seconds that a job waited and ran; None if unknown, or if it didn't run."""
    return message.waited(began_at), (ended_at - began_at if ended_at > began_at else None)


def _started(slot: int, message: Message, at: float) -> dict[str, Any]:
    """Return the record of a run that started at this Unix time."""
    return {"kind": RecordKind.STARTED, "at": round(at, 3), **_run(slot, message, wait=message.waited(at))}


def _kind(result: Result, by: str) -> tuple[RecordKind, Mapping[str, Any]]:
    """Return the kind of journal record for a result, and its fields."""
    match result:
        case Succeeded(adds=adds) if adds:
            return RecordKind.EXPANDED, {}
        case Succeeded(skipped, value, refused):
            fields: dict[str, Any] = {"skipped": True} if skipped else {}
            fields |= {} if value is None else {"result": value.to_plain()}
            return RecordKind.SUCCEEDED, fields | ({"refused": refused} if refused else {})
        case Raised(failure):
            return RecordKind.FAILED, _error(failure)
        case Retrying(None, delay):
            return RecordKind.SNOOZED, {"delay": delay}
        case Retrying(Failure() as failure, delay):
            return RecordKind.RETRIED, {**_error(failure), "delay": delay}
        case Dropped(reason):
            return RecordKind.DISCARDED, {"reason": reason[:_MAX_TEXT]}
        case Cancelled():
            return RecordKind.CANCELLED, {"by": by} if by else {}
        case Interrupted():
            return RecordKind.RELEASED, {}
    raise AssertionError(f"{result!r} is not a result")


def _error(failure: Failure) -> dict[str, str]:
    return {"error": failure.exception_class, "message": failure.message[:_MAX_TEXT]}


#: A short description of each settlement.
SETTLED: Mapping[type[Settlement], str] = {
    Ack: "acknowledged",
    Fail: "failed",
    Reschedule: "rescheduled",
    Release: "released",
}


def log_step(step: str, slot: int, message: Message, more: str = "", *values: str) -> None:
    """Log at level DEBUG that a job was received, started or settled. `more` is appended to the format string."""
    text = f"job {step} id=%s job=%s queue=%s attempt=%d slot=%d{more}"
    log_event(log, logging.DEBUG, text, *_job_values(slot, message), *values)


def log_end(slot: int, message: Message, result: Result, *, began: float, ran: bool, by: str, resumes: bool) -> None:
    """Log how a run ended; `began` is its start in Unix time.

    For a cancelled job, `ran` is whether it had started, and `by` is the user who cancelled it, or "". `resumes` is
    whether the run has saved state for the next one.
    """
    named = _job_values(slot, message)
    match result:
        case Raised(failure):
            log.error(
                "job failed id=%s job=%s queue=%s attempt=%d slot=%d duration=%.3f error=%r",
                *named,
                clock.now() - began,
                _error_line(failure),
                extra=_traceback(failure),
            )
        case Retrying(None, delay):
            log.info("job snoozed id=%s job=%s queue=%s attempt=%d slot=%d delay=%.1f", *named, delay)
        case Retrying(Failure() as failure, delay):
            log.warning(
                "job failed id=%s job=%s queue=%s attempt=%d slot=%d duration=%.3f error=%r retry_in=%.1f",
                *named,
                clock.now() - began,
                _error_line(failure),
                delay,
                extra=_traceback(failure),
            )
        case Dropped(reason):
            log.warning("job discarded id=%s job=%s queue=%s attempt=%d slot=%d reason=%r", *named, reason)
        case Interrupted() if resumes:
            log.info("job interrupted, its next run resumes id=%s job=%s queue=%s attempt=%d slot=%d", *named)
        case Interrupted():
            log.warning("job interrupted, requeuing it id=%s job=%s queue=%s attempt=%d slot=%d", *named)
        case Cancelled():
            log.warning(
                "job cancelled id=%s job=%s queue=%s attempt=%d slot=%d ran=%s by=%s",
                *named,
                "yes" if ran else "no",
                by or "?",
            )
        case Succeeded():
            log_success(slot, message, began, skipped=result.skipped)


def log_success(slot: int, message: Message, began: float, *, skipped: bool = False) -> None:
    log_event(
        log,
        logging.INFO,
        "job %s id=%s job=%s queue=%s attempt=%d slot=%d duration=%s",
        "skipped" if skipped else "finished",
        *_job_values(slot, message),
        round(clock.now() - began, 3),
    )


def _job_values(slot: int, message: Message) -> tuple[str, str, str, int, int]:
    """Return the values in every log line about a job, in order."""
    return message.id, message.job, message.queue, message.attempt, slot


def _traceback(failure: Failure) -> dict[str, str]:
    """Return the `extra` of a log record with a traceback, which is written below the line, or in JSON as
    `traceback`.
    """
    return {"stacks": failure.stack_trace.rstrip()}


def _error_line(failure: Failure) -> str:
    text = failure.message.partition("\n")[0][:200]
    return f"{failure.exception_class}: {text}"


#: Minimum seconds between journal records of a job's progress, and between transfers of its saved state to the broker.
#: If the worker dies, the items of this period are repeated.
RECORD_EVERY = 1.0

#: Number of a job's latest lines kept by a worker. The journal keeps all of them.
KEPT_LINES = 100

Write = Callable[[RecordKind, Mapping[str, Any]], None]


class Progress:
    """The progress, log lines and saved state of a slot's current job."""

    __slots__ = (
        *("_reported", "_save", "_timer", "_unsaved", "_unwritten", "_write"),
        *("fraction", "lines", "runs", "saved", "text"),
    )

    def __init__(self, write: Write, save: Callable[[str], None]) -> None:
        """`write` records the job's log lines, and its progress at most once a second.

        `save` stores the job's saved state on the broker, at most once a second.
        """
        #: Whether a job is running. Later reports are dropped, so that they don't count for the slot's next job.
        self.runs = False
        self.fraction: float | None = None
        self.text = ""
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        #: The job's saved state, if any.
        self.saved: str | None = None
        self._write = write
        self._save = save
        self._timer: asyncio.TimerHandle | None = None
        #: Whether the job has reported anything, and whether its latest progress isn't recorded yet.
        self._reported = self._unwritten = False
        #: Saved state that isn't on the broker yet.
        self._unsaved: str | None = None

    def add(self, report: Report) -> None:
        """Add a report of the running job. A report that arrives later is dropped."""
        if not self.runs:
            return
        self._reported = True
        for line in report.lines:
            self.lines.append(line)
            self._write(RecordKind.LOG, {"text": line})
        if report.moved:
            self.fraction, self.text = report.fraction, report.text
            self._unwritten = True
        if report.saved is not None:
            self.saved = self._unsaved = report.saved
        if self._timer is None:
            self._record()
            self._timer = asyncio.get_running_loop().call_later(RECORD_EVERY, self._tick)

    def end(self) -> str | None:
        """Record the job's last progress, and reset. Returns its saved state."""
        saved, self.runs = self.saved, False
        if self._reported:
            self._forget()
        return saved

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._record()
        self._reported = False
        self.saved = self._unsaved = self.fraction = None
        self.text = ""
        self.lines.clear()

    def _tick(self) -> None:
        self._timer = None
        if self._unwritten or self._unsaved is not None:
            self._timer = asyncio.get_running_loop().call_later(RECORD_EVERY, self._tick)
            self._record()
        if self._unsaved is not None:
            self._save(self._unsaved)
            self._unsaved = None

    def _record(self) -> None:
        if self._unwritten:
            self._unwritten = False
            fields: dict[str, Any] = {} if self.fraction is None else {"fraction": round(self.fraction, 4)}
            self._write(RecordKind.PROGRESS, fields | ({"text": self.text} if self.text else {}))
