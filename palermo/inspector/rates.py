"""The throughput of all workers, computed from the difference between snapshots.

A worker counts its processed jobs over all queues. The rates of single queues come from the journal instead, where
workers and clients count by queue (palermo.history.statistics.Statistics.rates).
"""

import time
from collections import deque

from msgspec import Struct

from palermo.contract.row_types import QueueRow, WorkerRow
from palermo.contract.trouble import Trouble

#: Default period of rates in seconds.
RATED = 30.0

#: Minimum period of a rate in seconds.
SHORTEST = 0.9

#: Maximum number of kept samples.
_MOST = 1_200


class Sample(Struct, frozen=True, kw_only=True):
    """The counts between the previous sample and this one."""

    #: Unix seconds, and the number of seconds covered.
    at: float
    span: float
    #: Number of jobs that ended, and how many of them failed.
    processed: int
    failed: int


class Snapshot(Struct, frozen=True, kw_only=True):
    """All queues and workers at one moment."""

    #: Unix seconds.
    at: float
    queues: list[QueueRow]
    workers: list[WorkerRow]
    all_paused: bool = False
    #: Why workers may be unable to answer, or can't be asked.
    trouble: Trouble | None = None
    #: A number that changes only if something else has changed.
    version: int = 0


class Samples:
    """The samples of recent minutes."""

    def __init__(self, kept: float) -> None:
        """Samples are kept for `kept` seconds."""
        self._kept = kept
        self._samples: deque[Sample] = deque(maxlen=_MOST)
        self.last: Snapshot | None = None

    def add(self, fresh: Snapshot) -> None:
        if self.last is not None and fresh.at > self.last.at:
            self._samples.append(difference(self.last, fresh))
        self.last = fresh

    def since(self, at: float) -> list[Sample]:
        """Return the samples that ended at this time (Unix seconds) or later, oldest first."""
        return [sample for sample in self._samples if sample.at >= at]

    def recent(self, now: float) -> list[Sample]:
        return self.since(now - self._kept)

    def throughput(self, now: float, over: float = RATED) -> tuple[float | None, float | None]:
        """Return jobs processed and failed per second, or None for each without enough samples."""
        seen = self.since(now - over)
        span = sum(sample.span for sample in seen)
        if span < SHORTEST:
            return None, None
        return sum(each.processed for each in seen) / span, sum(each.failed for each in seen) / span


def difference(before: Snapshot, after: Snapshot) -> Sample:
    """Return the sample between two snapshots."""
    # The values of a worker that doesn't answer may be outdated or missing.
    known = {row["id"]: row for row in before.workers if row.get("answers", True)}
    processed = failed = 0
    for worker in after.workers:
        if not worker.get("answers", True):
            continue
        earlier = known.get(worker["id"])
        if earlier is None or earlier["started_at"] != worker["started_at"]:
            # A worker's counts from before it was first seen belong to an earlier period, unless it has just started.
            earlier = None if _is_young(worker, before) else worker
        known_processed, known_failed = (0, 0) if earlier is None else _counts(earlier)
        now_processed, now_failed = _counts(worker)
        processed += max(0, now_processed - known_processed)
        failed += max(0, now_failed - known_failed)
    return Sample(at=after.at, span=after.at - before.at, processed=processed, failed=failed)


def _counts(worker: WorkerRow) -> tuple[int, int]:
    return worker["processed"] or 0, worker["failed"] or 0


def _is_young(worker: WorkerRow, before: Snapshot) -> bool:
    started = worker["started_at"]
    return started is not None and started > time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(before.at))
