"""A bridge for synchronous code, such as a WSGI view, to call the web pages and get the complete response.

The pages run in an event loop in a thread shared by all requests of the process. Both are created by the first request,
so that a server that imports the program and then forks doesn't share them. An event stream never ends, and would
occupy a server thread. It is therefore answered with 204, which tells browsers not to reconnect, and Palermo's pages
poll instead.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from palermo.client.client import Client, default_client
from palermo.contract.extras import extra

with extra("web", "the web pages"):
    from fastapi import FastAPI
    from starlette.types import ASGIApp, Message, Scope

_EVENTS = b"text/event-stream"


class Answer(NamedTuple):
    """A complete response."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


NO_STREAM = Answer(204, [("Cache-Control", "no-store")], b"")


class _Started(NamedTuple):
    pid: int
    client: Client
    app: FastAPI
    loop: asyncio.AbstractEventLoop
    #: Exiting it stops the pages' own threads.
    lifespan: AbstractAsyncContextManager[Any]


class Bridge:
    """Calls the pages that `make` creates, once per process and default client."""

    def __init__(self, make: Callable[[Client], FastAPI]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._started: _Started | None = None

    def call(self, scope: Scope, body: bytes = b"") -> Answer:
        """Return the pages' response to one request, or raise their error."""
        app, loop = self._start(default_client())
        return asyncio.run_coroutine_threadsafe(_answer(app, scope, body), loop).result()

    def close(self) -> None:
        """Stop the thread. The next call starts a new one."""
        with self._lock:
            self._end()

    def _start(self, client: Client) -> tuple[ASGIApp, asyncio.AbstractEventLoop]:
        with self._lock:
            started = self._started
            if started is None or started.client is not client or started.pid != os.getpid():
                self._end()
                app, loop = self._make(client), asyncio.new_event_loop()
                lifespan = app.router.lifespan_context(app)
                threading.Thread(target=_run, args=(loop,), name="palermo pages", daemon=True).start()
                asyncio.run_coroutine_threadsafe(lifespan.__aenter__(), loop).result()
                started = self._started = _Started(os.getpid(), client, app, loop, lifespan)
            return started.app, started.loop

    def _end(self) -> None:
        started, self._started = self._started, None
        # After a fork, the thread exists only in the parent.
        if started is not None and started.pid == os.getpid():
            asyncio.run_coroutine_threadsafe(started.lifespan.__aexit__(None, None, None), started.loop).result()
            started.loop.call_soon_threadsafe(started.loop.stop)


def http_scope(
    *,
    method: str,
    root: str,
    path: str,
    raw_path: str | bytes | None,
    query: str | bytes,
    headers: Iterable[tuple[str, str]],
    scheme: str,
    client: str,
) -> dict[str, Any]:
    """Return the ASGI scope of a request. `path` is decoded and includes `root`, under which the pages are mounted.

    `raw_path` is the path or whole URL as sent by the client. If the server doesn't provide it (None), a name with a
    slash can't be distinguished from two names.
    """
    if isinstance(raw_path, str):
        raw_path = (urlsplit(raw_path).path if "://" in raw_path else raw_path.partition("?")[0]).encode("latin-1")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": scheme,
        "root_path": root,
        "path": path,
        "raw_path": raw_path or quote(path).encode(),
        "query_string": query.encode("latin-1") if isinstance(query, str) else query,
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers],
        "client": (client, 0) if client else None,
        "server": None,
    }


def raw_path_of(environ: Mapping[str, Any]) -> str | None:
    """Return the path as sent by the client, from a WSGI environment, or None if the server doesn't provide it."""
    # The first is set by gunicorn and Werkzeug, the second by uWSGI and mod_wsgi.
    found: str | None = environ.get("RAW_URI") or environ.get("REQUEST_URI")
    return found


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _answer(app: ASGIApp, scope: Scope, body: bytes) -> Answer:
    start: Message = {"status": 500, "headers": []}
    parts: list[bytes] = []
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    streaming = asyncio.Event()

    async def receive() -> Message:
        return waiting.pop() if waiting else await asyncio.Future[Message]()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
            if any(name.lower() == b"content-type" and value.startswith(_EVENTS) for name, value in message["headers"]):
                streaming.set()
        elif not streaming.is_set():
            parts.append(message.get("body", b""))

    async def run() -> None:
        await app(scope, receive, send)

    running, stream = asyncio.create_task(run()), asyncio.create_task(streaming.wait())
    await asyncio.wait((running, stream), return_when=asyncio.FIRST_COMPLETED)
    stream.cancel()
    if streaming.is_set():
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        return NO_STREAM
    await running  # raises its error
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in start["headers"]]
    return Answer(start["status"], headers, b"".join(parts))
