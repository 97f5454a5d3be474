"""The command line, in this process and as a process of its own, on an embedded broker of the test's own."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from palermo.cli import main
from palermo.client.client import Client
from palermo.jobs import registry
from palermo.settings.settings import Settings

#: Runs `palermo` with these arguments and expects this exit code.
Palermo = Callable[..., Result]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of an embedded broker that exists and is empty."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    with Client(Settings(url=url)) as client:
        client.run(lambda broker: broker.queues())
    return url


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    client = Client(Settings(url=url, publish_timeout=30.0))
    yield client
    client.close()


@pytest.fixture
def palermo(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Palermo:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("PALERMO_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PALERMO_URL", url)
    # The command is run in this process, where other tests have declared jobs; a shell's has none.
    monkeypatch.setattr(registry, "_jobs", {})

    def run(*arguments: str, code: int = 0, stdin: str | None = None) -> Result:
        result = CliRunner().invoke(main, arguments, input=stdin)
        assert result.exit_code == code, (result.exit_code, result.output, result.exception)
        assert "Traceback" not in result.stderr
        return result

    return run


@pytest.fixture
def process(url: str, tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Runs the installed command as a process of its own."""

    def run(*arguments: str, **more: object) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "PALERMO_URL": url, **more.pop("env", {})}  # type: ignore[dict-item]
        command = [str(Path(sys.executable).with_name("palermo")), *arguments]
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False, **more
        )  # type: ignore[call-overload, no-any-return]

    return run
