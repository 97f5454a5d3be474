"""The page of failed jobs: a list or groups, with filters, and a selection for the actions on them."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from palermo.contract.rows import Row, iso_instant
from palermo.inspector.failed_filter import FailedFilter
from palermo.webui import actions
from palermo.webui.base.filters import RequestedFilter, failed_query, requested_failed_filter
from palermo.webui.base.site import Visiting
from palermo.webui.failed.failed_jobs import FailedJobs, failed_jobs
from palermo.webui.failed.index import FailureGroup
from palermo.webui.render.rendering import page, path, redirect

router = APIRouter()

#: Rows on a page by default, and the numbers to choose from: P14 of the original had 20.
LIMIT, LIMITS = 50, (20, 50, 100)

#: Groups on a page, and the number of parts in each group's history.
GROUPS, PARTS = 25, 32

#: The options of the choice of time.
TIMES = (("15m", "15 minutes"), ("1h", "hour"), ("6h", "6 hours"), ("1d", "day"), ("7d", "week"), ("30d", "30 days"))


class GroupRow(NamedTuple):
    """A group as the page shows it."""

    group: FailureGroup
    row: Row
    #: The path of its sparkline.
    line: str
    first: str | None
    last: str | None
    #: The query of the address that lists its jobs.
    query: str


@router.get("/failures", name="failures")
def page_of_failures(
    request: Request,
    visit: Visiting,
    by: Annotated[str, Query(max_length=10)] = "",
    number: Annotated[int, Query(alias="page", ge=1, le=1_000_000)] = 1,
    limit: Annotated[int, Query(ge=1, le=max(LIMITS))] = LIMIT,
) -> Response:
    """All failed jobs, newest first, or in groups."""
    wanted = requested_failed_filter(request.query_params)
    found = failed_jobs(visit.site)
    state = found.view.update()
    index = found.view.index
    context: dict[str, Any] = {
        "state": state,
        "as_of": iso_instant(state.at),
        "asked_for": wanted,
        "by": "groups" if by == "groups" else "",
        "times": TIMES,
        "operations": found.operations.running(),
        "number": number,
        "limit": limit,
        "rows": [],
        "groups": [],
        "total": 0,
        "kinds": 0,
        "names": {},
    }
    if state.ready:
        context["total"] = index.count(wanted.filter)
        context["names"] = {what: index.names(what) for what in ("queue", "job", "error")}
        if by == "groups":
            groups, kinds = index.groups(wanted.filter, offset=(number - 1) * GROUPS, limit=GROUPS, parts=PARTS)
            context |= {"kinds": kinds, "limit": GROUPS, "groups": [_line(found, wanted, each) for each in groups]}
        else:
            rows = index.page(wanted.filter, offset=(number - 1) * limit, limit=limit, newest=True)
            context["rows"] = [found.row(each.message) for each in rows]
    query = wanted.query
    keep = [("by", context["by"]), ("limit", "" if limit == LIMIT or by == "groups" else str(limit))]
    kept = urlencode([(name, value) for name, value in keep if value])
    context["query"] = query
    context["at"] = "?" + "".join(f"{part}&" for part in (query, kept) if part) + "page="
    return page(request, "failures.html", **context)


@router.post("/failures/read", name="read_failures")
def read_again(request: Request, visit: Visiting) -> Response:
    """Read the failed jobs again now, even if a reading is not due."""
    actions.read_failures(visit)
    to = path(request, "failures")
    return redirect(request, f"{to}?{request.url.query}" if request.url.query else to)


def chosen_filter(request: Request, visit: Visiting) -> FailedFilter:
    """The filter of an address, bounded by now: jobs that fail after the user was told a number are not meant."""
    wanted = requested_failed_filter(request.query_params).filter
    newest = failed_jobs(visit.site).view.index.newest() or 0
    if wanted.until is None:
        wanted = replace(wanted, until=float(max(int(time.time()), newest)))
    return replace(wanted, since=None if wanted.since is None else float(int(wanted.since)))


def sparkline(history: Sequence[int], *, width: int = 96, height: int = 20) -> str:
    """The path of an SVG with a bar for each part of the history."""
    most = max(history, default=0)
    if not most:
        return ""
    step = width / len(history)
    parts = []
    for place, count in enumerate(history):
        if count:
            tall = max(2.0, height * count / most)
            parts.append(f"M{place * step:.1f} {height}v-{tall:.1f}h{step * 0.8:.1f}v{tall:.1f}z")
    return "".join(parts)


def _line(found: FailedJobs, wanted: RequestedFilter[FailedFilter], group: FailureGroup) -> GroupRow:
    return GroupRow(
        group=group,
        row=found.row(group.sample),
        line=sparkline(group.history),
        first=iso_instant(group.first),
        last=iso_instant(group.last),
        query=failed_query(replace(wanted.filter, group=group.fingerprint, since=None))
        + (f"&since={wanted.written['since']}" if wanted.written["since"] else ""),
    )
