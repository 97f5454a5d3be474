"""The page of failed jobs: found by filters, seen in groups, chosen for what is to be done about them."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from palermo.filters import FailedFilter
from palermo.rows import Row, instant
from palermo.webui.failed import Failures, failures
from palermo.webui.failed.asking import filter_of, query_of
from palermo.webui.failed.index import Group
from palermo.webui.rendering import page, path, redirect
from palermo.webui.site import Visiting

router = APIRouter()

#: Rows on a page: P14 of the original had 20.
LIMIT, LIMITS = 50, (20, 50, 100)

#: Groups on a page, and the parts of the time that their histories have.
GROUPS, PARTS = 25, 32

#: What the choice of time offers.
TIMES = (("15m", "15 minutes"), ("1h", "hour"), ("6h", "6 hours"), ("1d", "day"), ("7d", "week"), ("30d", "30 days"))


class GroupLine(NamedTuple):
    """A group as the page shows it."""

    group: Group
    row: Row
    #: The path of its sparkline.
    line: str
    first: str | None
    last: str | None
    #: The address of what it holds.
    query: str


class Asked(NamedTuple):
    """What an address asks for."""

    filter: FailedFilter
    #: The same as it was written, to be shown in the form.
    written: dict[str, str]

    @property
    def query(self) -> str:
        """As an address has it; times stay as they were written, so that a link for "the last hour" stays one."""
        return urlencode([(name, text) for name, text in self.written.items() if text])


def asked(request: Request) -> Asked:
    """The filter in a request's address. Raises Refused (422)."""
    names = ("text", "queue", "job", "error", "since", "until", "group")
    written = {name: request.query_params.get(name, "")[:1_000].strip() for name in names}
    return Asked(filter_of(written), written)


@router.get("/failures", name="failures")
def page_of_failures(
    request: Request,
    visit: Visiting,
    by: Annotated[str, Query(max_length=10)] = "",
    number: Annotated[int, Query(alias="page", ge=1, le=1_000_000)] = 1,
    limit: Annotated[int, Query(ge=1, le=max(LIMITS))] = LIMIT,
) -> Response:
    """All of them, newest first, or in groups."""
    wanted = asked(request)
    found = failures(visit.site)
    state = found.view.look()
    index = found.view.index
    context: dict[str, Any] = {
        "state": state,
        "as_of": instant(state.at),
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
    """Read the queue now, whatever that costs."""
    failures(visit.site).view.refresh()
    to = path(request, "failures")
    return redirect(request, f"{to}?{request.url.query}" if request.url.query else to)


def chosen_filter(request: Request, visit: Visiting) -> FailedFilter:
    """The filter of an address, bounded by now: what fails after someone was told a number is not meant by it."""
    wanted = asked(request).filter
    newest = failures(visit.site).view.index.newest() or 0
    if wanted.until is None:
        wanted = replace(wanted, until=float(max(int(time.time()), newest)))
    return replace(wanted, since=None if wanted.since is None else float(int(wanted.since)))


def sparkline(history: Sequence[int], *, width: int = 96, height: int = 20) -> str:
    """Bars for what happened in each part of the time, as the path of an SVG."""
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


def _line(found: Failures, wanted: Asked, group: Group) -> GroupLine:
    return GroupLine(
        group=group,
        row=found.row(group.sample),
        line=sparkline(group.history),
        first=instant(group.first),
        last=instant(group.last),
        query=query_of(replace(wanted.filter, group=group.fingerprint, since=None))
        + (f"&since={wanted.written['since']}" if wanted.written["since"] else ""),
    )
