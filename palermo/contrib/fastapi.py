"""Palermo in FastAPI and Starlette: a client with the application's lifetime, and mounted web pages.

    jobs = Palermo()
    app = FastAPI(lifespan=jobs.lifespan)
    jobs.mount_pages(app, "/ops/jobs", auth=who)

docs/guides/fastapi.md contains a complete program.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any, Unpack

from palermo.client.client import Client, default_client, use
from palermo.contract.extras import extra
from palermo.settings.settings import Settings
from palermo.settings.table import SettingArgumentsAndUrl

with extra("fastapi", "palermo.contrib.fastapi"):
    from fastapi import Depends, FastAPI
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool

    from palermo.webui import Authenticate, create_app

#: For endpoints: `async def create(client: PalermoClient) -> …`.
PalermoClient = Annotated[Client, Depends(default_client)]


class Palermo:
    """An application's client and web pages."""

    def __init__(self, **settings: Unpack[SettingArgumentsAndUrl]) -> None:
        """`settings` are as in `palermo.connect`; others come from the usual sources. Raises SettingInvalid."""
        #: Doesn't connect before its first use.
        self.client = Client(Settings.load(**settings))
        self._pages: list[FastAPI] = []

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[dict[str, Any]]:
        """Make the client the default one while the application runs, and finally close it and the pages.

        Use it as an application's `lifespan`, or enter it with `async with` in your own. `request.state.palermo` is the
        client.
        """
        use(self.client)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(run_in_threadpool, self.client.close)
            for pages in self._pages:
                # Mounted applications don't receive the outer application's startup and shutdown.
                await stack.enter_async_context(pages.router.lifespan_context(pages))
            yield {"palermo": self.client}

    def mount_pages(self, app: Starlette, path: str, *, auth: Authenticate, **options: Any) -> FastAPI:
        """Mount the web pages under this path, and return them.

        `auth` is called with each request and returns a `User`, a response such as a redirect to a login page, or None
        for 401. `options` are those of `palermo.webui.create_app`; set your hosts, `hosts=["shop.example.com"]`. Raises
        SettingInvalid.
        """
        pages = create_app(self.client, auth=auth, **options)
        app.mount(path, pages)
        self._pages.append(pages)
        return pages
