"""The live state for the pages: the sampled state of the broker, and the age of each queue's oldest job.

All of it is bounded and temporary: it starts empty with the process, and each web process has its own.
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
    """A queue as the pages show it."""

    name: str
    pending: int
    in_progress: int
    workers: int
    paused: bool
    #: Whether jobs wait in it and none of its workers takes jobs: they are quiet, paused or stopping.
    resting: bool
    #: Whether it holds failed jobs.
    failed: bool
    #: Since when its oldest job has waited, ISO 8601; None if no job waits, or if the queue cannot be read.
    oldest: str | None
    #: None for queues of failed jobs, and if the journal does not know them.
    rates: Rates | None


class QueuePage(Struct, frozen=True, kw_only=True):
    """One page of the queues."""

    rows: list[QueueSummary]
    #: Those of failed jobs, which are below the others on each page.
    failed: list[QueueSummary]
    #: Which page it is, from 1.
    number: int
    limit: int
    #: How many queues there are on all pages, and how many of failed jobs.
    total: int
    total_failed: int


class Totals(Struct, frozen=True, kw_only=True):
    """Sums over all queues and all workers."""

    pending: int
    in_progress: int
    failed: int
    #: Those that answer.
    workers: int
    slots: int
    busy: int
    #: A text about the workers that do not answer; "" if all do.
    silent: str


class LiveState:
    """The live state of one site. It lives as long as the site."""

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
        """`hidden` has the patterns of names whose values are masked in the arguments of running jobs.

        `rates` gives the rates of queues, as far as they are known. `patience` and `reads_failed` are as in Sampler.
        """
        self.sampler = Sampler(inspector, stop=stop, hidden=hidden, patience=patience, reads_failed=reads_failed)
        self.oldest = OldestJobs(inspector, patience=patience)
        self._rates = rates
        #: How many pages have a stream open. Only the event loop touches it.
        self.streams = 0

    def snapshot(self, max_age: float = tuning.BRIEF) -> Snapshot:
        """Queues and workers, at most `max_age` seconds old. Raises BrokerError."""
        return self.sampler.snapshot(max_age)

    def is_served(self, queue: str) -> bool:
        """Whether a worker that answers takes jobs from this queue. Raises BrokerError."""
        return not unserved_text(self.snapshot(), queue)

    def queue_summary(self, snapshot: Snapshot, row: Row) -> QueueSummary:
        """A queue of a snapshot as pages show it."""
        return self._summaries([row], self.oldest.of([row]), resting_queues([row], snapshot.workers))[0]

    def queue_page(
        self, snapshot: Snapshot, *, name: str = "", number: int = 1, limit: int = tuning.MANY, waiting: bool = False
    ) -> QueuePage:
        """A page of the queues whose names contain the text: first those with a problem, then the others, by name.

        At most half of a page is queues in trouble, while there are others that have a worker. The order does not
        follow the counts, because these change all the time and rows would change places with them. With `waiting`
        only queues in which jobs wait.
        """
        known, wanted = ages(self.oldest.known(), snapshot.at), name.casefold()

        resting = resting_queues(snapshot.queues, snapshot.workers)

        def order(row: Row) -> int:
            problem = queue_problem(row, known.get(row["name"]), resting, all_paused=snapshot.all_paused)
            return len(WORST_FIRST) if problem is None else WORST_FIRST.index(problem)

        # The rows are by name, and sorting keeps that order among those of one place.
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
    """Since when the oldest job of each queue has waited. It reads the first message of a queue now and then."""

    def __init__(self, inspector: Inspector, *, patience: float) -> None:
        """`patience` is how long, in seconds, a page waits for queues to be read."""
        self._inspector, self._patience = inspector, patience
        self._known: dict[str, tuple[float, str | None]] = {}
        #: Held for a moment only: pages of errors count problems by what is known here.
        self._lock = threading.Lock()
        #: The queues to read: those that were asked for last.
        self._asked_for: list[str] = []
        self._reading = Refreshing(self._read)

    def of(self, rows: Iterable[Row]) -> dict[str, str | None]:
        """Since when the oldest job has waited, by queue; None if the queue cannot be read.

        Empty queues and queues of failed jobs are left out, and those that could not be read within `patience`.
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
        """The same, as far as known; no queue is read."""
        with self._lock:
            return {name: since for name, (_, since) in self._known.items()}

    def _read(self) -> None:
        stale = self._stale(self._asked_for)[: tuning.SOME]
        with ThreadPoolExecutor(tuning.AT_ONCE) as pool:
            # One after the other they took 250 ms on RabbitMQ: most of that is waiting for answers.
            for name, since in zip(stale, pool.map(self._oldest, stale), strict=True):
                with self._lock:
                    self._known[name] = (time.monotonic(), since)

    def _stale(self, queues: Iterable[str]) -> list[str]:
        """Those that have to be read, the one that was read longest ago first."""
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
    """How many seconds the oldest job of each queue has waited at this instant, in Unix seconds; None if unknown."""
    return {name: None if since is None else now - parse_instant(since) for name, since in oldest.items()}


def live_state(site: Site) -> LiveState:
    """The live state of a site; made by the first call."""
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
    """Invalidate the site's snapshot, after a user changed something: the next page asks the broker."""
    found = site.existing(LiveState)
    if found is not None:
        found.sampler.invalidate()


def totals_of(snapshot: Snapshot) -> Totals:
    """The sums over the queues and workers of a snapshot."""
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
    """The running jobs, the longest running first, each with its worker's id and whether that is silent."""
    found = [
        {**job, "worker": worker["id"], "silent": worker["state"] == SILENT}
        for worker in snapshot.workers
        for job in worker["jobs"]
        if queue is None or job["queue"] == queue
    ]
    return sorted(found, key=lambda job: job["started_at"] or "")


def failed_count(site: Site) -> int | None:
    """The number of failed jobs in the last snapshot, for the navigation. It does not ask the broker."""
    found = site.existing(LiveState)
    snapshot = found.sampler.last if found else None
    return _failed(snapshot) if snapshot else None


def _failed(snapshot: Snapshot) -> int:
    return sum(row["pending"] for row in snapshot.queues if is_failed(row["name"]))


# -- the sampler


class Sampler:
    """Samples the queues and workers of one broker, from the first `snapshot` on. Safe to share between threads.

    This process counts them itself, for the pages' view of the last minutes. The chart of the last minutes comes from
    here; the journal covers longer times, with a delay. The rows of queues and workers come from here too, so
    that any number of readers load the broker no more than one.

    Law: a sample is shown for ten times as long as it took, for two seconds at most. RabbitMQ takes 25 µs for each
    queue; with thousands of them a page shows a state that is a second or two old, and does not wait: while a user
    looks, the next sample ends before the last one is too old.
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
        """After `stop` is set it no longer samples by itself, but still answers.

        `patience` is how long, in seconds, a request waits for a new sample if there is one that is not too old.
        `reads_failed` says whether this process reads the failed jobs now: RabbitMQ then counts fewer of them, and the
        counts before that are shown.
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
        #: When each worker was seen last, in Unix seconds.
        self.seen: dict[str, float] = {}
        self.usage = WorkerUsage(inspector)
        self._last_request = 0.0
        self._sample = Refreshing(self._read, slow=tuning.SLOW, longest=tuning.FRESH, stored=self._store, clock=clock)
        self._thread: threading.Thread | None = None

    def snapshot(self, max_age: float = tuning.BRIEF, *, by_person: bool = True) -> Snapshot:
        """Queues and workers, at most `max_age` seconds old, if the broker answers soon; else as they were last.

        They may be older if asking takes long (see the class), unless `max_age` is 0. A request `by_person` makes the
        sampler sample more often. Raises BrokerError.
        """
        if by_person:
            self._last_request = self._clock()
        self._start_thread()
        # A sample takes up to ten seconds while many jobs or records are read for the first time.
        return self._sample.get(max_age, patience=self._patience)

    def trouble(self) -> SeenTrouble | None:
        """What is wrong with the broker by the last sample. The broker is sampled from now on, and not waited for."""
        self._last_request = self._clock()
        self._start_thread()
        return SeenTrouble.of_sample(self._sample.error, self._sample.waiting, self.last)

    def invalidate(self) -> None:
        """Have the next call ask the broker, however new the last snapshot is: a user has changed something."""
        self._sample.clear()

    def samples(self) -> list[Sample]:
        """The samples of the last ten minutes, oldest first."""
        with self._lock:
            return self._samples.recent(self._clock())

    def waiting(self, window: Window, queue: str | None = None) -> WaitingJobs | None:
        """How many jobs waited in a queue, or in all, in this window; None if that is not known."""
        with self._lock:
            return self._waiting.of(window, self._clock(), queue)

    def throughput(self) -> tuple[float | None, float | None]:
        """Jobs processed and failed a second, over the last half minute."""
        with self._lock:
            return self._samples.throughput(self._clock())

    @property
    def last(self) -> Snapshot | None:
        """The last snapshot, however old."""
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
                # Without the lock: a worker may take a second to answer, and pages do not wait for that.
                if self.last is not None:
                    self.usage.ask(self.last.workers, self._clock())
                unavailable = False
            except PalermoError as error:
                if not unavailable:
                    log.warning("cannot read the state of the broker, retrying error=%s", error)
                unavailable = True

    def due_in(self) -> float:
        """Seconds until the next sample is due that no page asks for; 0 if it is due now."""
        age = self._clock() - self.last.at if self.last is not None else math.inf
        return self._interval - age if 0 <= age < self._interval else 0.0

    @property
    def _interval(self) -> float:
        """Seconds from the end of a sample to the beginning of the next one that no page asks for."""
        if self._clock() - self._last_request >= tuning.MINUTE:
            return tuning.RECENT
        shown = self._sample.shown_for
        if shown <= tuning.BRIEF:
            return tuning.FRESH
        # The next sample may take twice as long as the last one.
        return shown - min(2 * self._sample.took, shown / 2)

    def _store(self, fresh: Snapshot) -> Snapshot:
        """Add a sample to those of the last minutes. Returns it with its version."""
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
        """The version of the last snapshot if nothing has changed since, else a new one. The caller holds the lock.

        That the broker answers again is a change too: pages may show a banner that says that it is away.
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
    """What pages show of a snapshot, without when each worker was heard of last."""
    workers = [{**row, "last_seen": None} for row in snapshot.workers]
    return snapshot.queues, workers, snapshot.all_paused, snapshot.trouble
