"""The server of `palermo web`: uvicorn, which serves the application and stops cleanly on a signal.

uvicorn limits the size of a request's head, and answers 503 above MAX_CONNECTIONS. Against clients that open
connections and send nothing, use a proxy.
"""

import logging
import resource
import socket
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

from fastapi import FastAPI

from palermo.contract.extras import extra
from palermo.errors import SettingInvalid
from palermo.webui import tuning
from palermo.webui.security.local_access import PARAMETER
from palermo.webui.site import Site
from palermo.webui.state.journal_views import journal_views

with extra("web", "`palermo web`"):
    import uvicorn

#: Maximum number of connections. Leaves half of the file descriptors for the broker and files.
MAX_CONNECTIONS = 1_000

log = logging.getLogger("palermo.web")


class Server(uvicorn.Server):
    """A uvicorn server that exits with code 0 on a signal. uvicorn itself raises the signal again and is killed
    by it.
    """

    def __init__(self, app: FastAPI, *, host: str, port: int) -> None:
        self._site: Site = app.state.site
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",
                host=host,
                port=port,
                log_config=None,
                access_log=False,
                server_header=False,
                # The guard reads X-Forwarded-* if web_trust_proxy is set.
                proxy_headers=False,
                timeout_graceful_shutdown=int(tuning.LONG_WAIT),
                limit_concurrency=_limit(),
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


def _limit() -> int:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, files // 2)


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens at this address, opened before anything is printed. Raises SettingInvalid."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SettingInvalid(
            f"cannot listen on {host} port {port}: {reason}. Choose another with --host and --port."
        ) from None


def pages_url(host: str, port: int, prefix: str = "", token: str = "") -> str:
    """Return the URL of the pages for printing. It contains the secret start-up token."""
    where = f"[{host}]" if ":" in host else host
    return f"http://{where}:{port}{prefix}/" + (f"?{PARAMETER}={token}" if token else "")


def serve(app: FastAPI, *, host: str, port: int, at: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT. Running requests then get LONG_WAIT seconds; live streams end immediately."""
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    site: Site = app.state.site
    log.info("web pages served broker=%s", site.connected_to)
    journal_views(site)  # Start reading the journal now, because it may take a while.
    Server(app, host=host, port=port).run(sockets=[at])
    log.info("web pages stopped")
