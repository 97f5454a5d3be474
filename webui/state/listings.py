"""The listings that the pages and the API show: read within bounds, with hidden arguments masked.

An event topology is a listing of groups and exchanges. It is cached, so that many readers cause few requests.
"""

from collections.abc import Iterable

from palermo.contract.row_types import JobRow, KeyRow, LimitRow, RecurringRow
from palermo.contract.rows import Listing, Row
from palermo.errors import NotFound
from palermo.jobs.redaction import masked_arguments, masked_row
from palermo.views.filter import EVERYTHING, JobFilter
from palermo.webui import tuning
from palermo.webui.site import Refused, Site, Visit
from palermo.webui.state.refreshing import Refreshing
from palermo.webui.state.scheduled_view import scheduled_view


def jobs(
    visit: Visit,
    queue: str,
    *,
    page: int,
    limit: int,
    newest: bool = False,
    filter: JobFilter = EVERYTHING,
    depth: int = tuning.DEPTH,
) -> Listing[JobRow]:
    """A page of a queue's waiting jobs; with a filter, of those among its first `depth` jobs that match.

    Raises NotFound, NotBrowsable, and Refused (422) if the page is too deep.
    """
    if page * limit > tuning.DEPTH:
        text = f"pages show only the first {tuning.DEPTH:,} jobs of a queue; newest=true starts at its end."
        raise Refused(422, text)
    listing = visit.inspector.jobs.list(
        queue, offset=(page - 1) * limit, limit=limit, newest=newest, filter=filter, depth=depth
    )
    return Listing([masked_row(row, visit.site.hidden) for row in listing.rows], listing.total, listing.unseen)


def limits(visit: Visit, *, text: str = "", page: int, limit: int) -> Listing[LimitRow]:
    """A page of the keys of limited jobs that contain the text, by name."""
    found = [row for row in visit.inspector.keys.limits() if text in row["key"]]
    return Listing(found[(page - 1) * limit : page * limit], len(found))


def scheduled(visit: Visit, chosen: JobFilter, *, page: int, limit: int, soon: bool = False) -> Listing[JobRow]:
    """A page of scheduled jobs, soonest first; `soon` as ScheduledView.soon. Raises Refused (422) if it is too deep."""
    view = scheduled_view(visit.site)
    listing = (view.soon if soon else view.page)(chosen, offset=(page - 1) * limit, limit=limit)
    return Listing([masked_row(row, visit.site.hidden) for row in listing.rows], listing.total, listing.unseen)


def recurring(visit: Visit) -> list[RecurringRow]:
    """All recurring jobs, by name."""
    return [masked_arguments(row, visit.site.hidden) for row in scheduled_view(visit.site).recurring()]


def recurring_row(rows: Iterable[RecurringRow], name: str) -> RecurringRow:
    """The row of one recurring job. Raises NotFound."""
    found = next((row for row in rows if row["name"] == name), None)
    if found is None:
        raise NotFound(f"there is no recurring job {name[:80]!r}.")
    return found


def keys(visit: Visit, *, text: str = "", page: int, limit: int) -> Listing[KeyRow]:
    """A page of the keys of unique jobs, by name: those whose key, job or id contains the text."""
    return visit.inspector.keys.page(text, offset=(page - 1) * limit, limit=limit)


class Topology(Refreshing[Row]):
    """The event topology of one site: see inspector.events.topology. Getting it raises BrokerError."""


def topology(site: Site) -> Topology:
    """The event topology of a site, at most 2 seconds old; clear it after a change."""
    return site.component(Topology, lambda: Topology(site.inspector.events.topology, fresh=tuning.FRESH))
