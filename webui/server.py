"""`palermo web`, behind its command: one uvicorn that serves the application and ends in good order."""

import logging
import socket
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI

from palermo.errors import SettingInvalid
from palermo.webui.journaled import journaled
from palermo.webui.site import Site

log = logging.getLogger("palermo.web")

#: Seconds that running requests get when the server is told to end.
GRACE = 5


class Server(uvicorn.Server):
    """Ends with exit code 0 when it is told to: uvicorn's own dies of the signal once more."""

    def __init__(self, app: FastAPI, *, host: str, port: int) -> None:
        self._site: Site = app.state.site
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                log_config=None,
                access_log=False,
                server_header=False,
                # The guard reads X-Forwarded-*, where web_trust_proxy says so.
                proxy_headers=False,
                timeout_graceful_shutdown=GRACE,
                limit_concurrency=1_000,
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


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there, taken before anything is said. Raises SettingInvalid."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SettingInvalid(f"cannot listen on {host} port {port}: {reason}. Choose with --host and --port.") from None


def serve(app: FastAPI, *, host: str, port: int, at: socket.socket) -> None:
    """Serve until TERM or INT: what runs is finished within GRACE seconds, and live streams end at once."""
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    site: Site = app.state.site
    log.info("web pages served broker=%s", site.connected_to)
    journaled(site)  # reading it may take a while, so it begins now
    Server(app, host=host, port=port).run(sockets=[at])
    log.info("web pages stopped")
