"""What carries events, as pages and API show it: asked for now and then, whoever looks how often."""

import threading
import time
from collections.abc import Callable

from palermo.inspector import Inspector
from palermo.rows import Row
from palermo.webui.site import Visit

#: Seconds for which what was seen is shown again.
_FOR = 2.0

_lock = threading.Lock()


class Wired:
    """The wiring of one site. Safe to share between threads."""

    def __init__(self, inspector: Inspector, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._inspector = inspector
        self._clock = clock
        self._turn = threading.Lock()
        self._seen: tuple[float, Row] | None = None

    def row(self) -> Row:
        """See Inspector.wiring. Raises BrokerError."""
        with self._turn:
            if self._seen is None or self._clock() - self._seen[0] > _FOR:
                row = self._inspector.wiring()
                self._seen = (self._clock(), row)
            return self._seen[1]

    def forget(self) -> None:
        """Something was changed from here."""
        self._seen = None


def wired(visit: Visit) -> Wired:
    """That of the site which is visited; made when first asked for."""
    with _lock:
        found = visit.site.kept.get("wired")
        if found is None:
            found = visit.site.kept["wired"] = Wired(visit.site.inspector)
        assert isinstance(found, Wired)
        return found
