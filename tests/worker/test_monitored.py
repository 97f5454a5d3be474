"""What a worker tells Prometheus and systemd, also while its session comes and goes, and a log that nothing reads."""

import asyncio
import os
import re
import secrets
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from palermo.contract.worker_info import WorkerInfo
from palermo.metrics.catalogue import WORKER
from palermo.settings.environment import ServiceManager, service_manager
from palermo.worker.logs import LineWriter
from palermo.worker.parent.sd_notify import Notifier
from tests.contract.tools import until
from tests.harness.rig import COMMAND, Rig
from tests.helpers import HANGS, eventually
from tests.metrics.scraping import Scraped

TOKEN = "a-token-for-prometheus"


def scrape(url: str) -> Scraped:
    answer = httpx.get(url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60)
    assert answer.status_code == 200
    return Scraped(answer.text)


def test_a_worker_counts_what_its_jobs_do_at_every_level_of_the_journal(rig: Rig) -> None:
    for number in range(20):
        rig.enqueue("note", str(rig.notes_path), str(number))
    for _ in range(3):
        rig.enqueue("raises", "no")
    worker = rig.worker(
        *("--metrics-port", "0", "-c", "2"), PALERMO_METRICS_TOKEN=TOKEN, PALERMO_JOURNAL="off", PALERMO_RELEASE="v7"
    )
    [url] = eventually(lambda: re.findall(r"metrics served url=(\S+)", worker.log))
    jobs = {"queue": "jobs", "job_name": "crew.note"}

    eventually(lambda: scrape(url).value("palermo_worker_jobs_processed_total", outcome="succeeded", **jobs) == 20)
    failed = {"queue": "jobs", "job_name": "crew.raises", "outcome": "failed"}
    eventually(lambda: scrape(url).value("palermo_worker_jobs_processed_total", **failed) == 3)
    rig.hold()
    eventually(lambda: scrape(url).value("palermo_worker_slots_busy") == 1)
    found = scrape(url)

    assert found.value("palermo_worker_job_run_seconds_count", **jobs) == 20
    assert found.value("palermo_worker_job_wait_seconds_count", queue="jobs") == 23
    assert found.value("palermo_worker_slots") == 2
    assert found.value("palermo_worker_broker_up") == 1
    assert found.value("palermo_worker_state", state="working") == 1
    assert {name for name in found.names if name.startswith("palermo_worker_info")}
    assert any(dict(labels).get("release") == "v7" for name, labels in found.samples if name == "palermo_worker_info")
    assert {metric.name.removesuffix("_total") for metric in WORKER} <= set(found.families)
    assert found.value("process_cpu_seconds_total")
    assert httpx.get(url, timeout=60).status_code == 401
    assert TOKEN not in worker.log
    rig.open_gate()


def test_a_port_that_is_taken_is_said_before_anything_is_started(rig: Rig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        worker = rig.worker("--metrics-port", str(other.getsockname()[1]))

        assert worker.wait() == 2
        assert "Each worker on a machine needs its own port" in worker.log


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
def manager(tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(f"{tmp_path}/notify")
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


@pytest.mark.slow
def test_a_name_outside_of_the_file_system_without_a_watchdog(rig: Rig) -> None:
    manager = Manager(f"@palermo-test-{secrets.token_hex(6)}")
    rig.enqueue("nothing")

    rig.burst(NOTIFY_SOCKET=manager.address)

    assert "READY=1" in manager.lines()
    assert "WATCHDOG=1" not in manager.lines()
    manager.close()
    assert "worker stopped" in rig.burst(NOTIFY_SOCKET=manager.address)  # where nobody listens


INFO = WorkerInfo(id="pid:1@h", host="h", pid=1, queues=("jobs",), slots=2, state="idle", started_at=1.0)


async def test_a_worker_that_stops_at_once_was_ready_before(manager: Manager) -> None:
    available, stopping = asyncio.Event(), asyncio.Event()
    notifier = Notifier(ServiceManager(address=manager.address, watchdog=0.0))
    async with notifier.informed(lambda: INFO, available=available, stopping=stopping):
        await asyncio.sleep(0)  # it waits for either
        available.set()
        stopping.set()
        await until(lambda: "STOPPING=1" in manager.lines(), True)

    assert manager.lines().index("READY=1") < manager.lines().index("STOPPING=1")


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


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["process", "async"])
def test_a_worker_whose_log_nothing_reads_works_on_and_obeys_term(rig: Rig, pool: str) -> None:
    for number in range(600):  # two lines each: three times what a pipe holds
        rig.enqueue("note", str(rig.notes_path), str(number))
    command = [COMMAND, "worker", "crew", "--pool", pool, "--log-level", "debug"]

    with subprocess.Popen(command, env=rig.environment, stderr=subprocess.PIPE) as worker:
        try:
            eventually(lambda: len(rig.lines()) == 600)
            eventually(lambda: [row["state"] for row in rig.workers()] == ["idle"])
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(HANGS) == 0
        finally:
            worker.kill()


def test_lines_that_find_the_buffer_full_are_dropped_and_counted() -> None:
    reading, writing = os.pipe()
    writer = LineWriter(writing, lambda count: f"dropped {count}", buffer=10_000)
    for number in range(100_000):
        writer.put(str(number))

    kept, dropped = list[str](), 0
    with os.fdopen(reading) as file:
        while len(kept) + dropped < 100_000:
            word, _, count = file.readline().strip().partition(" ")
            dropped += int(count or 0)
            kept += [] if count else [word]
        writer.drain(10)
        writer.put("the next")
        after = file.readline().strip()
    writer.drain(10)
    os.close(writing)

    assert dropped > 0
    assert kept[:100] == [str(number) for number in range(100)]
    assert after == "the next"


def test_a_worker_that_ends_has_written_its_whole_log(rig: Rig) -> None:
    for number in range(200):
        rig.enqueue("note", str(rig.notes_path), str(number))

    log = rig.burst()

    assert log.count("slot=1 duration=") == 200
    assert "worker stopped" in log.splitlines()[-1]
