"""What the pages know of the last minutes: counts that this process samples by itself.

A bounded view that may be thrown away: it begins anew when the process does, and two web
processes have two of them. Until a journal keeps what happened, rates and the chart come
from here; the queues' and workers' rows do too, so that any number of readers cost the
broker no more than one.
"""

import hashlib
import json
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from palermo.errors import PalermoError
from palermo.inspector import Inspector
from palermo.rows import Row

log = logging.getLogger("palermo.webui")

#: Seconds between two samples while somebody looks, and while nobody does.
WATCHED, UNWATCHED = 2.0, 10.0

#: Nobody looks if no page was asked for in so many seconds.
_FORGOTTEN = 60.0

#: How long samples are kept: what the chart shows, and what rates are taken over.
KEPT, RATED = 600.0, 30.0

#: Samples at most, however often they are taken.
_MOST = 1_200


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What was counted between the sample before and this one."""

    #: Unix seconds, and how many of them it covers.
    at: float
    span: float
    #: Jobs that ended, and how many of them failed.
    processed: int
    failed: int
    #: Jobs that came into each queue and left it, as far as counts tell.
    came: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All queues and workers at one instant."""

    #: Unix seconds.
    at: float
    queues: list[Row]
    workers: list[Row]
    #: The same text as long as nothing has changed.
    version: str


@dataclass(frozen=True, slots=True)
class Rates:
    """Jobs a second that came in and went out; None where too little was seen to tell."""

    come: float | None
    leave: float | None


class Sampler:
    """Samples one broker, from the first question on. Safe to share between threads."""

    def __init__(self, inspector: Inspector, *, stop: threading.Event, clock: Callable[[], float] = time.time) -> None:
        """Once `stop` is set it samples no more by itself, and still answers."""
        self._inspector = inspector
        self._stop = stop
        self._clock = clock
        self._lock = threading.Lock()
        self._samples: deque[Sample] = deque(maxlen=_MOST)
        self._last: Snapshot | None = None
        self._asked = 0.0
        self._thread: threading.Thread | None = None

    def snapshot(self, max_age: float = 0.5, *, by_person: bool = True) -> Snapshot:
        """Queues and workers as they are, or were `max_age` seconds ago; for a person it is sampled more often.

        Raises BrokerError.
        """
        if by_person:
            self._asked = self._clock()
        self._run()
        with self._lock:
            last = self._last
            if last is not None and 0 <= self._clock() - last.at <= max_age:
                return last
            return self._sample()

    def samples(self) -> list[Sample]:
        """Those of the last ten minutes, oldest first."""
        since = self._clock() - KEPT
        with self._lock:
            return [sample for sample in self._samples if sample.at >= since]

    def rates(self, queue: str) -> Rates:
        """What came into a queue and left it, by the last half minute."""
        seen = self._recent()
        span = sum(sample.span for sample in seen)
        if span < 1:
            return Rates(None, None)
        return Rates(sum(each.came[queue] for each in seen) / span, sum(each.left[queue] for each in seen) / span)

    def throughput(self) -> tuple[float | None, float | None]:
        """Jobs processed and failed a second, by the last half minute."""
        seen = self._recent()
        span = sum(sample.span for sample in seen)
        if span < 1:
            return None, None
        return sum(each.processed for each in seen) / span, sum(each.failed for each in seen) / span

    @property
    def last(self) -> Snapshot | None:
        """What was sampled last, however long ago."""
        return self._last

    def _recent(self) -> list[Sample]:
        since = self._clock() - RATED
        return [sample for sample in self.samples() if sample.at >= since]

    def _run(self) -> None:
        with self._lock:
            if self._stop.is_set() or (self._thread is not None and self._thread.is_alive()):
                return
            self._thread = threading.Thread(target=self._go_on, name="palermo-web-sampler", daemon=True)
            self._thread.start()

    def _go_on(self) -> None:
        away = False
        while True:
            watched = self._clock() - self._asked < _FORGOTTEN
            if self._stop.wait(WATCHED if watched else UNWATCHED):
                return
            try:
                with self._lock:
                    if self._last is None or self._clock() - self._last.at >= WATCHED / 2:
                        self._sample()
                away = False
            except PalermoError as error:
                if not away:
                    log.warning("cannot sample the broker, and go on trying error=%s", error)
                away = True

    def _sample(self) -> Snapshot:
        """Ask the broker; with the lock held, so that questions of one moment are one."""
        queues, workers = self._inspector.queues(), self._inspector.workers()
        now = self._clock()
        text = json.dumps([queues, workers], sort_keys=True)
        version = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        fresh = Snapshot(at=now, queues=queues, workers=workers, version=version)
        if self._last is not None and now > self._last.at:
            self._samples.append(difference(self._last, fresh))
        self._last = fresh
        return fresh


def difference(before: Snapshot, after: Snapshot) -> Sample:
    """What must have happened between two snapshots.

    Workers count what they processed over all their queues, so what left a queue is known
    for jobs that were seen running and are gone, and estimated for those that came and went
    between two looks: see `_shared`. What came in is what went out and what is more.
    """
    known = {row["id"]: row for row in before.workers}
    processed = failed = 0
    left: Counter[str] = Counter()
    held = {row["name"]: row["pending"] + row["in_progress"] for row in before.queues}
    more = {row["name"]: row["pending"] + row["in_progress"] - held.get(row["name"], 0) for row in after.queues}
    for worker in after.workers:
        earlier = known.get(worker["id"])
        if earlier is None or earlier["started_at"] != worker["started_at"]:
            # What a worker did before it was first seen is not of this moment, unless it is that young.
            earlier = {**worker, "processed": 0, "failed": 0, "jobs": []} if _is_young(worker, before) else worker
        done = max(0, worker["processed"] - earlier["processed"])
        processed += done
        failed += max(0, worker["failed"] - earlier["failed"])
        if done:
            left.update(_shared(done, earlier, worker, more))
    came: Counter[str] = Counter()
    for name, increase in more.items():
        # Fewer than the workers account for: the rest was cleared or requeued by someone.
        left[name] = max(left[name], -increase)
        came[name] = increase + left[name]
    return Sample(at=after.at, span=after.at - before.at, processed=processed, failed=failed, came=+came, left=+left)


def _is_young(worker: Row, before: Snapshot) -> bool:
    started = worker["started_at"]
    return started is not None and started > time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(before.at))


def _shared(done: int, before: Row, after: Row, more: Mapping[str, int]) -> Counter[str]:
    """`done` jobs of one worker by queue: first those that ended for certain, then the rest as those that changed."""
    was, now = ({job["id"]: job["queue"] for job in row["jobs"]} for row in (before, after))
    ended = Counter(queue for id, queue in was.items() if id not in now)
    rest = done - ended.total()
    if rest <= 0:
        return ended
    changed = ended + Counter(queue for id, queue in now.items() if id not in was)
    if not changed:
        served = [name for name in after["queues"] if name in more]
        # Nothing seen to move: the one queue it serves, or of several the one that shrank most.
        changed = Counter(sorted(served, key=lambda name: more[name])[:1])
    total = changed.total()
    if not total:
        return ended
    shares = Counter({name: rest * count // total for name, count in changed.items()})
    shares[changed.most_common(1)[0][0]] += rest - shares.total()
    return ended + shares
