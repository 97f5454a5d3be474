"""A small HTTP server for `/metrics`, based on prometheus_client and wsgiref.

The process's event loop only accepts connections; each request is handled in its own thread. The number of connections,
the size of a request and the seconds between its parts are limited.
"""

import logging
import socket
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app

from palermo.metrics import is_bearer

log = logging.getLogger("palermo.metrics")

#: Maximum number of simultaneous connections, and maximum seconds to wait for a client.
_MOST, _PATIENCE = 20, 10.0


class _Handler(WSGIRequestHandler):
    timeout = _PATIENCE

    def log_message(self, format: str, *args: Any) -> None:
        """Log no requests."""


class Endpoint(ThreadingWSGIServer):
    """Answers scrapers on a listening socket. The event loop passed to `serve` accepts the connections."""

    #: Don't wait for a connection: the event loop calls when there is one.
    timeout = 0

    def __init__(self, at: socket.socket, registry: CollectorRegistry, *, token: str = "") -> None:
        """`token` is required from clients, unless it is ""."""
        super().__init__(at.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = at
        self.server_name, self.server_port = at.getsockname()[:2]
        self.setup_environ()
        self.set_app(_application(registry, token))
        self._free = threading.BoundedSemaphore(_MOST)

    def serve(self, loop: AbstractEventLoop) -> None:
        """Start answering."""
        loop.add_reader(self.socket, self.handle_request)
        host = f"[{self.server_name}]" if ":" in self.server_name else self.server_name
        log.info("metrics served url=http://%s:%d/metrics", host, self.server_port)

    def close(self, loop: AbstractEventLoop) -> None:
        """Stop accepting connections."""
        loop.remove_reader(self.socket)
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("metrics not sent client=%s", client_address, exc_info=True)


def _application(registry: CollectorRegistry, token: str) -> Callable[..., Iterable[bytes]]:
    metrics = make_wsgi_app(registry)

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        text = [("Content-Type", "text/plain; charset=utf-8")]
        if environ["PATH_INFO"] != "/metrics":
            start_response("404 Not Found", text)
            return [b"The metrics are at /metrics.\n"]
        if token and not is_bearer(environ.get("HTTP_AUTHORIZATION", ""), token):
            start_response("401 Unauthorized", [*text, ("WWW-Authenticate", "Bearer")])
            return [b"Send the token in the metrics_token setting: Authorization: Bearer TOKEN.\n"]
        found: Iterable[bytes] = metrics({**environ, "QUERY_STRING": ""}, start_response)
        return found

    return application
