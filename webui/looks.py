"""What pages and API show of jobs: looked up within bounds, and with arguments redacted."""

from collections.abc import Iterator
from typing import Any

from palermo.core.lifecycle import JobState
from palermo.core.topology import check_id, is_failed
from palermo.errors import NotBrowsable, NotFound
from palermo.rows import Listing, Row
from palermo.webui import redact
from palermo.webui.errors import Refused
from palermo.webui.site import Visit

#: The most rows on a page, and how far into a queue pages lead: while one is read all before it is held back.
MAX_LIMIT, MAX_DEPTH = 500, 10_000

#: How many jobs at each end of a queue are looked at for an id, and how many queues.
_ENDS, _MAX_QUEUES = 200, 50

_NONE: dict[str, Any] = dict.fromkeys(
    ("args", "kwargs", "preview", "content_type", "created_at", "retries", "failed_at", "error", "worker", "tenant")
)


def shown(visit: Visit, row: Row) -> Row:
    """A job's row as this site may show it."""
    return redact.shown(row, visit.site.hidden)


def jobs(visit: Visit, queue: str, *, page: int, limit: int, newest: bool = False) -> Listing:
    """A page of the jobs that wait. Raises NotFound, NotBrowsable, and Refused (422) too deep in the queue."""
    if page * limit > MAX_DEPTH:
        raise Refused(
            422, f"pages lead no further than {MAX_DEPTH:,} jobs into a queue; newest=true begins at its end."
        )
    listing = visit.inspector.jobs(queue, offset=(page - 1) * limit, limit=limit, newest=newest)
    return Listing([shown(visit, row) for row in listing.rows], listing.total)


def job(visit: Visit, id: str, *, queue: str | None = None) -> Row:
    """One job, wherever it is now: running, waiting or failed. Raises NotFound.

    A job that waits is looked for at both ends of its queue, or of every queue.
    """
    check_id(id)
    row = _running(visit, id) or _waiting(visit, id, queue) or _failed(visit, id)
    if row is None:
        raise NotFound(
            f"no job {id[:80]!r} runs, waits at an end of a queue, or has failed."
            " It may have finished, or wait amid a long queue."
        )
    return shown(visit, row)


def _running(visit: Visit, id: str) -> Row | None:
    for worker in visit.inspector.workers():
        for running in worker["jobs"]:
            if running["id"] == id:
                known = {name: running[name] for name in ("id", "job", "queue")}
                return {**_NONE, **known, "state": JobState.WORKING.value, "worker": worker["id"]}
    return None


def _waiting(visit: Visit, id: str, queue: str | None) -> Row | None:
    for rows in _ends(visit, queue):
        for row in rows:
            if row["id"] == id:
                return row
    return None


def _ends(visit: Visit, queue: str | None) -> Iterator[list[Row]]:
    found = [row for row in visit.inspector.queues() if row["pending"] and not is_failed(row["name"])]
    for row in [row for row in found if queue in (None, row["name"])][:_MAX_QUEUES]:
        for newest in (False, True)[: 1 if row["pending"] <= _ENDS else 2]:
            try:
                yield visit.inspector.jobs(row["name"], limit=_ENDS, newest=newest).rows
            except (NotFound, NotBrowsable):
                break


def _failed(visit: Visit, id: str) -> Row | None:
    try:
        return visit.inspector.failed_job(id)
    except NotFound:
        return None
