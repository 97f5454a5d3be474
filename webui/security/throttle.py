"""A throttle against guessing passwords: after some failures each next attempt has to wait longer."""

from collections import OrderedDict
from collections.abc import Callable

#: The most keys that are remembered. A new one replaces the oldest.
_MAX_KEYS = 10_000

#: Seconds without a failure after which a key's failures are forgotten.
_FAILURES_KEPT = 900.0

_MAX_WAIT = 60.0


class Throttle:
    """Counts failures by key. The first `free` ones cause no wait, then each causes 1, 2, 4 … at most 60 seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        #: The number of failures and the time of the last one, by key.
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def wait(self, key: str, free: int) -> float:
        """Seconds until an attempt with this key is allowed."""
        count, last = self._known(key)
        if count == 0 or count < free:
            return 0.0
        return max(0.0, last + min(_MAX_WAIT, 2.0 ** min(count - free, 10)) - self._clock())

    def failed(self, key: str) -> None:
        """Count an attempt as failed until it succeeds. So many attempts at once cannot get round the wait."""
        count, _ = self._known(key)
        self._failures[key] = (count + 1, self._clock())
        self._failures.move_to_end(key)
        if len(self._failures) > _MAX_KEYS:
            self._failures.popitem(last=False)

    def succeeded(self, key: str) -> None:
        """Forget the failures of this key."""
        self._failures.pop(key, None)

    def take_back(self, key: str) -> None:
        """Count one failure less, because the attempt succeeded. Earlier failures stay counted."""
        count, last = self._known(key)
        if count > 1:
            self._failures[key] = (count - 1, last)
        else:
            self._failures.pop(key, None)

    def _known(self, key: str) -> tuple[int, float]:
        count, last = self._failures.get(key, (0, 0.0))
        return (0, 0.0) if self._clock() - last > _FAILURES_KEPT else (count, last)
