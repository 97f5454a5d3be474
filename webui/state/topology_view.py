"""The event topology as the pages and the API show it. It is cached, so that many readers cause few requests."""

import threading
import time
from collections.abc import Callable

from palermo.contract.rows import Row
from palermo.inspector.inspector import Inspector
from palermo.webui.base.site import Site

#: Seconds that the topology is cached.
_CACHED = 2.0


class TopologyView:
    """The cached event topology of one site. Safe to share between threads."""

    def __init__(self, inspector: Inspector, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._inspector = inspector
        self._clock = clock
        self._lock = threading.Lock()
        self._cached: tuple[float, Row] | None = None

    def row(self) -> Row:
        """The topology, at most 2 seconds old: see Inspector.wiring. Raises BrokerError."""
        with self._lock:
            if self._cached is None or self._clock() - self._cached[0] > _CACHED:
                row = self._inspector.wiring()
                self._cached = (self._clock(), row)
            return self._cached[1]

    def clear(self) -> None:
        """Empty the cache, after this process has changed the topology."""
        self._cached = None


def topology_view(site: Site) -> TopologyView:
    """The event topology of a site; made by the first call."""
    return site.component(TopologyView, lambda: TopologyView(site.inspector))
