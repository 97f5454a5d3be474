"""The page of finished jobs, newest first, and the page of operators' actions, both from the journal."""

from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from palermo.contract.row_types import ActionRow, FinishedRow, Instant
from palermo.contract.rows import Listing, Row
from palermo.errors import NotFound
from palermo.history.listings import life
from palermo.views.filter import AuditFilter, JobFilter
from palermo.webui import tuning
from palermo.webui.api.rows import Id, Rows
from palermo.webui.filters import (
    LISTED,
    ApiPage,
    ListFilter,
    PageNumber,
    Paging,
    audit_filter,
    conditions,
    known_names,
    list_filter,
)
from palermo.webui.render.facets import count_names, facets
from palermo.webui.render.rendering import listed, page
from palermo.webui.site import Visit, Visiting
from palermo.webui.state import listings
from palermo.webui.state.deaths import deaths
from palermo.webui.state.journal_views import journal_views
from palermo.webui.threads import Router

router = Router()

Limit = Annotated[int, Query(ge=1, le=tuning.MANY)]


@router.get("/history", name="history", dependencies=[known_names(*LISTED)])
def history(request: Request, visit: Visiting, number: PageNumber = 1, limit: Limit = tuning.ROWS) -> Response:
    """Show finished jobs."""
    wanted, paging, known = list_filter(request.query_params), Paging(number, limit), journal_views(visit.site)
    listing = listings.finished(visit, wanted.filter, paging)
    shapes = known.index.shapes(wanted.filter).items() if known.ready else ()
    return _page(
        request,
        visit,
        "history.html",
        wanted,
        listing,
        paging,
        facets=facets(wanted, count_names(shapes, ("state", "queue", "job", "error"))),
        lost=known.index.lost,
        cut=known.index.cut,
    )


@router.get("/audit", name="audit", dependencies=[known_names(*LISTED)])
def audit(request: Request, visit: Visiting, number: PageNumber = 1, limit: Limit = tuning.ROWS) -> Response:
    """Show the audit trail, the actions of users and operators."""
    wanted, paging = audit_filter(request.query_params), Paging(number, limit)
    listing = listings.operators_actions(visit, wanted.filter, paging)
    return _page(request, visit, "audit.html", wanted, listing, paging, deaths=_deaths(visit, wanted.filter))


def _deaths(visit: Visit, wanted: AuditFilter) -> list[Row]:
    """Return the deaths of workers within a filter's time, if it has no other conditions."""
    if wanted != AuditFilter(since=wanted.since, until=wanted.until):
        return []
    until = float("inf") if wanted.until is None else wanted.until
    return [life.row() for life in deaths(visit.site, since=wanted.since) if life.heard_at <= until][: tuning.ROWS]


def _page(
    request: Request,
    visit: Visit,
    template: str,
    asked: ListFilter[Any],
    listing: Listing[Any],
    paging: Paging,
    **more: Any,
) -> Response:
    known, kept = journal_views(visit.site), "" if paging.limit == tuning.ROWS else f"limit={paging.limit}"
    return page(
        request,
        template,
        watched={"of": "history"},
        state=known.progress,
        off=known.off,
        level=known.level.value,
        asked_for=asked,
        query=asked.query,
        **listed(listing, paging, "&".join(filter(None, (asked.query, kept)))),
        **more,
    )


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
    filter: Annotated[
        JobFilter,
        conditions("filter", "queue", "job", "worker", "error", "state", "text", "since", "until", "longer", "shorter"),
    ],
    paging: ApiPage,
) -> Rows[FinishedRow]:
    """Finished jobs, newest first.

    Names match in part, and `*` stands for any characters; `=mail` is exactly `mail`. Times are durations before now
    (`2h`) or instants (`2026-12-01T09:00Z`). `longer` and `shorter` are the minimum and maximum duration of a run
    (`0.5s`, `5m`).
    """
    journal_views(visit.site).check_ready()
    return Rows[FinishedRow].of(listings.finished(visit, filter, paging), paging)


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
    filter: Annotated[AuditFilter, conditions("by", "action", "queue", "text", "since", "until", kind=AuditFilter)],
    paging: ApiPage,
) -> Rows[ActionRow]:
    """Operators' actions, newest first. Names match in part; `=mail` is exactly `mail`."""
    journal_views(visit.site).check_ready()
    return Rows[ActionRow].of(listings.operators_actions(visit, filter, paging), paging)
