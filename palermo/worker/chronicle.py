"""What a worker writes into the journal of its jobs and of itself."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from palermo.core.failure import Failure
from palermo.core.journal import ENDS, Kind, Level
from palermo.core.lifecycle import Cancelled, Dropped, Interrupted, Raised, Result, Retrying, Succeeded
from palermo.core.message import Message
from palermo.core.permits import Demand
from palermo.crew import WorkerInfo
from palermo.entries import RECURRING
from palermo.errors import BrokerUnavailable
from palermo.metrics.totals import Totals
from palermo.plugins import version
from palermo.recorder import Recorder
from palermo.worker.ending import Anew
from palermo.worker.keeping import SUCCEEDED

log = logging.getLogger("palermo.worker")

#: Seconds that a job which keeps its result is not acknowledged until that is stored; and while the journal is known
#: to be away.
PATIENCE, AWAY_PATIENCE = 10.0, 0.5

#: Seconds that a worker's end may wait for its journal.
_LAST_WORDS = 2.0

#: Characters of an error's text that are kept.
_MAX_TEXT = 500


class Chronicle:
    """Turns what happens in a worker's lanes into records."""

    def __init__(self, recorder: Recorder, *, release: str) -> None:
        self.recorder = recorder
        #: What is counted besides, at every level, where somebody measures this worker.
        self.totals: Totals | None = None
        self._release = release
        #: Whether single runs that end well are written down.
        self._all = recorder.wants(Kind.SUCCEEDED)
        self._warned = False

    def up(self, info: WorkerInfo) -> None:
        """The worker begins to work."""
        said = {
            "worker": info.id,
            "host": info.host,
            "pid": info.pid,
            "queues": list(info.queues),
            "slots": info.slots,
            "version": version(),
        }
        self.recorder.add(Kind.WORKER_UP, said | ({"release": self._release} if self._release else {}))

    async def close(self, info: WorkerInfo, code: int | Anew) -> None:
        """It ends, with this exit code or to begin anew; what is still to be written is, within 2 s."""
        said = {"worker": info.id, "processed": info.processed, "failed": info.failed}
        self.recorder.add(Kind.WORKER_DOWN, said | ({"code": code} if isinstance(code, int) else {"anew": True}))
        await self.recorder.close(_LAST_WORDS)

    def fired(self, jobs: Sequence[Message]) -> None:
        """The time of recurring jobs has come, and this worker was the one to publish them."""
        for job in jobs:
            fields = {"name": job.extra.get(RECURRING, ""), "id": job.id, "job": job.job, "queue": job.queue}
            self.recorder.add(Kind.FIRED, fields)
            self.recorder.count(Kind.ENQUEUED, job.queue, job.job)
            self.recorder.add(Kind.ENQUEUED, {"id": job.id, "job": job.job, "queue": job.queue})

    def began(self, slot: int, message: Message, at: float) -> None:
        """A run begins in a slot, at this Unix time."""
        if self._all:
            self.recorder.add_if_it_lasts(slot, Kind.STARTED, _run(slot, message, wait=message.waited(at)))

    def limited(self, slot: int, message: Message, demand: Demand) -> None:
        """A job was put aside, since its limit or its rate does not let it run now."""
        if self._all:
            said = {"key": demand.key, "limit": demand.limit, "rate": demand.written}
            said = {name: value for name, value in said.items() if value}
            self.recorder.add(Kind.LIMITED, {**_run(slot, message), **said})

    def tells(self, slot: int, message: Message, kind: Kind, said: Mapping[str, Any]) -> None:
        """The job that runs in a slot tells of itself."""
        self.recorder.add(kind, {**_run(slot, message), **said})

    async def keep(
        self, slot: int, message: Message, result: Result, *, began: float, ended: float, by: str = ""
    ) -> bool:
        """Have it stored how a job ended that keeps its result, before it is acknowledged; whether it was written down.

        A journal that is away is waited for 10 s, and half a second once that is known: then the job is
        acknowledged without, since the journal must not stop the work.
        """
        kind, more = _kind(result, by)
        kept = isinstance(result, Succeeded) and (result.value is not None or result.refused)
        if not ENDS[kind] or not (kept or message.keep_result):
            return False
        if self.recorder.level is Level.OFF:
            if not self._warned:
                log.warning("results are not kept: the setting journal is off id=%s job=%s", message.id, message.job)
            self._warned = True
            return False
        wait, took = message.waited(began), (ended - began if ended > began else None)
        said = {**_run(slot, message, wait=wait, took=took), "created": message.created_at, **more}
        try:
            timeout = AWAY_PATIENCE if self.recorder.away else PATIENCE
            await self.recorder.confirmed(kind, said, timeout=timeout)
        except BrokerUnavailable as error:
            log.error(
                "the end of a job that keeps its result is not stored, and may get lost id=%s job=%s error=%r",
                message.id,
                message.job,
                str(error),
            )
        return True

    def ended(
        self,
        slot: int,
        message: Message,
        result: Result,
        *,
        began: float,
        ended: float,
        settled: bool,
        by: str = "",
        written: bool = False,
    ) -> None:
        """A run has ended with this result, and the broker has taken note of it, or could not: then it may run again.

        A job that never ran, since it was cancelled before, has `began` = `ended`. `written` is what `keep` gave.
        """
        kind, more = _kind(result, by)
        wait, took = message.waited(began), (ended - began if ended > began else None)
        self.recorder.count(kind, message.queue, message.job, wait, took)
        if self.totals is not None:
            self.totals.count(kind, message.queue, message.job, wait, took)
        if self._all:
            self.recorder.over(slot)
        elif kind is Kind.SUCCEEDED and settled:
            return
        if not settled:
            kind, more, written = Kind.RELEASED, {}, False
        if not written and self.recorder.wants(kind):
            self.recorder.add(kind, {**_run(slot, message, wait=wait, took=took), **more}, at=ended)


def _run(slot: int, message: Message, **seconds: float | None) -> dict[str, Any]:
    """What is said of every run."""
    return {
        "id": message.id,
        "job": message.job,
        "queue": message.queue,
        "attempt": message.attempt,
        "slot": slot,
        **{name: round(value, 6) for name, value in seconds.items() if value is not None},
    }


def _kind(result: Result, by: str) -> tuple[Kind, Mapping[str, Any]]:
    """What a result is called in the journal, and what is said of it."""
    if result is SUCCEEDED:  # as nearly all are
        return Kind.SUCCEEDED, {}
    match result:
        case Succeeded(skipped, value, refused):
            said: dict[str, Any] = {"skipped": True} if skipped else {}
            said |= {} if value is None else {"result": value.to_plain()}
            return Kind.SUCCEEDED, said | ({"refused": refused} if refused else {})
        case Raised(failure):
            return Kind.FAILED, _error(failure)
        case Retrying(None, delay):
            return Kind.SNOOZED, {"delay": delay}
        case Retrying(Failure() as failure, delay):
            return Kind.RETRIED, {**_error(failure), "delay": delay}
        case Dropped(reason):
            return Kind.DISCARDED, {"reason": reason[:_MAX_TEXT]}
        case Cancelled():
            return Kind.CANCELLED, {"by": by} if by else {}
        case Interrupted():
            return Kind.RELEASED, {}
    raise AssertionError(f"{result!r} is no result")


def _error(failure: Failure) -> dict[str, str]:
    return {"error": failure.exception_class, "message": failure.message[:_MAX_TEXT]}
