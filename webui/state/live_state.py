"""The live state that pages show: the sampled state of the broker, and the age of each queue's oldest job."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from palermo.contract.rows import Row, waits_since
from palermo.core.topology import is_failed
from palermo.errors import NotBrowsable, NotFound
from palermo.inspector.inspector import Inspector
from palermo.inspector.rates import Rates, Snapshot
from palermo.webui.base.site import Site
from palermo.webui.state.recent_jobs import RecentJobs
from palermo.webui.state.sampler import Sampler

#: Seconds that the oldest job of a queue is cached, and the most queues that are read for one page.
_OLDEST_CACHED, _OLDEST_READ = 10.0, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSummary:
    """A queue as the pages show it."""

    name: str
    pending: int
    in_progress: int
    workers: int
    paused: bool
    #: Whether it holds failed jobs.
    failed: bool
    #: Since when its oldest job has waited, ISO 8601; None if no job waits, or if the queue cannot be read.
    oldest: str | None
    rates: Rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over all queues and all workers."""

    pending: int
    in_progress: int
    failed: int
    workers: int
    slots: int
    busy: int


class LiveState:
    """The live state of one site. It lives as long as the site."""

    def __init__(self, inspector: Inspector, *, stop: threading.Event) -> None:
        self.sampler = Sampler(inspector, stop=stop)
        self.recent_jobs = RecentJobs()
        self.oldest = OldestJobs(inspector)
        #: How many pages have a stream open. Only the event loop touches it.
        self.streams = 0

    def snapshot(self, max_age: float = 0.5) -> Snapshot:
        """Queues and workers, at most `max_age` seconds old. Raises BrokerError."""
        snapshot = self.sampler.snapshot(max_age)
        self.recent_jobs.add_running(snapshot.workers)
        return snapshot

    def queue_summaries(self, rows: Iterable[Row]) -> list[QueueSummary]:
        """The queues as pages show them, those of failed jobs last."""
        rows = list(rows)
        oldest = self.oldest.of(rows)
        summaries = [
            QueueSummary(
                **{name: row[name] for name in ("name", "pending", "in_progress", "workers", "paused")},
                failed=is_failed(row["name"]),
                oldest=oldest.get(row["name"]),
                rates=self.sampler.rates(row["name"]),
            )
            for row in rows
        ]
        return sorted(summaries, key=lambda summary: (summary.failed, summary.name))


@dataclass
class OldestJobs:
    """Since when the oldest job of each queue has waited. It reads the first message of a queue now and then."""

    inspector: Inspector
    _known: dict[str, tuple[float, str | None]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, rows: Iterable[Row]) -> dict[str, str | None]:
        """Since when the oldest job has waited, by queue; None if the queue cannot be read.

        Empty queues and queues of failed jobs are left out.
        """
        now = datetime.now(UTC).timestamp()
        waiting = {row["name"] for row in rows if row["pending"] and not is_failed(row["name"])}
        with self._lock:
            self._known = {name: known for name, known in self._known.items() if name in waiting}
            stale = sorted(
                (name for name in waiting if now - self._known.get(name, (0.0, None))[0] > _OLDEST_CACHED),
                key=lambda name: self._known.get(name, (0.0, None))[0],
            )
            for name in stale[:_OLDEST_READ]:
                self._known[name] = (now, self._oldest(name))
            return {name: known[1] for name, known in self._known.items()}

    def _oldest(self, queue: str) -> str | None:
        try:
            rows = self.inspector.jobs(queue, limit=1).rows
        except (NotFound, NotBrowsable):
            return None
        return waits_since(rows[0]) if rows else None


def live_state(site: Site) -> LiveState:
    """The live state of a site; made by the first call."""
    return site.component(LiveState, lambda: LiveState(site.inspector, stop=site.stopping))


def invalidate_snapshot(site: Site) -> None:
    """Invalidate the site's snapshot, after a user changed something: the next page asks the broker."""
    found = site.existing(LiveState)
    if found is not None:
        found.sampler.invalidate()


def totals_of(snapshot: Snapshot) -> Totals:
    """The sums over the queues and workers of a snapshot."""
    jobs = [row for row in snapshot.queues if not is_failed(row["name"])]
    return Totals(
        pending=sum(row["pending"] for row in jobs),
        in_progress=sum(row["in_progress"] for row in jobs),
        failed=sum(row["pending"] for row in snapshot.queues if is_failed(row["name"])),
        workers=len(snapshot.workers),
        slots=sum(worker["slots"] for worker in snapshot.workers),
        busy=sum(len(worker["jobs"]) for worker in snapshot.workers),
    )


def running_jobs(snapshot: Snapshot, queue: str | None = None) -> list[Row]:
    """The running jobs, the longest running first, each with its worker's id."""
    found = [
        {**job, "worker": worker["id"]}
        for worker in snapshot.workers
        for job in worker["jobs"]
        if queue is None or job["queue"] == queue
    ]
    return sorted(found, key=lambda job: job["started_at"] or "")


def failed_count(site: Site) -> int | None:
    """The number of failed jobs in the last snapshot, for the navigation. It does not ask the broker."""
    found = site.existing(LiveState)
    snapshot = found.sampler.last if found else None
    return totals_of(snapshot).failed if snapshot else None
