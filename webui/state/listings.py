"""The listings shown by the pages and the API, with limits on reading and with hidden arguments masked.

The event topology is a listing of groups and exchanges, cached because many readers request it.
"""

from collections.abc import Iterable

from palermo.contract.row_types import ActionRow, FinishedRow, JobRow, KeyRow, LimitRow, RecurringRow
from palermo.contract.rows import Listing, Row
from palermo.errors import NotFound
from palermo.jobs.redaction import masked_arguments, masked_row
from palermo.views.filter import EVERYTHING, AuditFilter, JobFilter
from palermo.webui import tuning
from palermo.webui.filters import Paging
from palermo.webui.site import Refused, Site, Visit
from palermo.webui.state.journal_views import journal_views
from palermo.webui.state.refreshing import Refreshing
from palermo.webui.state.scheduled_view import scheduled_view


def jobs(
    visit: Visit,
    queue: str,
    *,
    paging: Paging,
    newest: bool = False,
    filter: JobFilter = EVERYTHING,
    depth: int = tuning.DEPTH,
) -> Listing[JobRow]:
    """Return a page of a queue's waiting jobs; with a filter, of the matching ones among its first `depth` jobs.

    Raises NotFound, NotBrowsable, and Refused (422) if the page is too deep.
    """
    if paging.offset + paging.limit > tuning.DEPTH:
        text = f"pages show only the first {tuning.DEPTH:,} jobs of a queue; newest=true starts at its end."
        raise Refused(422, text)
    listing = visit.inspector.jobs.list(
        queue, offset=paging.offset, limit=paging.limit, newest=newest, filter=filter, depth=depth
    )
    return Listing([masked_row(row, visit.site.hidden) for row in listing.rows], listing.total, listing.unseen)


def limits(visit: Visit, text: str, paging: Paging) -> Listing[LimitRow]:
    """Return a page of the keys of limited jobs that contain the text, by name."""
    found = [row for row in visit.inspector.keys.limits() if text in row["key"]]
    return Listing(paging.cut(found), len(found))


def scheduled(visit: Visit, chosen: JobFilter, paging: Paging, *, soon: bool = False) -> Listing[JobRow]:
    """Return a page of scheduled jobs, soonest first. `soon` means ScheduledView.soon. Raises Refused (422) if it is
    too deep.
    """
    view = scheduled_view(visit.site)
    listing = (view.soon if soon else view.page)(chosen, offset=paging.offset, limit=paging.limit)
    return Listing([masked_row(row, visit.site.hidden) for row in listing.rows], listing.total, listing.unseen)


def recurring(visit: Visit) -> list[RecurringRow]:
    """Return all recurring jobs, by name."""
    return [masked_arguments(row, visit.site.hidden) for row in scheduled_view(visit.site).recurring()]


def recurring_row(rows: Iterable[RecurringRow], name: str) -> RecurringRow:
    """Return the row of one recurring job. Raises NotFound."""
    found = next((row for row in rows if row["name"] == name), None)
    if found is None:
        raise NotFound(f"there is no recurring job {name[:80]!r}.")
    return found


def keys(visit: Visit, text: str, paging: Paging) -> Listing[KeyRow]:
    """Return a page of unique jobs' keys by name, whose key, job or id contains the text."""
    return visit.inspector.keys.page(text, offset=paging.offset, limit=paging.limit)


def finished(visit: Visit, filter: JobFilter, paging: Paging) -> Listing[FinishedRow]:
    """A page of finished jobs, newest first; an empty one while the journal is being read, or if it is off."""
    known = journal_views(visit.site)
    if not known.wait_until_read().ready:
        return Listing([], 0)
    total = known.index.count(filter)
    return Listing([entry.row() for entry in known.index.page(filter, offset=paging.offset, limit=paging.limit)], total)


def operators_actions(visit: Visit, filter: AuditFilter, paging: Paging) -> Listing[ActionRow]:
    """A page of the actions of operators, newest first; an empty one as for `finished`."""
    known = journal_views(visit.site)
    if not known.wait_until_read().ready:
        return Listing([], 0)
    return Listing(known.audit.page(filter, offset=paging.offset, limit=paging.limit), known.audit.count(filter))


def topology(site: Site) -> Refreshing[Row]:
    """Return a site's event topology, at most 2 seconds old: see inspector.events.topology. Getting it raises
    BrokerError.
    """
    return site.component("topology", lambda: Refreshing(site.inspector.events.topology, fresh=tuning.FRESH))
