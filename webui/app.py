"""The application: put together from the pages, the API and what guards them."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from palermo.client import Client
from palermo.config import Settings
from palermo.errors import PalermoError, SettingInvalid
from palermo.webui import api, failed, health, journaled, metrics, pages
from palermo.webui.api import document
from palermo.webui.auth import FileAuthentication
from palermo.webui.errors import answer, on_palermo_error
from palermo.webui.guard import Doors, Guard
from palermo.webui.looking import BoundedInspector
from palermo.webui.origin import is_loopback
from palermo.webui.people import Authenticate
from palermo.webui.rendering import STATIC
from palermo.webui.site import Site


def create_app(
    client: Client | None = None,
    *,
    settings: Settings | None = None,
    auth: Authenticate | None = None,
    **overrides: Any,
) -> FastAPI:
    """The web pages of one broker, to be served, or mounted under any path of another ASGI application.

    The client is made from the settings unless one is given; it connects when first asked
    something, and again by itself whenever it must. `auth` says whose a request is, with or without
    the setting web_users; without either only this machine is let in. Other keywords are the
    settings `web_*`, without those four letters: `read_only=True`, `hosts=["jobs.example.com"]`.

    Raises SettingInvalid.
    """
    own = client is None
    given = client.settings if client is not None else settings or Settings.load()
    chosen = _chosen(given, overrides)
    if auth is None and chosen.web_users:
        auth = FileAuthentication(chosen.web_users)
    far = [host for host in chosen.web_hosts if not is_loopback(host)]
    if auth is None and far:
        raise SettingInvalid(
            f"web_hosts names {far[0]!r}, and without authentication the web pages are for this machine alone."
            " Name a file of users in web_users, or pass auth= to create_app: see docs/web.md."
        )
    client = client or Client(given)
    site = Site(
        client=client,
        inspector=BoundedInspector(client),
        version=version("palermo"),
        secret=chosen.web_secret.encode() or secrets.token_bytes(32),
        read_only=chosen.web_read_only,
        hidden=chosen.web_redact,
    )
    doors = Doors(
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
        await run_in_threadpool(failed.close, site)
        await run_in_threadpool(journaled.close, site)
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
        middleware=[Middleware(Guard, site=site, doors=doors)],
        exception_handlers={
            HTTPException: _on_http_error,
            RequestValidationError: _on_invalid,
            PalermoError: on_palermo_error,
        },
    )
    app.state.site = site
    # Pages first: a name that both have is then the page's, for `path`.
    for router in pages.ROUTERS:
        app.include_router(router, include_in_schema=False)
    for router in api.ROUTERS:
        app.include_router(router, prefix="/api")
    app.include_router(document.router, prefix="/api", include_in_schema=False)
    app.include_router(health.router, include_in_schema=False)
    app.include_router(metrics.router, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app


def _chosen(settings: Settings, overrides: dict[str, Any]) -> Settings:
    named = {f"web_{name}": value for name, value in overrides.items() if value is not None}
    unknown = [name for name in named if name not in {field.name for field in fields(Settings)}]
    if unknown:
        raise SettingInvalid(f"create_app has no option {unknown[0].removeprefix('web_')!r}: see docs/web.md.")
    return replace(settings, **named)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    return answer(request, error.status_code, str(error.detail), headers)


async def _on_invalid(request: Request, error: Exception) -> Response:
    """What the types of an operation do not allow, in one line: where it is, and what is wrong with it."""
    assert isinstance(error, RequestValidationError)
    found = [f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}" for each in error.errors()[:10]]
    return answer(request, 422, "; ".join(found) + ".")
