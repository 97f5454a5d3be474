"""The page of finished jobs, newest first, and the page of operators' actions, both from the journal."""

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from palermo.contract.row_types import ActionRow, FinishedRow, Instant
from palermo.contract.rows import Row
from palermo.errors import NotFound
from palermo.history.listings import life
from palermo.views.filter import AuditFilter
from palermo.webui import tuning
from palermo.webui.api.rows import Condition, Id, PageLimit, Rows
from palermo.webui.filters import (
    LISTED,
    ListFilter,
    PageNumber,
    asked_actions,
    asked_filter,
    audit_filter,
    known_names,
    list_filter,
)
from palermo.webui.render.facets import count_names, facets
from palermo.webui.render.rendering import page
from palermo.webui.site import Visit, Visiting
from palermo.webui.state.deaths import deaths
from palermo.webui.state.journal_views import journal_views
from palermo.webui.threads import Router

router = Router()

Limit = Annotated[int, Query(ge=1, le=tuning.MANY)]


@router.get("/history", name="history", dependencies=[known_names(*LISTED)])
def history(request: Request, visit: Visiting, number: PageNumber = 1, limit: Limit = tuning.ROWS) -> Response:
    """Show finished jobs."""
    wanted = list_filter(request.query_params)
    context = _context(visit, wanted, number, limit)
    index = journal_views(visit.site).index
    if context["state"].ready:
        context["total"] = index.count(wanted.filter)
        counts = count_names(index.shapes(wanted.filter).items(), ("state", "queue", "job", "error"))
        context["facets"] = facets(wanted, counts)
        context["rows"] = [entry.row() for entry in index.page(wanted.filter, offset=(number - 1) * limit, limit=limit)]
    return page(
        request,
        "history.html",
        watched={"of": "history"},
        lost=index.lost,
        cut=index.cut,
        **context,
    )


@router.get("/audit", name="audit", dependencies=[known_names(*LISTED)])
def audit(request: Request, visit: Visiting, number: PageNumber = 1, limit: Limit = tuning.ROWS) -> Response:
    """Show the audit trail, the actions of users and operators."""
    wanted = audit_filter(request.query_params)
    context = _context(visit, wanted, number, limit)
    actions = journal_views(visit.site).audit
    if context["state"].ready:
        context["total"] = actions.count(wanted.filter)
        context["rows"] = actions.page(wanted.filter, offset=(number - 1) * limit, limit=limit)
        context["deaths"] = _deaths(visit, wanted.filter)
    return page(request, "audit.html", watched={"of": "history"}, **context)


def _deaths(visit: Visit, wanted: AuditFilter) -> list[Row]:
    """Return the deaths of workers within a filter's time, if it has no other conditions."""
    if wanted != AuditFilter(since=wanted.since, until=wanted.until):
        return []
    until = float("inf") if wanted.until is None else wanted.until
    return [life.row() for life in deaths(visit.site, since=wanted.since) if life.heard_at <= until][: tuning.ROWS]


def _context(visit: Visit, wanted: ListFilter[Any], number: int, limit: int) -> dict[str, Any]:
    """Return the template values common to both pages."""
    known = journal_views(visit.site)
    query = wanted.query
    kept = "" if limit == tuning.ROWS else urlencode({"limit": limit})
    state = known.wait_until_read()
    return {
        "state": state,
        "off": known.off,
        "level": known.level.value,
        "asked_for": wanted,
        "query": query,
        "number": number,
        "limit": limit,
        "rows": [],
        "facets": [],
        "total": 0,
        "at": "?" + "".join(f"{part}&" for part in (query, kept) if part) + "page=",
    }


# -- the API

api = Router(tags=["history"])


class Step(BaseModel):
    """A record in a job's timeline. Some kinds have more fields."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    kind: str = Field(description="See docs/internals/journal.md; `action` for an operator's action.")
    at: Instant | None


class Life(BaseModel):
    """The journal's records about one job, oldest first."""

    id: str
    rows: list[Step]
    total: int


@api.get("/history")
def api_history(
    visit: Visiting,
    filter: Condition = None,
    queue: Condition = None,
    job: Condition = None,
    worker: Condition = None,
    error: Condition = None,
    state: Condition = None,
    text: Condition = None,
    since: Condition = None,
    until: Condition = None,
    longer: Condition = None,
    shorter: Condition = None,
    page: PageNumber = 1,
    limit: PageLimit = 100,
) -> Rows[FinishedRow]:
    """Finished jobs, newest first.

    Names match in part, and `*` stands for any characters; `=mail` is exactly `mail`. Times are durations ago (`2h`) or
    instants (`2026-12-01T09:00Z`). `longer` and `shorter` are the minimum and maximum duration of a run (`0.5s`, `5m`).
    """
    wanted = asked_filter(
        {
            "filter": filter,
            "queue": queue,
            "job": job,
            "worker": worker,
            "error": error,
            "state": state,
            "text": text,
            "since": since,
            "until": until,
            "longer": longer,
            "shorter": shorter,
        }
    )
    known = journal_views(visit.site)
    known.check_ready()
    rows = [entry.row() for entry in known.index.page(wanted, offset=(page - 1) * limit, limit=limit)]
    return Rows[FinishedRow].of(rows, total=known.index.count(wanted), page=page, limit=limit)


@api.get("/history/{id:palermo}")
def api_history_job(visit: Visiting, id: Id) -> Life:
    """The journal's newest 1,000 records about one job, oldest first."""
    known = journal_views(visit.site)
    known.check_ready()
    rows = life(known.index, known.audit, id)
    if not rows:
        raise NotFound(f"the journal has no record of job {id[:80]!r}.")
    return Life.model_validate({"id": id, "rows": rows, "total": len(rows)})


@api.get("/audit")
def api_audit(
    visit: Visiting,
    by: Condition = None,
    action: Condition = None,
    queue: Condition = None,
    text: Condition = None,
    since: Condition = None,
    until: Condition = None,
    page: PageNumber = 1,
    limit: PageLimit = 100,
) -> Rows[ActionRow]:
    """Operators' actions, newest first. Names match in part; `=mail` is exactly `mail`."""
    filter = asked_actions({"by": by, "action": action, "queue": queue, "text": text, "since": since, "until": until})
    known = journal_views(visit.site)
    known.check_ready()
    rows = known.audit.page(filter, offset=(page - 1) * limit, limit=limit)
    return Rows[ActionRow].of(rows, total=known.audit.count(filter), page=page, limit=limit)
