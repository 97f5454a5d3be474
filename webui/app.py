"""The web application, which combines the pages, the API, the guard and error handling."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from msgspec.structs import replace
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute
from starlette.staticfiles import StaticFiles

from palermo.client.client import Client
from palermo.contract.rows import MAX_SHOWN
from palermo.errors import (
    BodyTooLarge,
    BrokerBlocked,
    BrokerError,
    BrokerRefused,
    DuplicateJob,
    HeadersTooLarge,
    NotBrowsable,
    NotFound,
    PalermoError,
    ResultError,
    SerializationError,
    SettingInvalid,
    UsageError,
)
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from palermo.webui import monitoring, pages
from palermo.webui.api import openapi
from palermo.webui.api.rows import PROBLEM_RESPONSES
from palermo.webui.filters import check_query
from palermo.webui.render.rendering import STATIC, page
from palermo.webui.security.guard import AccessRules, Guard
from palermo.webui.security.local_access import LocalAccess
from palermo.webui.security.request import is_loopback
from palermo.webui.security.sign_in import SignIn
from palermo.webui.site import NOBODY, VISIT, Authenticate, Site, Visit
from palermo.webui.state.trouble import SeenTrouble


def create_app(
    client: Client | None = None,
    *,
    settings: Settings | None = None,
    auth: Authenticate | None = None,
    **overrides: Any,
) -> FastAPI:
    """Create the web pages of a broker, to serve directly or mount in another ASGI application.

    The client is created from the settings unless one is given. It connects on first use, and reconnects automatically.
    `auth` finds the user of a request, and replaces the settings web_users and web_oidc_issuer. Without any of these,
    all programs on this machine have access, and no other machine. Other keywords are the `web_*` settings without that
    prefix: `read_only=True`, `hosts=["jobs.example.com"]`.

    Raises SettingInvalid.
    """
    own = client is None
    given = client.settings if client is not None else settings or Settings.load()
    chosen = _chosen(given, overrides)
    secret = chosen.web_secret.encode() or secrets.token_bytes(32)
    sign_in = SignIn(chosen, secret) if auth is None and chosen.has_sign_in else None
    auth = auth or sign_in or LocalAccess()
    far = [host for host in chosen.web_hosts if not is_loopback(host)]
    if isinstance(auth, LocalAccess) and far:
        raise SettingInvalid(
            f"web_hosts contains {far[0]!r}, but without authentication the web pages can only be opened on this"
            " machine. Set web_users or web_oidc_issuer, or pass auth= to create_app. See docs/guides/web.md."
        )
    client = client or Client(given)
    site = Site(
        client=client,
        inspector=Inspector(
            client, hidden=chosen.web_redact, max_shown_bytes=MAX_SHOWN, within=client.settings.publish_timeout
        ),
        version=version("palermo"),
        secret=secret,
        read_only=chosen.web_read_only,
        hidden=chosen.web_redact,
        routes={str(getattr(route, "name", "")): route for router in pages.ROUTERS for route in router.routes},
    )
    if sign_in is not None:
        site.component(SignIn, lambda: sign_in)
    rules = AccessRules(
        authenticate=auth,
        hosts=chosen.web_hosts,
        prefix=chosen.web_prefix,
        trust_proxy=chosen.web_trust_proxy,
        metrics_token=chosen.metrics_token,
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        site.stopping.set()
        await run_in_threadpool(site.close)
        if own:
            await run_in_threadpool(site.client.close)

    app = FastAPI(
        title="Palermo",
        version=site.version,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        middleware=[Middleware(Guard, site=site, rules=rules, error_response=error_response)],
        exception_handlers={
            HTTPException: on_http_error,
            RequestValidationError: on_invalid_request,
            PalermoError: on_palermo_error,
        },
    )
    app.state.site = site
    app.router.routes.extend(_routes())
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app


@cache
def _routes() -> list[BaseRoute]:
    """Return the routes of pages and API, which all applications of a process share.

    FastAPI builds them on first use, in 0.2 s.
    """
    router = APIRouter()
    # Pages first: if a page and the API use the same route name, `path` must find the page.
    for pages_router in pages.ROUTERS:
        router.include_router(pages_router, include_in_schema=False)
    checked: dict[str, Any] = {"dependencies": [Depends(check_query)], "responses": PROBLEM_RESPONSES}
    for api_router in pages.API:
        router.include_router(api_router, prefix="/api", **checked)
    router.include_router(openapi.router, prefix="/api", include_in_schema=False)
    router.include_router(monitoring.router, include_in_schema=False)
    return router.routes


def _chosen(settings: Settings, overrides: dict[str, Any]) -> Settings:
    named = {f"web_{name}": value for name, value in overrides.items() if value is not None}
    unknown = [name for name in named if name not in Settings.__struct_fields__]
    if unknown:
        raise SettingInvalid(f"create_app has no option {unknown[0].removeprefix('web_')!r}. See docs/guides/web.md.")
    return replace(settings, **named)


def error_response(
    request: Request, status: int, text: str, headers: dict[str, str] | None = None, *, away: bool = False
) -> Response:
    """Return the response to an error: a page for browsers, {"error": …} under /api, plain text for /stats.txt.

    `away` means that the broker is unavailable.
    """
    if status == 503:
        headers = {"Retry-After": "3", **(headers or {})}
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    if path.startswith("/api/"):
        return JSONResponse({"error": text}, status, headers)
    if path == "/stats.txt":
        return PlainTextResponse(f"{text}\n", status, headers)
    visit: Visit | None = request.scope.get(VISIT)
    # An error page contains, for example, names of queues, which visitors must not see before signing in.
    template = "refused.html" if visit is None or visit.user is NOBODY else "error.html"
    form = request.method != "GET"
    # Retrying is useless if the URL has no page.
    renews = not form and (status != 404 or "endpoint" in request.scope)
    more = {"trouble": SeenTrouble.of_error(text)} if away else {}
    return page(
        request, template, status=status, headers=headers, error=text, form=form, renews=renews, away=away, **more
    )


async def _error_in_thread(
    request: Request, status: int, text: str, headers: dict[str, str] | None = None, *, away: bool = False
) -> Response:
    """Call `error_response` in a thread, because its page counts problems and may wait for a lock."""
    return await run_in_threadpool(error_response, request, status, text, headers, away=away)


async def on_palermo_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PalermoError)
    away = isinstance(error, BrokerError) and not isinstance(error, BrokerBlocked | BrokerRefused)
    status = next(_STATUS[kind] for kind in _STATUS if isinstance(error, kind))
    return await _error_in_thread(request, status, f"{type(error).__name__}: {error}", away=away)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Return the response to an HTTP error, such as a refused request or an unknown URL."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    return await _error_in_thread(request, error.status_code, str(error.detail), headers)


async def on_invalid_request(request: Request, error: Exception) -> Response:
    """Return the response to a request with invalid values, with one line per value."""
    assert isinstance(error, RequestValidationError)
    found = [f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}" for each in error.errors()[:10]]
    return await _error_in_thread(request, 422, "; ".join(found) + ".")


#: The HTTP status for an error of Palermo. The first class that matches decides.
_STATUS: dict[type[PalermoError], int] = {
    NotFound: 404,
    **dict.fromkeys((NotBrowsable, ResultError, DuplicateJob), 409),
    **dict.fromkeys((BodyTooLarge, HeadersTooLarge), 413),
    BrokerRefused: 403,
    BrokerError: 503,
    **dict.fromkeys((UsageError, SerializationError), 422),
    PalermoError: 500,
}
