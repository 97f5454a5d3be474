"""A web server in this process, and what tests ask it with."""

import asyncio
import re
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from html import unescape
from typing import Any, Self

import httpx
import pytest
import uvicorn
from argon2 import PasswordHasher
from starlette.types import ASGIApp

from palermo.client.client import Client
from palermo.errors import NotFound
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from palermo.webui import create_app
from palermo.webui.failed.operations import Operation
from tests.helpers import HANGS, eventually

#: For passwords that nobody guesses at: a hash in no time.
CHEAP = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)

_FORM = re.compile(r"<form ([^>]*method=\"post\"[^>]*)>(.*?)</form>", re.DOTALL)
_ACTION = re.compile(r'action="([^"]*)"')
_HIDDEN = re.compile(r'<input type="hidden" name="(\w+)" value="([^"]*)"')

#: What a browser sends with the forms of a page.
SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}


def text_of(answer: httpx.Response) -> str:
    """What a page says, without markup and as one line."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", answer.text)).split())


def answer_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let forms and API answer with what came of a command on failed jobs, however long it takes, not that it goes on.

    Else a form waits a second for it, and the API five.
    """
    monkeypatch.setattr(Operation, "wait", lambda operation, seconds: operation._ended.wait(HANGS))


class _Server(uvicorn.Server):
    """Ends when it is told to. uvicorn looks for that every 0.1 s, and pauses as long before it closes."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serves = threading.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        self._loop, self._told = asyncio.get_running_loop(), asyncio.Event()
        self.serves.set()
        await self._told.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for _ in range(20):
            if not (self.server_state.connections or self.server_state.tasks):
                for server in self.servers:
                    server.close()
                await self.lifespan.shutdown()
                return
            await asyncio.sleep(0.005)
        await super().shutdown(sockets)

    def end(self) -> None:
        """Have it end; any thread may call this once it serves."""
        self.should_exit = True
        self._loop.call_soon_threadsafe(self._told.set)


class Web:
    """The application on a port of its own, a client of the same broker, and an HTTP client."""

    def __init__(
        self, settings: Settings, *, around: Callable[[ASGIApp], ASGIApp] | None = None, **options: Any
    ) -> None:
        """`around` puts the application into another; the other options are those of create_app."""
        self.client = Client(settings)
        self.inspector = Inspector(self.client)
        self.app = create_app(settings=settings, **options)
        served: ASGIApp = self.app if around is None else around(self.app)
        config = uvicorn.Config(
            served, port=0, log_config=None, proxy_headers=False, lifespan="on", timeout_graceful_shutdown=5
        )
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._server.run, name="web server")

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._server.serves.wait(HANGS)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        # Unverified: to load the certificates of all authorities takes 50 ms, and this is plain HTTP.
        self.http = httpx.Client(base_url=self.url, headers=SAME_ORIGIN, timeout=60, verify=False)
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        self._server.end()
        self._thread.join()
        self.client.close()

    def clear(self) -> None:
        """Take away all queues, and what made this client known."""
        for row in self.inspector.queues.list():
            if row["paused"]:
                self.inspector.queues.resume(row["name"])
            with suppress(NotFound):
                self.inspector.queues.delete(row["name"])
        self.http.cookies.clear()

    def page(self, path: str, *wanted: str) -> str:
        """The markup of a page, once it holds these texts."""

        def held() -> str:
            text = self.http.get(path).text
            return text if all(each in text for each in wanted) else ""

        return eventually(held)

    def shown(self, path: str) -> str:
        """What the page says, without markup and as one line."""
        answer = self.http.get(path)
        assert answer.status_code == 200, answer.text
        return text_of(answer)

    def api(self, path: str, **query: Any) -> Any:
        """What the API answers."""
        answer = self.http.get(f"/api/{path}", params=query or None)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def ids(self, path: str, **query: Any) -> list[str]:
        """The ids of the rows that the API lists."""
        return [row["id"] for row in self.api(path, **query)["rows"]]

    def form(self, page: str, to: str, **fields: str | list[str]) -> httpx.Response:
        """Send the form that a page has, and follow where it leads."""
        assert 'method="post"' in self.http.get(page).text, f"{page} has no form"
        return self.http.post(to, data=fields, follow_redirects=True)

    def press(self, page: httpx.Response, to: str, **fields: str | list[str]) -> httpx.Response:
        """Send the first form of a page that goes to an address that begins so, with its hidden fields and these."""
        for attributes, inside in _FORM.findall(page.text):
            action = unescape(_ACTION.findall(attributes)[0])
            if action.startswith(to):
                hidden: dict[str, list[str]] = {}
                for name, value in _HIDDEN.findall(inside):
                    hidden.setdefault(name, []).append(unescape(value))
                return self.http.post(action, data={**hidden, **fields}, follow_redirects=True)
        raise AssertionError(f"{page.url} has no form for {to}")
