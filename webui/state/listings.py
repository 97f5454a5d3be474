"""The listings that the pages and the API show: read within bounds, with hidden arguments masked."""

from typing import Any

from palermo.contract.rows import Listing, Row
from palermo.contract.scheduled import ScheduledFilter
from palermo.core.lifecycle import JobState
from palermo.core.topology import check_id
from palermo.errors import NotFound
from palermo.inspector.masking import masked_arguments, masked_row
from palermo.webui.base.site import Refused, Visit
from palermo.webui.state.job_search import find_job
from palermo.webui.state.scheduled_view import scheduled_view

#: The most rows on a page, and the most jobs that pages lead into a queue: reading a page holds all jobs before it.
MAX_LIMIT, MAX_DEPTH = 500, 10_000

_NONE: dict[str, Any] = dict.fromkeys(
    (
        *("args", "kwargs", "preview", "content_type", "created_at", "run_at", "retries", "failed_at", "error"),
        *("worker", "priority", "tenant", "topic"),
    )
)


def jobs(visit: Visit, queue: str, *, page: int, limit: int, newest: bool = False) -> Listing:
    """A page of a queue's waiting jobs. Raises NotFound, NotBrowsable, and Refused (422) if the page is too deep."""
    if page * limit > MAX_DEPTH:
        raise Refused(
            422, f"pages lead no further than {MAX_DEPTH:,} jobs into a queue; newest=true begins at its end."
        )
    listing = visit.inspector.jobs(queue, offset=(page - 1) * limit, limit=limit, newest=newest)
    return Listing([masked_row(row, visit.site.hidden) for row in listing.rows], listing.total)


def limits(visit: Visit, *, text: str = "", page: int, limit: int) -> Listing:
    """A page of the keys of limited jobs that contain the text, by name."""
    found = [row for row in visit.inspector.limits() if text in row["key"]]
    return Listing(found[(page - 1) * limit : page * limit], len(found))


def scheduled(visit: Visit, chosen: ScheduledFilter, *, page: int, limit: int) -> Listing:
    """A page of scheduled jobs, soonest first. Raises Refused (422) if the page is too deep."""
    listing = scheduled_view(visit.site).page(chosen, offset=(page - 1) * limit, limit=limit)
    return Listing([masked_row(row, visit.site.hidden) for row in listing.rows], listing.total)


def recurring(visit: Visit) -> list[Row]:
    """All recurring jobs, by name."""
    return [masked_arguments(row, visit.site.hidden) for row in scheduled_view(visit.site).recurring()]


def keys(visit: Visit, *, text: str = "", page: int, limit: int) -> Listing:
    """A page of the keys of unique jobs, by name: those whose key, job or id contains the text."""
    rows = visit.inspector.unique_keys()
    found = [row for row in rows if text in f"{row['key']} {row['job'] or ''} {row['id'] or ''}"]
    return Listing(found[(page - 1) * limit : page * limit], len(found))


def job(visit: Visit, id: str, *, queue: str = "") -> Row:
    """The row of a running, waiting, scheduled or failed job, if `find` finds it. Raises NotFound."""
    check_id(id)
    found = find_job(visit.site, id, queue)
    if found.state == "running":
        known = {"id": id, "job": found.name, "queue": found.queue, "worker": found.worker}
        return {**_NONE, "attempts": [], **known, "state": JobState.WORKING.value}
    if not found.state or found.row is None:
        raise NotFound(
            f"no job {id[:80]!r} runs, waits at an end of a queue or for its time, or has failed."
            " It may have finished, or wait amid a long queue."
        )
    return found.row
