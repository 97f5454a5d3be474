"""The command line, in this process and as a process of its own, on an embedded broker of the test's own."""

import json
import os
import pty
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from palermo.cli import main
from palermo.client.client import Client
from palermo.jobs import registry
from palermo.settings.settings import Settings

#: Runs the installed command as a process of its own.
Process = Callable[..., "subprocess.CompletedProcess[str]"]

COMMAND = str(Path(sys.executable).with_name("palermo"))


class Palermo:
    """Runs `palermo` in this process."""

    def __call__(self, *arguments: str, code: int = 0, stdin: str | None = None) -> Result:
        """What the command says with these arguments; it must end with this exit code."""
        result = CliRunner().invoke(main, arguments, input=stdin)
        assert result.exit_code == code, (result.exit_code, result.output, result.exception)
        assert "Traceback" not in result.stderr
        return result

    def rows(self, *arguments: str, code: int = 0) -> Any:
        """What it says as JSON."""
        return json.loads(self(*arguments, "--json", code=code).stdout)

    def ids(self, *listing: str) -> list[str]:
        """The ids that a listing shows."""
        return [row["id"] for row in self.rows(*listing)]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of an embedded broker that exists and is empty."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    with Client(Settings(url=url)) as client:
        client.run(lambda broker: broker.queues())
    return url


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(Settings(url=url, publish_timeout=30.0)) as client:
        yield client


@pytest.fixture
def palermo(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Palermo]:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("PALERMO_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PALERMO_URL", url)
    # The command is run in this process, where other tests have declared jobs; a shell's has none.
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield Palermo()
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def process(url: str, tmp_path: Path) -> Process:
    def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [COMMAND, *arguments],
            env={**os.environ, "PALERMO_URL": url, **environment},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
        )

    return run


@contextmanager
def on_terminal(arguments: Sequence[str], url: str, **environment: str) -> Iterator[tuple[int, int]]:
    """The command with a terminal for all three streams; gives the terminal's other end, and the pid."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update({"PALERMO_URL": url, "TERM": "xterm", "COLUMNS": "120", **environment})
        os.execv(COMMAND, [COMMAND, *arguments])
    try:
        yield terminal, pid
    finally:
        os.close(terminal)


def read_until(terminal: int, text: str) -> str:
    """What the command has shown when it shows this text; OSError if it ends before that."""
    seen = b""
    while text.encode() not in seen:
        assert select.select([terminal], [], [], 60)[0], seen
        seen += os.read(terminal, 65_536)
    return seen.decode(errors="replace")
