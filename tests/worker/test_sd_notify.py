"""A worker's messages to systemd: real datagrams from a real worker, and from one whose session comes and goes."""

import asyncio
import secrets
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from palermo.contract.worker_info import WorkerInfo
from palermo.settings.environment import ServiceManager, service_manager
from palermo.worker.parent.sd_notify import Notifier
from tests.contract.tools import until
from tests.harness.rig import Rig
from tests.helpers import eventually


class Manager:
    """Listens as systemd does."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.setblocking(False)
        self._lines: list[str] = []

    def lines(self) -> list[str]:
        while True:
            try:
                self._lines += self._socket.recv(65_536).decode().splitlines()
            except BlockingIOError:
                return self._lines

    def forget(self) -> None:
        self.lines()
        self._lines = []

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(getattr(request, "param", f"{tmp_path}/notify"))
    yield manager
    manager.close()


def status(manager: Manager) -> str:
    return next((line for line in reversed(manager.lines()) if line.startswith("STATUS=")), "")


def test_a_worker_says_when_it_is_ready_what_it_does_and_that_it_stops(rig: Rig, manager: Manager) -> None:
    worker = rig.worker(NOTIFY_SOCKET=manager.address, WATCHDOG_USEC="400000")

    eventually(lambda: "READY=1" in manager.lines())
    assert manager.lines().count("READY=1") == 1
    rig.hold()
    eventually(lambda: status(manager).startswith("STATUS=working: 1 of 1 slot busy"))
    eventually(lambda: manager.lines().count("WATCHDOG=1") >= 4)
    worker.send(signal.SIGTERM)
    eventually(lambda: "STOPPING=1" in manager.lines())
    eventually(lambda: any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in manager.lines()))
    rig.open_gate()

    assert worker.wait() == 0
    assert manager.lines().index("READY=1") < manager.lines().index("STOPPING=1")


INFO = WorkerInfo(id="pid:1@h", host="h", pid=1, queues=("jobs",), slots=2, state="idle", started_at=1.0)


#: A name outside of the file system.
ABSTRACT = f"@palermo-test-{secrets.token_hex(6)}"


@pytest.mark.parametrize("manager", [ABSTRACT], ids=["abstract"], indirect=True)
async def test_a_worker_that_stops_at_once_was_ready_before(manager: Manager) -> None:
    available, stopping = asyncio.Event(), asyncio.Event()
    notifier = Notifier(ServiceManager(address=manager.address, watchdog=0.0))
    async with notifier.informed(lambda: INFO, available=available, stopping=stopping):
        await asyncio.sleep(0)  # it waits for either
        available.set()
        stopping.set()
        await until(lambda: "STOPPING=1" in manager.lines(), True)
        lines = manager.lines()
        manager.close()
        assert notifier._send("STATUS=where nobody listens")

    assert lines.index("READY=1") < lines.index("STOPPING=1")
    assert "WATCHDOG=1" not in lines


async def test_the_watchdog_is_fed_only_while_the_session_is_open(manager: Manager) -> None:
    available = asyncio.Event()
    notifier = Notifier(ServiceManager(address=manager.address, watchdog=0.02))
    async with notifier.informed(lambda: INFO, available=available, stopping=asyncio.Event()):
        await asyncio.sleep(0.05)
        assert "READY=1" not in manager.lines()
        available.set()
        await until(lambda: manager.lines().count("WATCHDOG=1") >= 5, True)

        available.clear()
        await until(lambda: "no session with the broker" in status(manager), True)
        manager.forget()
        await asyncio.sleep(0.1)
        assert manager.lines() == []

        available.set()
        await until(lambda: "WATCHDOG=1" in manager.lines(), True)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"NOTIFY_SOCKET": "relative"}, None),
        ({"NOTIFY_SOCKET": "/run/n"}, (None, "/run/n")),
        ({"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, (30.0, "@n")),
        ({"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, (None, "@n")),
        ({"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "soon"}, (None, "@n")),
    ],
)
def test_the_environment_names_the_service_manager(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: tuple[float | None, str] | None
) -> None:
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    found = service_manager(7)

    assert (found and (found.watchdog, found.address)) == expected
