"""`palermo web` as a process of its own, and what tests ask it with."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, urlsplit

import httpx

from tests.helpers import eventually

PALERMO = str(Path(sys.executable).with_name("palermo"))


class WebProcess:
    """`palermo web` on a port of its own, with the embedded broker of a folder unless a URL is given."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        """The environment is this process's own with these variables besides."""
        self.folder = folder
        self._log = folder / "web.log"
        variables = {"PALERMO_URL": f"sqlite:///{folder}/jobs.db", **environment}
        with self._log.open("w") as file:
            command, env = [PALERMO, "web", "--port", "0", *arguments], {**os.environ, **variables}
            streams = {"stdin": subprocess.DEVNULL, "stderr": file}
            self.process = subprocess.Popen(command, env=env, cwd=folder, text=True, **streams)

    def __enter__(self) -> Self:
        try:
            eventually(lambda: "web pages served" in self.log or self.process.poll() is not None)
        except AssertionError:
            self._kill()
            raise
        #: As it was printed, with the token if there is one.
        self.link = re.findall(r"http://\S+", self.log)[0]
        parts = urlsplit(self.link)
        self.token = parse_qs(parts.query).get("token", [""])[0]
        self.port = parts.port or 0
        self.url = f"http://{parts.netloc}{parts.path}".rstrip("/")
        bearer = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        # Unverified: to load the certificates of all authorities takes 50 ms, and this is plain HTTP.
        #: A program that has the token.
        self.http = httpx.Client(base_url=self.url, headers=bearer, timeout=60, verify=False)
        #: A program that has nothing.
        self.stranger = httpx.Client(base_url=self.url, timeout=60, verify=False)
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        self.stranger.close()
        self._kill()

    def _kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def log(self) -> str:
        """All that it has said."""
        return self._log.read_text()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Tell it to end; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(90)


def has_ended(connection: socket.socket) -> bool:
    """Whether the server has ended it; what it had sent before is thrown away."""
    connection.setblocking(False)
    try:
        while connection.recv(65_536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
