"""A small HTTP server for one page, `/metrics`, in an event loop whose own work matters more.

Everything is bounded, since the process must not suffer from the clients that ask: connections, bytes, seconds, and how
often the page is made. It speaks as much HTTP/1.1 as scrapers and curl do, one request to a connection.
"""

import asyncio
import hmac
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

log = logging.getLogger("palermo.metrics")

#: A body, and headers that go with it.
Answer = tuple[bytes, Mapping[str, str]]

#: The most connections at a time, bytes of a request, and seconds from its first byte to the last of the answer.
_MOST, _MAX_REQUEST, _PATIENCE = 20, 16_384, 10.0

#: Seconds for which a page is used again.
_HOLDS = 1.0


class Endpoint:
    """Answers scrapers; belongs to one event loop."""

    def __init__(self, at: socket.socket, answer: Callable[[str, str], Awaitable[Answer]], *, token: str = "") -> None:
        """`answer` gets the type and the encoding that a request accepts. A request needs `token`, unless it is ""."""
        self._socket = at
        self._answer = answer
        self._token = token
        self._open = 0
        self._made: dict[tuple[str, str], tuple[float, Answer]] = {}
        self._making = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Begin to answer."""
        self._server = await asyncio.start_server(self._accept, sock=self._socket, limit=_MAX_REQUEST)
        host, port = self._socket.getsockname()[:2]
        log.info("metrics served url=http://%s:%d/metrics", f"[{host}]" if ":" in host else host, port)

    async def close(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._open >= _MOST:
            writer.transport.abort()
            return
        self._open += 1
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._open -= 1
        self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._respond(head.decode("latin-1")))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client went away, or is none that is served here
        except Exception:  # the edge of a request
            log.exception("cannot tell metrics")
        finally:
            writer.transport.abort()

    async def _respond(self, head: str) -> bytes:
        first, *lines = head.split("\r\n")
        method, _, rest = first.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if path != "/metrics":
            return _response(404, b"The metrics are at /metrics.\n")
        if method not in ("GET", "HEAD"):
            return _response(405, b"Metrics can only be read.\n", {"allow": "GET, HEAD"})
        if self._token and not is_bearer(headers.get("authorization", ""), self._token):
            text = b"This wants the token of the setting metrics_token: Authorization: Bearer TOKEN.\n"
            return _response(401, text, {"www-authenticate": "Bearer"})
        body, more = await self._page(headers.get("accept", ""), headers.get("accept-encoding", ""))
        return _response(200, body, more, head_only=method == "HEAD")

    async def _page(self, accept: str, encoding: str) -> Answer:
        """The page, made once for all requests of this moment."""
        key, now = (accept, encoding), asyncio.get_running_loop().time
        async with self._making:
            self._made = {each: made for each, made in self._made.items() if now() - made[0] < _HOLDS}
            if key not in self._made:
                self._made[key] = (now(), await self._answer(accept, encoding))
            return self._made[key][1]


def is_bearer(authorization: str, token: str) -> bool:
    """Whether a header `Authorization` holds this token."""
    scheme, _, given = authorization.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())


def _response(status: int, body: bytes, headers: Mapping[str, str] | None = None, *, head_only: bool = False) -> bytes:
    lines = {
        "content-type": "text/plain; charset=utf-8",
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
        **(headers or {}),
        "content-length": str(len(body)),
        "connection": "close",
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{head}\r\n".encode() + (b"" if head_only else body)
