"""What pages look at: the sampled state of the broker, with what takes a look at single queues to know."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from palermo.core.topology import is_failed
from palermo.errors import NotBrowsable, NotFound
from palermo.inspector import Inspector
from palermo.rows import Row
from palermo.sampling import Rates, Snapshot
from palermo.webui.sampler import Sampler
from palermo.webui.seen import Seen
from palermo.webui.site import Site

#: Seconds that the age of a queue's oldest job is taken to be known, and queues looked at for one page at most.
_OLDEST_FOR, _OLDEST_AT_ONCE = 10.0, 20

_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLine:
    """A queue as the pages show it."""

    name: str
    pending: int
    in_progress: int
    workers: int
    paused: bool
    #: Whether it holds failed jobs.
    failed: bool
    #: Since when its oldest job has waited, ISO 8601; None for none, and where that cannot be looked at.
    oldest: str | None
    rates: Rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Everything together."""

    pending: int
    in_progress: int
    failed: int
    workers: int
    slots: int
    busy: int


class Watching:
    """What one site keeps to look with: thrown away with it."""

    def __init__(self, inspector: Inspector, *, stop: threading.Event) -> None:
        self.sampler = Sampler(inspector, stop=stop)
        self.seen = Seen()
        self.oldest = Oldest(inspector)
        #: How many pages have a stream open. Only the event loop touches it.
        self.streams = 0

    def snapshot(self, max_age: float = 0.5) -> Snapshot:
        """Queues and workers now. Raises BrokerError."""
        snapshot = self.sampler.snapshot(max_age)
        self.seen.workers(snapshot.workers)
        return snapshot

    def lines(self, rows: Iterable[Row]) -> list[QueueLine]:
        """Queues as they are shown, those of failed jobs last."""
        rows = list(rows)
        oldest = self.oldest.of(rows)
        lines = [
            QueueLine(
                **{name: row[name] for name in ("name", "pending", "in_progress", "workers", "paused")},
                failed=is_failed(row["name"]),
                oldest=oldest.get(row["name"]),
                rates=self.sampler.rates(row["name"]),
            )
            for row in rows
        ]
        return sorted(lines, key=lambda line: (line.failed, line.name))


@dataclass
class Oldest:
    """Since when the oldest job of each queue has waited: by a look at its first message, now and then."""

    inspector: Inspector
    _known: dict[str, tuple[float, str | None]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, rows: Iterable[Row]) -> dict[str, str | None]:
        """By queue, for those where jobs wait and that may be looked at. Queues of failed jobs are not."""
        now = datetime.now(UTC).timestamp()
        waiting = {row["name"] for row in rows if row["pending"] and not is_failed(row["name"])}
        with self._lock:
            self._known = {name: known for name, known in self._known.items() if name in waiting}
            stale = sorted(
                (name for name in waiting if now - self._known.get(name, (0.0, None))[0] > _OLDEST_FOR),
                key=lambda name: self._known.get(name, (0.0, None))[0],
            )
            for name in stale[:_OLDEST_AT_ONCE]:
                self._known[name] = (now, self._look(name))
            return {name: known[1] for name, known in self._known.items()}

    def _look(self, queue: str) -> str | None:
        try:
            rows = self.inspector.jobs(queue, limit=1).rows
        except (NotFound, NotBrowsable):
            return None
        # A job that was delayed has waited since it was due.
        known = (rows[0][name] for name in ("created_at", "run_at")) if rows else ()
        return max((at for at in known if at is not None), default=None)


def watching(site: Site) -> Watching:
    """What this site looks with; made when first asked for."""
    with _lock:
        found: Watching | None = site.kept.get("watching")
        if found is None:
            found = site.kept["watching"] = Watching(site.inspector, stop=site.stopping)
        return found


def outdate(site: Site) -> None:
    """What this site has seen of queues and workers was changed just now, by somebody who looks again next."""
    found: Watching | None = site.kept.get("watching")
    if found is not None:
        found.sampler.outdate()


def totals_of(snapshot: Snapshot) -> Totals:
    jobs = [row for row in snapshot.queues if not is_failed(row["name"])]
    return Totals(
        pending=sum(row["pending"] for row in jobs),
        in_progress=sum(row["in_progress"] for row in jobs),
        failed=sum(row["pending"] for row in snapshot.queues if is_failed(row["name"])),
        workers=len(snapshot.workers),
        slots=sum(worker["slots"] for worker in snapshot.workers),
        busy=sum(len(worker["jobs"]) for worker in snapshot.workers),
    )


def running_of(snapshot: Snapshot, queue: str | None = None) -> list[Row]:
    """The jobs that run, the longest first, each with its worker's id."""
    found = [
        {**job, "worker": worker["id"]}
        for worker in snapshot.workers
        for job in worker["jobs"]
        if queue is None or job["queue"] == queue
    ]
    return sorted(found, key=lambda job: job["started_at"] or "")


def failed_count(site: Site) -> int | None:
    """How many jobs had failed when somebody looked last, for the navigation; asks nobody."""
    found: Watching | None = site.kept.get("watching")
    snapshot = found.sampler.last if found else None
    return totals_of(snapshot).failed if snapshot else None
