"""What pages and API show of jobs: looked up within bounds, and with arguments redacted."""

from typing import Any

from palermo.core.lifecycle import JobState
from palermo.core.topology import check_id
from palermo.errors import NotFound
from palermo.rows import Listing, Row
from palermo.timetable import Chosen
from palermo.webui import redact
from palermo.webui.ahead import ahead
from palermo.webui.errors import Refused
from palermo.webui.finding import find
from palermo.webui.site import Visit

#: The most rows on a page, and how far into a queue pages lead: while one is read all before it is held back.
MAX_LIMIT, MAX_DEPTH = 500, 10_000

_NONE: dict[str, Any] = dict.fromkeys(
    (
        *("args", "kwargs", "preview", "content_type", "created_at", "run_at", "retries", "failed_at", "error"),
        *("worker", "priority", "tenant", "topic"),
    )
)


def jobs(visit: Visit, queue: str, *, page: int, limit: int, newest: bool = False) -> Listing:
    """A page of the jobs that wait. Raises NotFound, NotBrowsable, and Refused (422) too deep in the queue."""
    if page * limit > MAX_DEPTH:
        raise Refused(
            422, f"pages lead no further than {MAX_DEPTH:,} jobs into a queue; newest=true begins at its end."
        )
    listing = visit.inspector.jobs(queue, offset=(page - 1) * limit, limit=limit, newest=newest)
    return Listing([redact.shown(row, visit.site.hidden) for row in listing.rows], listing.total)


def limits(visit: Visit, *, text: str = "", page: int, limit: int) -> Listing:
    """A page of the keys of limited jobs by name, of those that hold the text."""
    found = [row for row in visit.inspector.limits() if text in row["key"]]
    return Listing(found[(page - 1) * limit : page * limit], len(found))


def scheduled(visit: Visit, chosen: Chosen, *, page: int, limit: int) -> Listing:
    """A page of scheduled jobs, soonest first. Raises Refused (422) too deep."""
    listing = ahead(visit.site).page(chosen, offset=(page - 1) * limit, limit=limit)
    return Listing([redact.shown(row, visit.site.hidden) for row in listing.rows], listing.total)


def recurring(visit: Visit) -> list[Row]:
    """All recurring jobs, by name."""
    return [redact.arguments_shown(row, visit.site.hidden) for row in ahead(visit.site).recurring()]


def keys(visit: Visit, *, text: str = "", page: int, limit: int) -> Listing:
    """A page of the keys of unique jobs by name, of those that hold the text."""
    rows = visit.inspector.unique_keys()
    found = [row for row in rows if text in f"{row['key']} {row['job'] or ''} {row['id'] or ''}"]
    return Listing(found[(page - 1) * limit : page * limit], len(found))


def job(visit: Visit, id: str, *, queue: str = "") -> Row:
    """The row of one job: running, waiting, scheduled or failed, as far as `find` looks. Raises NotFound."""
    check_id(id)
    found = find(visit.site, id, queue)
    if found.state == "running":
        known = {"id": id, "job": found.name, "queue": found.queue, "worker": found.worker}
        return {**_NONE, "attempts": [], **known, "state": JobState.WORKING.value}
    if not found.state or found.row is None:
        raise NotFound(
            f"no job {id[:80]!r} runs, waits at an end of a queue or for its time, or has failed."
            " It may have finished, or wait amid a long queue."
        )
    return found.row
