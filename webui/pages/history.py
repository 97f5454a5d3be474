"""The page of finished jobs, newest first, and the page of operators' actions, both from the journal."""

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from palermo.contract.rows import Row
from palermo.views.filter import AuditFilter
from palermo.webui import tuning
from palermo.webui.filters import LISTED, ListFilter, PageNumber, audit_filter, known_names, list_filter
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
