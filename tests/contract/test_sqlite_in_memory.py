"""The embedded broker in memory is a file that ends with its last session. test_sqlite.py has all else."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from palermo.client.client import Client
from palermo.contract.broker import Broker, SessionParameters, open_broker
from palermo.core.address import parse_url
from palermo.settings.settings import Settings
from tests.contract.tools import ids, message

URL = "sqlite:///:memory:"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the test's process keeps what is in memory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


async def test_sessions_of_one_process_share_what_is_in_memory(sessions: list[Broker]) -> None:
    at = [SessionParameters(address=parse_url(URL), exchange=exchange) for exchange in ("a", "a", "b")]
    first, second, elsewhere = [await open_broker(one) for one in at]
    sessions += first, second, elsewhere
    await first.publish(message("7c9e"))

    assert await ids(second) == ["7c9e"]
    assert await elsewhere.queues() == []


def test_what_is_in_memory_ends_with_the_last_session(folder: Path) -> None:
    with Client(Settings(url=URL)) as client:
        client.enqueue("shop.mail")
        assert len(list(folder.iterdir())) == 1

    assert list(folder.iterdir()) == []
    with Client(Settings(url=URL)) as client:
        assert client.run(lambda broker: broker.queues()) == []


def test_another_process_has_a_memory_of_its_own() -> None:
    program = (
        "from palermo.client.client import Client; from palermo.settings.settings import Settings\n"
        f"with Client(Settings(url={URL!r})) as client: print(client.run(lambda broker: broker.queues()))"
    )
    with Client(Settings(url=URL)) as client:
        client.enqueue("shop.mail")
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
