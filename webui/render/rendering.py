"""Renders pages from templates with their navigation, and redirects with a message for the next page.

The message is in a signed cookie.
"""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from palermo.contract.rows import Listing
from palermo.webui.filters import READABLE, Paging
from palermo.webui.render import formats
from palermo.webui.security import cookies
from palermo.webui.security.auth import HOST
from palermo.webui.security.sign_in import SignIn
from palermo.webui.site import VISIT, Role, Visit, visit_of
from palermo.webui.state.live_state import failed_count, live_state
from palermo.webui.state.offers import offers, time_zones
from palermo.webui.state.problems import problems
from palermo.webui.state.search import known_conditions, suggestions
from palermo.webui.state.tab_counts import tab_counts

_HERE = Path(__file__).parents[1]
TEMPLATES, STATIC = _HERE / "templates", _HERE / "static"

#: Data from jobs is text: never use `|safe` on anything from outside.
environment = Environment(
    loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
environment.filters.update(formats.FILTERS)

#: The cookie with the message of the last form, and its maximum size in bytes, because browsers drop cookies above 4
#: KiB.
COOKIE = "palermo_message"
_MAX_TEXT = 2_500


class Entry(NamedTuple):
    """A page in the navigation."""

    route: str
    title: str
    #: The key that opens the page after `g`.
    key: str


#: The navigation. Pages that not every installation uses are under More.
NAVIGATION = (
    Entry("overview", "Overview", "o"),
    Entry("running", "Jobs", "j"),
    Entry("queues", "Queues", "q"),
    Entry("workers", "Workers", "w"),
    Entry("recurring", "Recurring", "c"),
    Entry("statistics", "Metrics", "m"),
    Entry("problems", "Problems", "p"),
)
MORE = (
    Entry("workflows", "Workflows", "k"),
    Entry("topics", "Topics", "t"),
    Entry("tenants", "Tenants", "l"),
    Entry("limits", "Limits", "i"),
    Entry("unique", "Unique keys", "u"),
    Entry("audit", "Audit", "a"),
)

#: The tabs of job pages by state, and of metrics pages. The first tab of each is the one in the navigation.
JOB_TABS = (
    Entry("running", "Running", "j"),
    Entry("waiting", "Waiting", "b"),
    Entry("scheduled", "Scheduled", "s"),
    Entry("retries", "Retrying", "r"),
    Entry("failures", "Failed", "f"),
    Entry("history", "Finished", "h"),
)
METRIC_TABS = (Entry("statistics", "Statistics", "m"), Entry("job_classes", "Job classes", "n"))

#: The navigation entry to which a page with tabs belongs.
_UNDER = {entry.route: tabs[0].route for tabs in (JOB_TABS, METRIC_TABS) for entry in tabs}


def page(
    request: Request, template: str, *, status: int = 200, headers: dict[str, str] | None = None, **context: Any
) -> HTMLResponse:
    """Render a template.

    Besides its own context the template gets `visit`, `site`, `Role`, `path(route, **names)`, `static(file)`,
    `flashes`, `now`, `navigation` and `more`, `job_tabs` and `metric_tabs`, `under`, `failed_count`, `problem_count`,
    `trouble` (the broker's problem, or None), `suggestions` and `known_conditions()` (for the search), `here` (this
    page's URL) and `asked` (the dialog to open). For forms there are `offers()` and `time_zones()`.
    """
    visit: Visit | None = request.scope.get(VISIT)
    known: dict[str, Any] = {"status": status, "Role": Role, "now": datetime.now(UTC)}
    known["static"] = lambda file: static(request, file)
    flashes = [] if visit is None else read_flash(request)
    if visit is not None:
        site = visit.site
        known |= {
            "visit": visit,
            "site": site,
            "path": lambda route, **names: path(request, route, **names),
            "flashes": flashes,
            "navigation": NAVIGATION,
            "more": MORE,
            "under": _UNDER,
            "job_tabs": JOB_TABS,
            "metric_tabs": METRIC_TABS,
            "tab_counts": lambda: tab_counts(site),
            "failed_count": failed_count(site),
            "trouble": live_state(site).sampler.trouble(),
            "suggestions": suggestions(site),
            "known_conditions": lambda: known_conditions(site),
            "problem_count": problems(site).count(),
            # Whether this browser has a session that it can end.
            "signs_out": site.existing(SignIn) is not None and "authorization" not in request.headers,
            "here": _here(request),
            "asked": request.query_params.get("ask", "") if request.method == "GET" else "",
            "offers": lambda: offers(site),
            "time_zones": time_zones,
        }
    response = HTMLResponse(environment.get_template(template).render(known | context), status, headers)
    if visit is not None and flashes:
        response.delete_cookie(COOKIE, path=visit.root or "/", httponly=True, samesite="lax")
    return response


def path(request: Request, route: str, query: str | Mapping[str, str] = "", /, **names: str) -> str:
    """Return a page's path by the name of its route, as seen by the browser, with a query.

    Empty values are omitted from the query.
    """
    # The application's url_path_for would try all routes for each link on a page.
    found, asked = visit_of(request).site.routes[route], _query(query)
    return f"{request.scope.get('root_path', '')}{found.url_path_for(route, **names)}" + (f"?{asked}" if asked else "")


def _query(given: str | Mapping[str, str]) -> str:
    if isinstance(given, str):
        return given
    return urlencode({name: value for name, value in given.items() if value}, safe=READABLE)


def listed(listing: Listing[Any], paging: Paging, query: str | Mapping[str, str] = "") -> dict[str, Any]:
    """Return the template values of a list page whose URL has this query.

    `at` creates the URL of another page from its number, and `listed` is the query of this page.
    """
    asked = _query(query)
    return {
        "rows": listing.rows,
        "total": listing.total or 0,
        "number": paging.number,
        "limit": paging.limit,
        "at": f"?{asked}&page=" if asked else "?page=",
        "listed": "&".join(filter(None, (asked, f"page={paging.number}" if paging.number > 1 else ""))),
    }


def origin(request: Request) -> str:
    """Return the scheme and host of these pages as seen by the browser: `https://jobs.example.com`."""
    return f"{request.scope['scheme']}://{request.scope[HOST]}"


def _here(request: Request) -> str:
    """Return this page's URL without its dialog; after a form, the overview's URL."""
    if request.method != "GET":
        return path(request, "overview")
    query = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != "ask"])
    return str(request.scope["raw_path"].decode()) + (f"?{query}" if query else "")


def static(request: Request, file: str) -> str:
    """Return the path of a packaged file. It depends on the content, so browsers may cache the file for ever."""
    return f"{request.scope.get('root_path', '')}/static/{file}?v={_digest(file)}"


def redirect(request: Request, to: str, message: str = "", *, level: str = "done") -> Response:
    """Redirect to another page after a form. That page shows `message` once, with the level done, note or error."""
    response = RedirectResponse(to, status_code=303)
    if message:
        visit = visit_of(request)
        text = message.encode(errors="replace")[:_MAX_TEXT].decode(errors="ignore")
        flash = cookies.sealed(visit.site.secret, [level, text], "flash", visit.user.name)
        cookies.set_cookie(response, visit, COOKIE, flash, max_age=60)
    return response


@cache
def _digest(file: str) -> str:
    return hashlib.sha256((STATIC / file).read_bytes()).hexdigest()[:12]


# -- the message of the last form


class Message(NamedTuple):
    """A message that the next page shows once."""

    level: str
    text: str


def read_flash(request: Request) -> list[Message]:
    """Return the message of the last form, if it has our signature."""
    visit = visit_of(request)
    found = cookies.unsealed(visit.site.secret, request.cookies.get(COOKIE, ""), "flash", visit.user.name)
    return [Message(*found)] if found else []
