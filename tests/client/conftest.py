"""A default client on an embedded broker of the test's own."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palermo.client import client as clients
from palermo.client.client import Client
from palermo.core.message import Message
from palermo.settings.settings import Settings

#: What waits in a queue of the client's broker, oldest first.
Waiting = Callable[..., list[Message]]


@pytest.fixture(autouse=True)
def _own_world(own_world: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return clients.use(Client(Settings(url=f"sqlite:///{tmp_path}/jobs.db", publish_timeout=30.0)))


@pytest.fixture
def waiting(client: Client) -> Waiting:
    def browse(queue: str = "jobs", **options: Any) -> list[Message]:
        return list(client.run(lambda broker: broker.browse(queue, limit=100_000, **options)).messages)

    return browse


def run_threads(count: int, work: Callable[[int], object]) -> None:
    """Run `work` with each number below `count` in a thread of its own."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
