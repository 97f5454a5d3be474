"""What the pages know of the last minutes: counts that this process samples by itself.

A bounded view that may be thrown away: it begins anew when the process does, and two web
processes have two of them. The journal tells of longer times, and later; rates and the chart of the last minutes
come from here; the queues' and workers' rows do too, so that any number of readers cost the
broker no more than one.
"""

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable

from palermo.errors import PalermoError
from palermo.inspector import Inspector
from palermo.sampling import Rates, Sample, Samples, Snapshot

log = logging.getLogger("palermo.webui")

#: Seconds between two samples while somebody looks, and while nobody does.
WATCHED, UNWATCHED = 2.0, 10.0

#: Nobody looks if no page was asked for in so many seconds.
_FORGOTTEN = 60.0

#: How long samples are kept: what the chart shows, in seconds.
KEPT = 600.0


class Sampler:
    """Samples one broker, from the first question on. Safe to share between threads."""

    def __init__(self, inspector: Inspector, *, stop: threading.Event, clock: Callable[[], float] = time.time) -> None:
        """Once `stop` is set it samples no more by itself, and still answers."""
        self._inspector = inspector
        self._stop = stop
        self._clock = clock
        self._lock = threading.Lock()
        self._samples = Samples(KEPT)
        self._asked = 0.0
        self._outdated = False
        self._thread: threading.Thread | None = None

    def snapshot(self, max_age: float = 0.5, *, by_person: bool = True) -> Snapshot:
        """Queues and workers as they are, or were `max_age` seconds ago; for a person it is sampled more often.

        Raises BrokerError.
        """
        if by_person:
            self._asked = self._clock()
        self._run()
        with self._lock:
            last = self._samples.last
            if last is not None and not self._outdated and 0 <= self._clock() - last.at <= max_age:
                return last
            return self._sample()

    def outdate(self) -> None:
        """Somebody has changed what was sampled: the next question asks the broker."""
        with self._lock:
            self._outdated = True

    def samples(self) -> list[Sample]:
        """Those of the last ten minutes, oldest first."""
        with self._lock:
            return self._samples.recent(self._clock())

    def rates(self, queue: str) -> Rates:
        """What came into a queue and left it, by the last half minute."""
        with self._lock:
            return self._samples.rates(queue, self._clock())

    def throughput(self) -> tuple[float | None, float | None]:
        """Jobs processed and failed a second, by the last half minute."""
        with self._lock:
            return self._samples.throughput(self._clock())

    @property
    def last(self) -> Snapshot | None:
        """What was sampled last, however long ago."""
        return self._samples.last

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
                    if self.last is None or self._clock() - self.last.at >= WATCHED / 2:
                        self._sample()
                away = False
            except PalermoError as error:
                if not away:
                    log.warning("cannot sample the broker, and go on trying error=%s", error)
                away = True

    def _sample(self) -> Snapshot:
        """Ask the broker; with the lock held, so that questions of one moment are one."""
        self._outdated = False
        queues, workers = self._inspector.queues(), self._inspector.workers()
        now = self._clock()
        text = json.dumps([queues, workers], sort_keys=True)
        version = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        fresh = Snapshot(at=now, queues=queues, workers=workers, version=version)
        self._samples.add(fresh)
        return fresh
