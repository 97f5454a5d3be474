"""The sampler of queues and workers: this process counts them itself, for the pages' view of the last minutes.

Its memory is bounded and may be thrown away: it starts empty with the process, and two web processes have two of
them. Rates and the chart of the last minutes come from here; the journal covers longer times, with a delay. The rows
of queues and workers come from here too, so that any number of readers load the broker no more than one.
"""

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable

from palermo.errors import PalermoError
from palermo.inspector.inspector import Inspector
from palermo.inspector.rates import Rates, Sample, Samples, Snapshot

log = logging.getLogger("palermo.webui")

#: Seconds between two samples while a user looks, and while nobody looks.
VIEWED_INTERVAL, IDLE_INTERVAL = 2.0, 10.0

#: Seconds without a request for a page after which nobody looks.
_VIEWED = 60.0

#: Seconds that samples are kept: the time that the chart shows.
WINDOW = 600.0


class Sampler:
    """Samples one broker, from the first `snapshot` on. Safe to share between threads."""

    def __init__(self, inspector: Inspector, *, stop: threading.Event, clock: Callable[[], float] = time.time) -> None:
        """After `stop` is set it no longer samples by itself, but still answers."""
        self._inspector = inspector
        self._stop = stop
        self._clock = clock
        self._lock = threading.Lock()
        self._samples = Samples(WINDOW)
        self._last_request = 0.0
        self._is_invalid = False
        self._thread: threading.Thread | None = None

    def snapshot(self, max_age: float = 0.5, *, by_person: bool = True) -> Snapshot:
        """Queues and workers, at most `max_age` seconds old. A request `by_person` makes the sampler sample more often.

        Raises BrokerError.
        """
        if by_person:
            self._last_request = self._clock()
        self._start_thread()
        with self._lock:
            last = self._samples.last
            if last is not None and not self._is_invalid and 0 <= self._clock() - last.at <= max_age:
                return last
            return self._sample()

    def invalidate(self) -> None:
        """Have the next call ask the broker, however new the last snapshot is: a user has changed something."""
        with self._lock:
            self._is_invalid = True

    def samples(self) -> list[Sample]:
        """The samples of the last ten minutes, oldest first."""
        with self._lock:
            return self._samples.recent(self._clock())

    def rates(self, queue: str) -> Rates:
        """The rates of jobs that came into a queue and left it, over the last half minute."""
        with self._lock:
            return self._samples.rates(queue, self._clock())

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
        while True:
            viewed = self._clock() - self._last_request < _VIEWED
            if self._stop.wait(VIEWED_INTERVAL if viewed else IDLE_INTERVAL):
                return
            try:
                with self._lock:
                    if self.last is None or self._clock() - self.last.at >= VIEWED_INTERVAL / 2:
                        self._sample()
                unavailable = False
            except PalermoError as error:
                if not unavailable:
                    log.warning("cannot sample the broker, and go on trying error=%s", error)
                unavailable = True

    def _sample(self) -> Snapshot:
        """Ask the broker. The caller holds the lock, so that simultaneous requests share one sample."""
        queues, workers = self._inspector.queues(), self._inspector.workers()
        now = self._clock()
        text = json.dumps([queues, workers], sort_keys=True)
        version = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        fresh = Snapshot(at=now, queues=queues, workers=workers, version=version)
        self._samples.add(fresh)
        # Only now: if the broker did not answer, the last snapshot is still invalid.
        self._is_invalid = False
        return fresh
