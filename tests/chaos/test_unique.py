"""Unique jobs under kills, and enqueued by many at once: one job, one holder, and no key that stays taken."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from palermo.client.client import Client
from palermo.settings.settings import Settings
from tests.brokers import BROKERS, url_of_broker
from tests.helpers import eventually
from tests.rabbitmq_node import Node, url_of
from tests.scale import scaled

#: Kills of workers, enqueuers, and with them of the leader.
KILLS = scaled(25, 1_000)

_ENQUEUE = """
import os, sys, threading
from palermo.client.client import Client
from palermo.settings.settings import Settings
import palermo.brokers.rabbitmq.broker, palermo.brokers.redis.broker, palermo.brokers.sqlite.broker
import palermo.client.prepare

url, exchange, out = sys.argv[1:]
pids = []
for number in range(20):
    pid = os.fork()
    if not pid:
        client = Client(Settings(url=url, exchange=exchange, publish_timeout=60))
        def enqueue():
            job = client.enqueue("shop.sync", [1], unique="until_done")
            handle = os.open(out, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(handle, f"{job.id} {job.enqueued}\\n".encode())
        threads = [threading.Thread(target=enqueue) for _ in range(10)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        os._exit(0)
    pids.append(pid)
for pid in pids:
    os.waitpid(pid, 0)
"""


def read(notes: Path, name: str) -> list[str]:
    """What the crew wrote."""
    found = notes / name
    return found.read_text().splitlines() if found.exists() else []


@pytest.fixture(params=BROKERS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of_broker(request, tmp_path)


@pytest.fixture
def client(url: str, exchange: str) -> Iterator[Client]:
    client = Client(Settings(url=url, exchange=exchange))
    yield client
    client.close()


def test_two_hundred_enqueues_from_twenty_processes_are_one_job(
    url: str, exchange: str, client: Client, tmp_path: Path
) -> None:
    out = tmp_path / "answers"

    subprocess.run([sys.executable, "-c", _ENQUEUE, url, exchange, str(out)], check=True, timeout=240)

    answers = [line.split() for line in out.read_text().splitlines()]
    assert len(answers) == 200
    assert len({id for id, _ in answers}) == 1
    assert [enqueued for _, enqueued in answers].count("True") == 1
    page = client.run(lambda broker: broker.browse("jobs"))
    assert [message.id for message in page.messages] == [answers[0][0]]


@pytest.mark.timeout(scaled(400, 1_800))
def test_whoever_is_killed_no_key_stays_taken_and_none_has_two_holders(
    url: str, exchange: str, client: Client, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()

    command = [sys.executable, "-m", "tests.chaos.key_crew", url, exchange, str(KILLS), str(notes)]
    subprocess.run(command, check=True)

    assert [read(notes, name) for name in ("errors", "two", "stale")] == [[], [], []]
    ran = set(read(notes, "ran"))
    assert set(read(notes, "stored")) <= ran | set(read(notes, "duplicates"))
    assert len(ran) > KILLS // 3


@pytest.mark.timeout(scaled(400, 900))
def test_a_killed_broker_leaves_no_key_taken_or_held_twice(module_node: Node, exchange: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    url = url_of(module_node)
    command = [sys.executable, "-m", "tests.chaos.key_crew", url, exchange, str(scaled(12, 100)), str(notes), "meddled"]

    with subprocess.Popen(command) as crew:
        for number in range(scaled(2, 10)):
            before = len(read(notes, "ran"))
            eventually(lambda before=before: crew.poll() is not None or len(read(notes, "ran")) > before + 3)  # type: ignore[misc]
            if crew.poll() is not None:  # a slow machine was killed less often
                assert number
                break
            module_node.kill9()
            module_node.start()
        assert crew.wait() == 0

    assert [read(notes, name) for name in ("errors", "two", "stale")] == [[], [], []]
