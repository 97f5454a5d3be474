"""What this process happened to see of single jobs: where they waited, ran or failed, and when.

A bounded view that may be thrown away. It lets the page of a job say more than where the
job is now: that it ran a minute ago, at which worker, and that it had failed before.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from palermo.rows import Row

#: Jobs that are remembered, runs of each, and characters of the row that is kept of one.
MOST, RUNS, ROW = 2_000, 12, 16_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """That a job was seen at a worker, or failed there."""

    #: ISO 8601; None where the job itself does not say.
    started_at: str | None = None
    worker: str | None = None
    #: When it failed, and why; None if it was only seen running.
    failed_at: str | None = None
    error: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """One job."""

    #: The row it had last, if it was small enough to keep.
    row: Row | None = None
    queue: str | None = None
    job: str | None = None
    runs: tuple[Run, ...] = ()


class Seen:
    """Remembers the jobs seen last. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: OrderedDict[str, Memory] = OrderedDict()

    def rows(self, rows: Iterable[Row]) -> None:
        """Rows of jobs that wait or have failed."""
        for row in rows:
            with self._lock:
                before = self._jobs.pop(row["id"], Memory())
                after = replace(before, queue=row["queue"], job=row["job"], runs=_with_failure(before.runs, row))
                small = len(json.dumps([row["args"], row["kwargs"]])) <= ROW
                self._keep(row["id"], replace(after, row=row if small else before.row))

    def workers(self, workers: Iterable[Row]) -> None:
        """Rows of workers, with the jobs they run."""
        for worker in workers:
            for job in worker["jobs"]:
                with self._lock:
                    before = self._jobs.pop(job["id"], Memory())
                    runs = before.runs
                    if not any(run.started_at == job["started_at"] for run in runs):
                        runs = (*runs, Run(started_at=job["started_at"], worker=worker["id"]))[-RUNS:]
                    self._keep(job["id"], replace(before, queue=job["queue"], job=job["job"], runs=runs))

    def job(self, id: str) -> Memory | None:
        """What is remembered of a job."""
        with self._lock:
            return self._jobs.get(id)

    def _keep(self, id: str, memory: Memory) -> None:
        self._jobs[id] = memory
        while len(self._jobs) > MOST:
            self._jobs.popitem(last=False)


def _with_failure(runs: tuple[Run, ...], row: Row) -> tuple[Run, ...]:
    """The runs, with the failure that the row tells of: of the run that it ends, or on its own."""
    failed_at, error = row["failed_at"], row["error"]
    if error is None or any(run.failed_at == failed_at and failed_at is not None for run in runs):
        return runs
    last = runs[-1] if runs else Run()
    # Failures are told in whole seconds, starts in thousandths.
    begun = last.failed_at is None and last.started_at is not None and failed_at is not None
    is_end = begun and (last.started_at or "")[:19] <= (failed_at or "")[:19]
    run = last if is_end else Run(worker=row["worker"])
    ended = replace(run, failed_at=failed_at, error=error["class"], message=error["message"])
    return (*(runs[:-1] if is_end else runs), ended)[-RUNS:]
