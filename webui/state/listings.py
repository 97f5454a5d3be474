"""The listings that the pages and the API show: read within bounds, with hidden arguments masked.

An event topology is a listing of groups and exchanges. It is cached, so that many readers cause few requests.
"""

import threading
import time
from collections.abc import Callable

from palermo.contract.rows import Listing, Row
from palermo.contract.scheduled import ScheduledFilter
from palermo.inspector import keys as inspector_keys
from palermo.inspector.inspector import Inspector
from palermo.jobs.redaction import masked_arguments, masked_row
from palermo.webui.site import Refused, Site, Visit
from palermo.webui.state.scheduled_view import scheduled_view

#: The most rows on a page, and the most jobs that pages lead into a queue: reading a page holds all jobs before it.
MAX_LIMIT, MAX_DEPTH = 500, 10_000

#: Seconds that the topology is cached.
_CACHED = 2.0


def jobs(visit: Visit, queue: str, *, page: int, limit: int, newest: bool = False, text: str | None = None) -> Listing:
    """A page of a queue's waiting jobs; with `text` those of them that have it.

    Raises NotFound, NotBrowsable, and Refused (422) if the page is too deep.
    """
    if page * limit > MAX_DEPTH:
        raise Refused(
            422, f"pages lead no further than {MAX_DEPTH:,} jobs into a queue; newest=true begins at its end."
        )
    listing = visit.inspector.jobs(queue, offset=(page - 1) * limit, limit=limit, newest=newest, text=text)
    return Listing([masked_row(row, visit.site.hidden) for row in listing.rows], listing.total)


def limits(visit: Visit, *, text: str = "", page: int, limit: int) -> Listing:
    """A page of the keys of limited jobs that contain the text, by name."""
    found = [row for row in visit.inspector.limits() if text in row["key"]]
    return Listing(found[(page - 1) * limit : page * limit], len(found))


def scheduled(visit: Visit, chosen: ScheduledFilter, *, page: int, limit: int, soon: bool = False) -> Listing:
    """A page of scheduled jobs, soonest first; `soon` as ScheduledView.soon. Raises Refused (422) if it is too deep."""
    view = scheduled_view(visit.site)
    listing = (view.soon if soon else view.page)(chosen, offset=(page - 1) * limit, limit=limit)
    return Listing([masked_row(row, visit.site.hidden) for row in listing.rows], listing.total)


def recurring(visit: Visit) -> list[Row]:
    """All recurring jobs, by name."""
    return [masked_arguments(row, visit.site.hidden) for row in scheduled_view(visit.site).recurring()]


def keys(visit: Visit, *, text: str = "", page: int, limit: int) -> Listing:
    """A page of the keys of unique jobs, by name: those whose key, job or id contains the text."""
    return inspector_keys.listed(visit.inspector, text, offset=(page - 1) * limit, limit=limit)


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
