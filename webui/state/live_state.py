"""The live state for the pages: the sampled state of the broker, and the age of each queue's oldest job.

Its size is limited. It starts empty with the process, and each web process has its own.
"""

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from palermo.contract.rows import Row, silent_text, waits_since
from palermo.contract.worker_info import SILENT
from palermo.core.times import parse_instant
from palermo.core.topology import is_failed
from palermo.errors import NotBrowsable, NotFound, PalermoError
from palermo.history.series import Window
from palermo.history.statistics import Rates
from palermo.inspector.inspector import Inspector
from palermo.inspector.problems import WORST_FIRST, mixed, queue_problem, resting_queues
from palermo.inspector.queues import unserved_text
from palermo.inspector.rates import Sample, Samples, Snapshot
from palermo.jobs.redaction import masked_worker
from palermo.webui import tuning
from palermo.webui.failed.failed_jobs import FailedJobs
from palermo.webui.site import Site
from palermo.webui.state.journal_views import journal_views
from palermo.webui.state.refreshing import Refreshing
from palermo.webui.state.trouble import SeenTrouble
from palermo.webui.state.usage import WorkerUsage
from palermo.webui.state.waiting import WaitingHistory, WaitingJobs

log = logging.getLogger("palermo.webui")


class QueueSummary(Struct, frozen=True, kw_only=True):
    name: str
    pending: int
    in_progress: int
    workers: int
    paused: bool
    #: Whether jobs are waiting and none of its workers takes jobs, because they are quiet, paused or stopping.
    resting: bool
    #: Whether it contains failed jobs.
    failed: bool
    #: Since when its oldest job has been waiting, in ISO 8601; None if no job is, or the queue can't be read.
    oldest: str | None
    #: None for queues of failed jobs, and if unknown.
    rates: Rates | None


class QueuePage(Struct, frozen=True, kw_only=True):
    rows: list[QueueSummary]
    #: The queues of failed jobs, shown last on each page.
    failed: list[QueueSummary]
    #: The page number, starting at 1.
    number: int
    limit: int
    #: Number of queues on all pages, and of those with failed jobs.
    total: int
    total_failed: int


class Totals(Struct, frozen=True, kw_only=True):
    """Sums over all queues and all workers."""

    pending: int
    in_progress: int
    failed: int
    #: The number of workers that answer.
    workers: int
    slots: int
    busy: int
    #: A text about workers that don't answer, or "".
    silent: str


class LiveState:
    def __init__(
        self,
        inspector: Inspector,
        *,
        stop: threading.Event,
        hidden: Sequence[str] = (),
        patience: float,
        reads_failed: Callable[[], bool],
        rates: Callable[[Iterable[str]], Mapping[str, Rates]],
    ) -> None:
        """`hidden` contains the patterns of names whose values are masked in running jobs' arguments.

        `rates` returns the known rates of queues. `patience` and `reads_failed` are as in Sampler.
        """
        self.sampler = Sampler(inspector, stop=stop, hidden=hidden, patience=patience, reads_failed=reads_failed)
        self.oldest = OldestJobs(inspector, patience=patience)
        self._rates = rates
        #: Number of pages with an open stream. Used only by the event loop.
        self.streams = 0

    def snapshot(self, max_age: float = tuning.BRIEF) -> Snapshot:
        """Return queues and workers, at most `max_age` seconds old. Raises BrokerError."""
        return self.sampler.snapshot(max_age)

    def is_served(self, queue: str) -> bool:
        """Return whether a worker that answers takes jobs from this queue. Raises BrokerError."""
        return not unserved_text(self.snapshot(), queue)

    def queue_summary(self, snapshot: Snapshot, row: Row) -> QueueSummary:
        return self._summaries([row], self.oldest.of([row]), resting_queues([row], snapshot.workers))[0]

    def queue_page(
        self, snapshot: Snapshot, *, name: str = "", number: int = 1, limit: int = tuning.MANY, waiting: bool = False
    ) -> QueuePage:
        """Return a page of the queues whose names contain the text: first those with a problem, then the others, by
        name.

        At most half of a page shows queues with problems, unless there are no others with workers. The order doesn't
        depend on the counts, because rows would keep changing places. `waiting` selects only queues with waiting
        jobs.
        """
        known, wanted = ages(self.oldest.known(), snapshot.at), name.casefold()

        resting = resting_queues(snapshot.queues, snapshot.workers)

        def order(row: Row) -> int:
            problem = queue_problem(row, known.get(row["name"]), resting, all_paused=snapshot.all_paused)
            return len(WORST_FIRST) if problem is None else WORST_FIRST.index(problem)

        # Rows are sorted by name, and sorting keeps that order among equals.
        rows = [row for row in snapshot.queues if wanted in row["name"].casefold() and (row["pending"] or not waiting)]
        failed: list[Row] = [row for row in rows if is_failed(row["name"]) and not waiting]
        ordered = sorted((row for row in rows if not is_failed(row["name"])), key=order)
        jobs = mixed(ordered, order, page=limit, most=limit // 2)
        failed.sort(key=lambda row: not row["pending"])
        oldest = self.oldest.of(jobs)
        return QueuePage(
            rows=self._summaries(jobs[(number - 1) * limit : number * limit], oldest, resting),
            failed=self._summaries(failed[:limit], oldest, resting),
            number=number,
            limit=limit,
            total=len(jobs),
            total_failed=len(failed),
        )

    def _summaries(
        self, rows: Sequence[Row], oldest: Mapping[str, str | None], resting: Container[str]
    ) -> list[QueueSummary]:
        rates = self._rates([row["name"] for row in rows if not is_failed(row["name"])])
        return [
            QueueSummary(
                **{name: row[name] for name in ("name", "pending", "in_progress", "workers", "paused")},
                resting=row["name"] in resting,
                failed=is_failed(row["name"]),
                oldest=oldest.get(row["name"]),
                rates=rates.get(row["name"]),
            )
            for row in rows
        ]


class OldestJobs:
    """Tracks when the oldest job of each queue started waiting, by periodically reading the first message."""

    def __init__(self, inspector: Inspector, *, patience: float) -> None:
        """`patience` is how long a page waits for queues to be read, in seconds."""
        self._inspector, self._patience = inspector, patience
        self._known: dict[str, tuple[float, str | None]] = {}
        #: Held only for a moment, because error pages count problems based on this data.
        self._lock = threading.Lock()
        #: The queues to read, which were requested last.
        self._asked_for: list[str] = []
        self._reading = Refreshing(self._read)

    def of(self, rows: Iterable[Row]) -> dict[str, str | None]:
        """Return when each queue's oldest job started waiting; None if the queue can't be read.

        Omits empty queues, queues of failed jobs, and those that couldn't be read within `patience`.
        """
        waits = {row["name"]: row["pending"] > 0 and not is_failed(row["name"]) for row in rows}
        waiting = [name for name in waits if waits[name]]
        now = time.monotonic()
        with self._lock:
            self._known = {
                name: known for name, known in self._known.items() if waits.get(name, now - known[0] <= tuning.MINUTE)
            }
        if self._stale(waiting):
            self._asked_for = waiting
            with suppress(TimeoutError):
                self._reading.get(0, wait=self._patience)
        known = self.known()
        return {name: known[name] for name in waiting if name in known}

    def known(self) -> dict[str, str | None]:
        """Like `of`, for all known queues without reading any."""
        with self._lock:
            return {name: since for name, (_, since) in self._known.items()}

    def _read(self) -> None:
        stale = self._stale(self._asked_for)[: tuning.SOME]
        with ThreadPoolExecutor(tuning.AT_ONCE) as pool:
            # Reading them one by one took 250 ms on RabbitMQ, most of it waiting for answers.
            for name, since in zip(stale, pool.map(self._oldest, stale), strict=True):
                with self._lock:
                    self._known[name] = (time.monotonic(), since)

    def _stale(self, queues: Iterable[str]) -> list[str]:
        """Return the queues to be read, starting with the one read longest ago."""
        now = time.monotonic()
        with self._lock:
            read = {name: self._known[name][0] if name in self._known else -math.inf for name in queues}
        return sorted((name for name in read if now - read[name] > tuning.RECENT), key=read.__getitem__)

    def _oldest(self, queue: str) -> str | None:
        try:
            rows = self._inspector.jobs.list(queue, limit=1).rows
        except (NotFound, NotBrowsable):
            return None
        return waits_since(rows[0]) if rows else None


def ages(oldest: Mapping[str, str | None], now: float) -> dict[str, float | None]:
    """Return how long each queue's oldest job has been waiting at `now` (Unix time), in seconds; None if unknown."""
    return {name: None if since is None else now - parse_instant(since) for name, since in oldest.items()}


def live_state(site: Site) -> LiveState:
    """Return a site's live state, created on first use."""
    patience = tuning.GLANCE * site.client.settings.publish_timeout

    def reads_failed() -> bool:
        found = site.existing(FailedJobs)
        return found is not None and found.view.state.reading

    return site.component(
        LiveState,
        lambda: LiveState(
            site.inspector,
            stop=site.stopping,
            hidden=site.hidden,
            patience=patience,
            reads_failed=reads_failed,
            rates=lambda queues: journal_views(site).rates(queues),
        ),
    )


def invalidate_snapshot(site: Site) -> None:
    """Discard the site's snapshot after a user's change, so that the next page asks the broker."""
    found = site.existing(LiveState)
    if found is not None:
        found.sampler.invalidate()


def totals_of(snapshot: Snapshot) -> Totals:
    """Sum up the queues and workers of a snapshot."""
    failed = _failed(snapshot)
    return Totals(
        pending=sum(row["pending"] for row in snapshot.queues) - failed,
        in_progress=sum(row["in_progress"] for row in snapshot.queues),
        failed=failed,
        workers=sum(worker["state"] != SILENT for worker in snapshot.workers),
        slots=sum(worker["slots"] or 0 for worker in snapshot.workers),
        busy=sum(len(worker["jobs"]) for worker in snapshot.workers),
        silent=silent_text(snapshot.workers),
    )


def running_jobs(snapshot: Snapshot, queue: str | None = None) -> list[Row]:
    """Return the running jobs, longest running first, each with its worker's id and whether that worker is silent."""
    found = [
        {**job, "worker": worker["id"], "silent": worker["state"] == SILENT}
        for worker in snapshot.workers
        for job in worker["jobs"]
        if queue is None or job["queue"] == queue
    ]
    return sorted(found, key=lambda job: job["started_at"] or "")


def failed_count(site: Site) -> int | None:
    """Return the number of failed jobs in the last snapshot, for the navigation, without asking the broker."""
    found = site.existing(LiveState)
    snapshot = found.sampler.last if found else None
    return _failed(snapshot) if snapshot else None


def _failed(snapshot: Snapshot) -> int:
    return sum(row["pending"] for row in snapshot.queues if is_failed(row["name"]))


# -- the sampler


class Sampler:
    """Samples a broker's queues and workers, starting with the first `snapshot`. Thread-safe.

    Rows of queues and workers come from here, so that any number of readers cause no more load on the broker than one.
    So does the chart of the last minutes, since the journal covers longer times but with a delay.

    Law: a sample is shown for ten times as long as it took, up to two seconds. RabbitMQ takes 25 µs per queue. With
    thousands of queues, pages show a state that is a second or two old instead of waiting; while a user is watching,
    the next sample is ready before the last one is too old.
    """

    def __init__(
        self,
        inspector: Inspector,
        *,
        stop: threading.Event,
        hidden: Sequence[str] = (),
        patience: float,
        reads_failed: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """After `stop` is set, samples are taken only on request.

        `patience` is the maximum number of seconds that a request waits for a new sample if the last one isn't stale.
        `reads_failed` returns whether this process is reading the failed jobs, in which case RabbitMQ counts too few of
        them, and the previous counts are shown.
        """
        self._reads_failed = reads_failed
        self._patience = patience
        self._hidden = hidden
        self._inspector = inspector
        self._stop = stop
        self._clock = clock
        self._lock = threading.Lock()
        self._samples = Samples(tuning.WINDOW)
        self._versions = itertools.count(1)
        self._waiting = WaitingHistory()
        #: When each worker was last seen, in Unix seconds.
        self.seen: dict[str, float] = {}
        self.usage = WorkerUsage(inspector)
        self._last_request = 0.0
        self._sample = Refreshing(self._read, slow=tuning.SLOW, longest=tuning.FRESH, stored=self._store, clock=clock)
        self._thread: threading.Thread | None = None

    def snapshot(self, max_age: float = tuning.BRIEF, *, by_person: bool = True) -> Snapshot:
        """Return queues and workers, at most `max_age` seconds old. If the broker doesn't answer soon, return the last
        ones.

        The snapshot may be older if a sample takes long (see the class), unless `max_age` is 0. A request `by_person`
        causes more frequent samples. Raises BrokerError.
        """
        if by_person:
            self._last_request = self._clock()
        self._start_thread()
        # A sample may take up to ten seconds while many jobs or records are read for the first time.
        return self._sample.get(max_age, patience=self._patience)

    def trouble(self) -> SeenTrouble | None:
        """Return the broker's problem in the last sample, without waiting. Starts sampling."""
        self._last_request = self._clock()
        self._start_thread()
        return SeenTrouble.of_sample(self._sample.error, self._sample.waiting, self.last)

    def invalidate(self) -> None:
        """Let the next call ask the broker, because a user has changed something."""
        self._sample.clear()

    def samples(self) -> list[Sample]:
        """Return the samples of the last ten minutes, oldest first."""
        with self._lock:
            return self._samples.recent(self._clock())

    def waiting(self, window: Window, queue: str | None = None) -> WaitingJobs | None:
        """Return the number of waiting jobs in a queue, or in all, over this window; None if unknown."""
        with self._lock:
            return self._waiting.of(window, self._clock(), queue)

    def throughput(self) -> tuple[float | None, float | None]:
        """Return jobs processed and failed per second over the last half minute."""
        with self._lock:
            return self._samples.throughput(self._clock())

    @property
    def last(self) -> Snapshot | None:
        """The last snapshot, regardless of its age."""
        return self._samples.last

    def _start_thread(self) -> None:
        with self._lock:
            if self._stop.is_set() or (self._thread is not None and self._thread.is_alive()):
                return
            self._thread = threading.Thread(target=self._sample_regularly, name="palermo-web-sampler", daemon=True)
            self._thread.start()

    def _sample_regularly(self) -> None:
        unavailable = False
        while not self._stop.wait(self.due_in() or self._interval):
            try:
                if not self.due_in():
                    self._sample.begin(0).result()
                # Without the lock, because a worker may take a second to answer, and pages shouldn't wait for that.
                if self.last is not None:
                    self.usage.ask(self.last.workers, self._clock())
                unavailable = False
            except PalermoError as error:
                if not unavailable:
                    log.warning("cannot read the state of the broker, retrying error=%s", error)
                unavailable = True

    def due_in(self) -> float:
        """Return the seconds until the next periodic sample."""
        age = self._clock() - self.last.at if self.last is not None else math.inf
        return self._interval - age if 0 <= age < self._interval else 0.0

    @property
    def _interval(self) -> float:
        """Return the seconds between periodic samples."""
        if self._clock() - self._last_request >= tuning.MINUTE:
            return tuning.RECENT
        shown = self._sample.shown_for
        if shown <= tuning.BRIEF:
            return tuning.FRESH
        # The next sample may take twice as long as the last one.
        return shown - min(2 * self._sample.took, shown / 2)

    def _store(self, fresh: Snapshot) -> Snapshot:
        """Add a sample to those of the last minutes, and return it with its version."""
        with self._lock:
            fresh = replace(fresh, version=self._version_of(fresh))
            self._samples.add(fresh)
            self._waiting.add(fresh.queues, fresh.at)
            since = fresh.at - tuning.DAY
            self.seen = {id: at for id, at in self.seen.items() if at > since}
            self.seen |= {row["id"]: fresh.at for row in fresh.workers}
        return fresh

    def _read(self) -> Snapshot:
        reads_failed = self._reads_failed()
        found = self._inspector.snapshot()
        queues, last = found.queues, self._samples.last
        if last is not None and (reads_failed or self._reads_failed()):
            before = {row["name"]: row["pending"] for row in last.queues if is_failed(row["name"])}
            queues = [{**row, "pending": max(row["pending"], before.get(row["name"], 0))} for row in queues]
        workers = [masked_worker(row, self._hidden) for row in found.workers]
        return replace(found, at=self._clock(), queues=queues, workers=workers)

    def _version_of(self, fresh: Snapshot) -> int:
        """Return the last snapshot's version if nothing has changed, otherwise a new one. The caller holds the lock.

        The first answer after an outage is a change too, because pages may show a banner about the outage.
        """
        last = self._samples.last
        if (
            last is not None
            and SeenTrouble.of_sample(self._sample.error, self._sample.took, None) is None
            and _shown(last) == _shown(fresh)
        ):
            return last.version
        return next(self._versions)


def _shown(snapshot: Snapshot) -> tuple[object, ...]:
    """Return the displayed values of a snapshot, without the time of each worker's last answer."""
    workers = [{**row, "last_seen": None} for row in snapshot.workers]
    return snapshot.queues, workers, snapshot.all_paused, snapshot.trouble
