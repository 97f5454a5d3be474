"""The server of `palermo web`: a uvicorn that serves the application, bounds its connections, and ends in good order.

A connection is idle from its opening until the head of a request has come, and again after the end of that
request. Idle connections never shut other clients out. They end after IDLE_TIMEOUT seconds, or earlier, the oldest
first, if their address or all clients together have too many. Connections with a running request do not count as idle.
A proxy in front, whose connections all come from one address, needs no idle ones.
"""

import asyncio
import logging
import resource
import socket
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import cast

import uvicorn
from fastapi import FastAPI
from msgspec import Struct
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from palermo.errors import SettingInvalid
from palermo.webui.security.auth import network_of
from palermo.webui.security.local_access import PARAMETER
from palermo.webui.site import Site
from palermo.webui.state.journal_views import journal_views

#: Seconds for the head of a request to arrive, and for a client to take what it is sent.
IDLE_TIMEOUT, SEND_TIMEOUT = 10.0, 30.0

#: The most idle connections of one address.
MAX_IDLE_PER_ADDRESS = 100

#: The most connections, and the most that are accepted in one turn of the event loop.
MAX_CONNECTIONS, BACKLOG = 1_000, 100

#: An address and a port.
Peer = tuple[str, int]

log = logging.getLogger("palermo.web")

#: Seconds that running requests get when the server is told to stop.
SHUTDOWN_TIMEOUT = 5


class Connection(Struct):
    """One open connection."""

    transport: asyncio.Transport
    network: str
    #: How many of its requests are running: at most one, except for a moment between two pipelined requests.
    requests: int = 0
    timer: asyncio.TimerHandle | None = None


class Connections:
    """All connections of a server. It is an ASGI application around the one that is served."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        #: Half of the file descriptors are left for the broker's connections and for files.
        self._max = MAX_CONNECTIONS if files == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, files // 2)
        self._open: dict[Peer, Connection] = {}
        #: The idle connections, the oldest first: all, and by network.
        self._idle: dict[Peer, None] = {}
        self._idle_of: dict[str, dict[Peer, None]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = self._open.get(scope["client"]) if scope.get("client") else None
        if connection is None:
            await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            try:
                async with asyncio.timeout(SEND_TIMEOUT):
                    await send(message)
            except TimeoutError:
                connection.transport.abort()  # What is sent after this is lost.

        if len(self._open) - len(self._idle) >= self._max:
            busy = PlainTextResponse("Too many requests are under way. Try again.\n", 503, {"Retry-After": "3"})
            await busy(scope, receive, send)
            return
        peer = scope["client"]
        connection.requests += 1
        self._remove_idle(peer)
        try:
            await self._app(scope, receive, sending)
        finally:
            connection.requests -= 1
            if connection.requests == 0 and self._open.get(peer) is connection:
                self._add_idle(peer)

    def opened(self, peer: Peer, transport: asyncio.Transport) -> None:
        """Add a new connection, which is idle."""
        if len(self._open) >= self._max:
            self._close_oldest(self._idle)
        self._open[peer] = Connection(transport, network_of(peer[0]))
        self._add_idle(peer)

    def closed(self, peer: Peer) -> None:
        """Remove a connection that has ended."""
        self._remove_idle(peer)
        self._open.pop(peer, None)

    def _add_idle(self, peer: Peer) -> None:
        connection = self._open[peer]
        of_network = self._idle_of.setdefault(connection.network, {})
        if len(of_network) >= MAX_IDLE_PER_ADDRESS:
            self._close_oldest(of_network)
        self._idle[peer] = of_network[peer] = None
        self._idle_of[connection.network] = of_network
        connection.timer = asyncio.get_running_loop().call_later(IDLE_TIMEOUT, connection.transport.close)

    def _remove_idle(self, peer: Peer) -> None:
        connection = self._open.get(peer)
        if connection is None or connection.timer is None:
            return
        connection.timer.cancel()
        connection.timer = None
        del self._idle[peer]
        of_network = self._idle_of[connection.network]
        del of_network[peer]
        if not of_network:
            del self._idle_of[connection.network]

    def _close_oldest(self, idle: dict[Peer, None]) -> None:
        """Close the oldest of these connections."""
        oldest = next(iter(idle), None)
        if oldest is not None:
            self._open[oldest].transport.abort()
            self.closed(oldest)


class Protocol(H11Protocol):
    """HTTP by h11, which bounds the head of a request. Its application must be a Connections."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.client is not None:
            cast(Connections, self.config.app).opened(self.client, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.client is not None:
            cast(Connections, self.config.app).closed(self.client)
        super().connection_lost(exc)


class Server(uvicorn.Server):
    """A uvicorn server that ends with exit code 0 on a signal. uvicorn's own raises the signal again and dies of it."""

    def __init__(self, app: FastAPI, *, host: str, port: int) -> None:
        self._site: Site = app.state.site
        super().__init__(
            uvicorn.Config(
                Connections(app),
                http=Protocol,
                host=host,
                port=port,
                log_config=None,
                access_log=False,
                server_header=False,
                # The guard reads X-Forwarded-* if web_trust_proxy is set.
                proxy_headers=False,
                timeout_graceful_shutdown=SHUTDOWN_TIMEOUT,
                backlog=BACKLOG,
            )
        )

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        with super().capture_signals():
            yield
            self._captured_signals.clear()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._site.stopping.set()
        super().handle_exit(sig, frame)


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens on this address, opened before anything is printed. Raises SettingInvalid."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SettingInvalid(f"cannot listen on {host} port {port}: {reason}. Choose with --host and --port.") from None


def pages_url(host: str, port: int, prefix: str = "", token: str = "") -> str:
    """The address of the pages, to be printed. It contains the start-up token, which is secret."""
    where = f"[{host}]" if ":" in host else host
    return f"http://{where}:{port}{prefix}/" + (f"?{PARAMETER}={token}" if token else "")


def serve(app: FastAPI, *, host: str, port: int, at: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT. Running requests then get SHUTDOWN_TIMEOUT seconds; live streams end at once."""
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    site: Site = app.state.site
    log.info("web pages served broker=%s", site.connected_to)
    journal_views(site)  # Reading the journal may take a while, so it begins now.
    Server(app, host=host, port=port).run(sockets=[at])
    log.info("web pages stopped")
