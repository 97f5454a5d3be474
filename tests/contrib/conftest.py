"""The integrations, with the real frameworks, on an embedded broker of the test's own.

What they register in this process (hooks, jobs, settings, failure backends) ends with the test.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from palermo.client import client as clients
from palermo.client.client import Client
from palermo.contract.serialization import Accept, Serializers
from palermo.inspector.inspector import Inspector
from palermo.jobs import registry
from palermo.settings import settings as program_settings
from palermo.settings.settings import Settings
from palermo.worker.child.executor import Executor


@pytest.fixture(autouse=True)
def _own_world(own_world: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALERMO_URL", f"sqlite:///{tmp_path}/jobs.db")
    monkeypatch.setenv("PALERMO_PUBLISH_TIMEOUT", "30")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(program_settings, "_declared", {})


@pytest.fixture
def client() -> Iterator[Client]:
    """The default client."""
    with clients.use(Client()) as client:
        yield client


@pytest.fixture
def away() -> Callable[[], AbstractContextManager[Client]]:
    """A context in which the broker is away, so that an outbox keeps its rows at the commit."""
    return lambda: clients.lend(Client(Settings.load(url="amqp://127.0.0.1:1/", publish_timeout=0.05)))


@pytest.fixture
def executor() -> Executor:
    """Runs jobs as a slot of a worker does."""
    serializers = Serializers.default()
    return Executor(registry=registry, serializers=serializers, accept=Accept.default(), worker="pid:1@h/worker-1")


@pytest.fixture
def waiting(client: Client) -> Callable[[], list[str]]:
    """The jobs that wait, in their order: the last part of each one's name, with its arguments: `send(1)`."""
    inspector = Inspector(client)

    def found() -> list[str]:
        names = [row["name"] for row in inspector.queues.list() if row["pending"]]
        rows = [row for name in names for row in inspector.jobs.list(name).rows]
        return [f"{row['job'].rpartition('.')[2]}({row['preview']})" for row in rows]

    return found


def output_of(command: Sequence[str | Path], folder: Path, environment: Mapping[str, str]) -> str:
    """What a program of Python prints there; it must end well. An import of plug-ins may take minutes."""
    command = [sys.executable, *command]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
