"""Guessing passwords, slowed: after some failures the next attempt has to wait, longer each time."""

from collections import OrderedDict
from collections.abc import Callable

#: How many are remembered; the oldest is forgotten for a new one.
_MAX_KEYS = 10_000

#: Seconds without a failure after which all is forgotten.
_FORGET = 900.0

_MAX_WAIT = 60.0


class Throttle:
    """Counts failures by key: the first `free` ones cost nothing, then 1, 2, 4 … at most 60 seconds each."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        #: By key: how many failed, and when the last of them did.
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def wait(self, key: str, free: int) -> float:
        """Seconds until the next attempt with this key will be looked at."""
        count, last = self._known(key)
        if count == 0 or count < free:
            return 0.0
        return max(0.0, last + min(_MAX_WAIT, 2.0 ** min(count - free, 10)) - self._clock())

    def failed(self, key: str) -> None:
        """An attempt began, and counts until it succeeds: so that many at once are no way round."""
        count, _ = self._known(key)
        self._failures[key] = (count + 1, self._clock())
        self._failures.move_to_end(key)
        if len(self._failures) > _MAX_KEYS:
            self._failures.popitem(last=False)

    def succeeded(self, key: str) -> None:
        self._failures.pop(key, None)

    def _known(self, key: str) -> tuple[int, float]:
        count, last = self._failures.get(key, (0, 0.0))
        return (0, 0.0) if self._clock() - last > _FORGET else (count, last)
