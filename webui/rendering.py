"""Pages from templates: what every template knows, and how messages reach the page after a redirect."""

import hashlib
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute

from palermo.webui import flash, formats, tokens
from palermo.webui.navigation import sections
from palermo.webui.people import Role
from palermo.webui.site import VISIT, Visit
from palermo.webui.watching import failed_count

_HERE = Path(__file__).parent
TEMPLATES, STATIC = _HERE / "templates", _HERE / "static"

#: Everything from a job is text: `|safe` is for nothing that came from outside.
environment = Environment(
    loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
environment.filters.update(formats.FILTERS)


def page(
    request: Request, template: str, *, status: int = 200, headers: dict[str, str] | None = None, **context: Any
) -> HTMLResponse:
    """A template, rendered.

    Besides its own context it knows `visit`, `site`, `Role`, `path(route, **names)`, `static(file)`,
    `token` (to be the field `token` of every form), `flashes`, `now`, `routes` (the names of all
    there are), `here` (this page's address, to be asked for again) and `asked` (the dialog to be open).
    """
    visit: Visit | None = request.scope.get(VISIT)
    known: dict[str, Any] = {"status": status, "Role": Role, "now": datetime.now(UTC)}
    known["static"] = lambda file: static(request, file)
    if visit is None:
        return HTMLResponse(environment.get_template(template).render(known | context), status, headers)
    nonce = visit.nonce or tokens.new_nonce()
    known |= {"visit": visit, "site": visit.site, "token": tokens.form_token(visit, nonce)}
    known |= {"path": lambda route, **names: path(request, route, **names), "flashes": flash.read(request)}
    known |= {"routes": routes(), "failed_count": failed_count(visit.site), "asked": ""}
    known |= {"navigation": sections(known["routes"]), "here": _here(request)}
    if request.method == "GET":
        known["asked"] = request.query_params.get("ask", "")
    response = HTMLResponse(environment.get_template(template).render(known | context), status, headers)
    if not visit.nonce:
        tokens.set_nonce(response, visit, nonce)
    if known["flashes"]:
        flash.clear(response, visit)
    return response


def path(request: Request, route: str, **names: str) -> str:
    """The path of a route by its name, as the browser must ask for it; `query` may be added by the caller."""
    # The application's own url_path_for tries its routes one after the other, for each link of a page.
    known = _pages().get(route, request.app)
    return str(request.scope.get("root_path", "")) + str(known.url_path_for(route, **names))


@cache
def routes() -> frozenset[str]:
    """The names of all pages' routes."""
    return frozenset(_pages())


@cache
def _pages() -> dict[str, BaseRoute]:
    from palermo.webui.pages import ROUTERS  # they are rendered by this module

    return {str(getattr(route, "name", "")): route for router in ROUTERS for route in router.routes}


def _here(request: Request) -> str:
    """The address of this page without the dialog that it was asked to open; of the first one after a form."""
    if request.method != "GET":
        return path(request, "overview")
    query = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != "ask"])
    return str(request.scope["raw_path"].decode()) + (f"?{query}" if query else "")


def static(request: Request, file: str) -> str:
    """The path of a packaged file; its address changes with what it holds, so browsers may keep it for ever."""
    return f"{request.scope.get('root_path', '')}/static/{file}?v={_digest(file)}"


def redirect(request: Request, to: str, message: str = "", *, level: str = "done") -> Response:
    """See another page, as the answer to a form; `message` is shown there once, at level done, note or error."""
    response = RedirectResponse(to, status_code=303)
    if message:
        flash.write(response, request.scope[VISIT], message, level)
    return response


@cache
def _digest(file: str) -> str:
    return hashlib.sha256((STATIC / file).read_bytes()).hexdigest()[:12]
