"""The application: put together from the pages, the API and what guards them."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from palermo.client import Client
from palermo.config import Settings
from palermo.errors import PalermoError
from palermo.inspector import Inspector
from palermo.webui import api, pages
from palermo.webui.errors import answer, on_palermo_error
from palermo.webui.guard import Guard
from palermo.webui.rendering import STATIC
from palermo.webui.site import Site


def create_app(client: Client | None = None, *, settings: Settings | None = None, read_only: bool = False) -> FastAPI:
    """The web pages of one broker, to be served, or mounted under any path of another ASGI application.

    Without a client one is made from the settings, or from what they are by default; it
    connects when first asked something, and again by itself whenever it must.
    """
    own = client is None
    client = client or Client(settings or Settings.load())
    site = Site(
        client=client,
        inspector=Inspector(client),
        version=version("palermo"),
        secret=secrets.token_bytes(32),
        read_only=read_only,
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        site.stopping.set()
        if own:
            client.close()

    app = FastAPI(
        title="Palermo",
        version=site.version,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        middleware=[Middleware(Guard, site=site)],
        exception_handlers={HTTPException: _on_http_error, PalermoError: on_palermo_error},
    )
    app.state.site = site
    # Pages first: a name that both have is then the page's, for `path`.
    for router in pages.ROUTERS:
        app.include_router(router, include_in_schema=False)
    for router in api.ROUTERS:
        app.include_router(router, prefix="/api")
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    return answer(request, error.status_code, str(error.detail), headers)
