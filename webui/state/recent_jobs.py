"""The jobs that this process has seen last, in bounded memory."""

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from palermo.contract.rows import Row

#: The most recent jobs that are remembered, the most runs of each, and the most characters of a row's arguments.
MAX_JOBS, MAX_RUNS, MAX_ARGUMENTS = 2_000, 12, 16_000


class Run(Struct, frozen=True, kw_only=True):
    """A run of a job that was seen on a worker, or that failed."""

    #: ISO 8601; None if it is not known.
    started_at: str | None = None
    worker: str | None = None
    #: When and why it failed; None if it was only seen running.
    failed_at: str | None = None
    error: str | None = None
    message: str | None = None


class RecentJob(Struct, frozen=True):
    """What is remembered of one job."""

    #: Its last row that was small enough to keep.
    row: Row | None = None
    queue: str | None = None
    job: str | None = None
    runs: tuple[Run, ...] = ()


class RecentJobs:
    """Remembers the jobs that this process has seen last: where they waited, ran or failed, and when.

    It lets the page of a job say more than where the job is now: that it ran a minute ago, on which worker, and that it
    had failed before. Safe to share between threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: OrderedDict[str, RecentJob] = OrderedDict()

    def add(self, rows: Iterable[Row]) -> None:
        """Remember these rows of waiting or failed jobs."""
        for row in rows:
            with self._lock:
                before = self._jobs.pop(row["id"], RecentJob())
                after = replace(before, queue=row["queue"], job=row["job"], runs=_with_failure(before.runs, row))
                small = len(json.dumps([row["args"], row["kwargs"]])) <= MAX_ARGUMENTS
                self._store(row["id"], replace(after, row=row if small else before.row))

    def add_running(self, workers: Iterable[Row]) -> None:
        """Remember the jobs that these workers run."""
        for worker in workers:
            for job in worker["jobs"]:
                with self._lock:
                    before = self._jobs.pop(job["id"], RecentJob())
                    runs = before.runs
                    if not any(run.started_at == job["started_at"] for run in runs):
                        runs = (*runs, Run(started_at=job["started_at"], worker=worker["id"]))[-MAX_RUNS:]
                    self._store(job["id"], replace(before, queue=job["queue"], job=job["job"], runs=runs))

    def get(self, id: str) -> RecentJob | None:
        """What is remembered of a job."""
        with self._lock:
            return self._jobs.get(id)

    def _store(self, id: str, job: RecentJob) -> None:
        self._jobs[id] = job
        while len(self._jobs) > MAX_JOBS:
            self._jobs.popitem(last=False)


def _with_failure(runs: tuple[Run, ...], row: Row) -> tuple[Run, ...]:
    """The runs with the row's failure: it ends the last run, or counts as a run of its own."""
    failed_at, error = row["failed_at"], row["error"]
    if error is None or any(run.failed_at == failed_at and failed_at is not None for run in runs):
        return runs
    last = runs[-1] if runs else Run()
    # Failure times are whole seconds, start times have milliseconds.
    begun = last.failed_at is None and last.started_at is not None and failed_at is not None
    is_end = begun and (last.started_at or "")[:19] <= (failed_at or "")[:19]
    run = last if is_end else Run(worker=row["worker"])
    ended = replace(run, failed_at=failed_at, error=error["class"], message=error["message"])
    return (*(runs[:-1] if is_end else runs), ended)[-MAX_RUNS:]
