"""The page of finished jobs, newest first, and the page of what people did: both are read from the journal."""

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from palermo.history.filters import FINAL, STATES
from palermo.webui.asking import Asked, audit_asked, history_asked
from palermo.webui.journaled import journaled
from palermo.webui.rendering import page
from palermo.webui.site import Visit, Visiting

router = APIRouter()

#: Rows on a page.
LIMIT, MOST = 50, 100

#: What the choices of time and of duration offer.
TIMES = (("15m", "15 minutes"), ("1h", "hour"), ("6h", "6 hours"), ("1d", "day"), ("7d", "week"), ("30d", "30 days"))
DURATIONS = (("0.1s", "100 ms"), ("1s", "1 s"), ("10s", "10 s"), ("1m", "1 min"), ("10m", "10 min"), ("1h", "1 h"))

Number = Annotated[int, Query(alias="page", ge=1, le=10_000_000)]
Limit = Annotated[int, Query(ge=1, le=MOST)]


@router.get("/history", name="history")
def history(request: Request, visit: Visiting, number: Number = 1, limit: Limit = LIMIT) -> Response:
    """Finished jobs."""
    wanted = history_asked(request.query_params)
    context = _context(visit, wanted, number, limit)
    index = journaled(visit.site).index
    if context["state"].ready:
        context["total"] = index.count(wanted.filter)
        context["rows"] = [entry.row() for entry in index.page(wanted.filter, offset=(number - 1) * limit, limit=limit)]
        context["names"] = {what: index.names(what) for what in ("queue", "job")}
    return page(
        request,
        "history.html",
        watched="history",
        states=tuple(STATES),
        final=FINAL,
        durations=DURATIONS,
        lost=index.lost,
        cut=index.cut,
        **context,
    )


@router.get("/audit", name="audit")
def audit(request: Request, visit: Visiting, number: Number = 1, limit: Limit = LIMIT) -> Response:
    """What people did, and when."""
    wanted = audit_asked(request.query_params)
    context = _context(visit, wanted, number, limit)
    actions = journaled(visit.site).audit
    if context["state"].ready:
        context["total"] = actions.count(wanted.filter)
        context["rows"] = actions.page(wanted.filter, offset=(number - 1) * limit, limit=limit)
        context["names"] = {what: actions.names(what) for what in ("by", "action")}
    return page(request, "audit.html", watched="history", **context)


def _context(visit: Visit, wanted: Asked[Any], number: int, limit: int) -> dict[str, Any]:
    """What both pages show besides their rows."""
    known = journaled(visit.site)
    query = wanted.query
    kept = "" if limit == LIMIT else urlencode({"limit": limit})
    state = known.look()
    return {
        "state": state,
        "seen": state.version,
        "off": known.off,
        "level": known.level.value,
        "asks": wanted.written,
        "query": query,
        "times": TIMES,
        "number": number,
        "limit": limit,
        "rows": [],
        "total": 0,
        "names": {},
        "at": "?" + "".join(f"{part}&" for part in (query, kept) if part) + "page=",
    }
