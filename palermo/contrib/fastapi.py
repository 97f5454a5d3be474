"""Palermo in FastAPI and Starlette: the client lives as long as the application, and the pages are mounted in it.

    jobs = Palermo()
    app = FastAPI(lifespan=jobs.lifespan)
    jobs.mount_pages(app, "/ops/jobs", auth=who)

docs/guides/fastapi.md has a whole program.
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
    """The client of one application, and its pages."""

    def __init__(self, **settings: Unpack[SettingArgumentsAndUrl]) -> None:
        """`settings` are those of `palermo.connect`; other settings are loaded as usual. Raises SettingInvalid."""
        #: Opens nothing before its first use.
        self.client = Client(Settings.load(**settings))
        self._pages: list[FastAPI] = []

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[dict[str, Any]]:
        """Make the client the default one while the application runs, and close it and the pages at the end.

        It is the `lifespan` of an application; in one of your own, enter it with `async with`. `request.state.palermo`
        is the client.
        """
        use(self.client)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(run_in_threadpool, self.client.close)
            for pages in self._pages:
                # A mounted application doesn't get the start and end of the outer one.
                await stack.enter_async_context(pages.router.lifespan_context(pages))
            yield {"palermo": self.client}

    def mount_pages(self, app: Starlette, path: str, *, auth: Authenticate, **options: Any) -> FastAPI:
        """Mount the web pages under this path, and return them.

        `auth` gets each request and returns a `User`, a response such as a redirect to a login page, or None for 401.
        `options` are those of `palermo.webui.create_app`: name your hosts, `hosts=["shop.example.com"]`.
        Raises SettingInvalid.
        """
        pages = create_app(self.client, auth=auth, **options)
        app.mount(path, pages)
        self._pages.append(pages)
        return pages
