"""The embedded broker among several processes: their deaths and their waking."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from palermo.brokers.sqlite.file import notifier
from palermo.brokers.sqlite.file.lock_holder import lock_holder
from palermo.contract.broker import Broker, SessionParameters, open_broker
from palermo.core.address import parse_url
from palermo.core.lifecycle import Ack
from tests.contract.files import locked
from tests.contract.sqlite_peer import line, start
from tests.contract.tools import PATIENT, counts, ids, in_time, message, messages, until
from tests.contract.workers import consume, nothing_for, take, take_and_ack
from tests.helpers import Stopwatch

Peers = list["Popen[str]"]

#: A program that stops itself amid a transaction.
_STOPS = """
import os, signal, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("begin immediate")
print("locked", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


def _stopped_writer(path: str) -> "Popen[str]":
    return Popen([sys.executable, "-c", _STOPS, path], stdout=PIPE, text=True)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def broker(runner: asyncio.Runner, url: str) -> Iterator[Broker]:
    broker = runner.run(open_broker(SessionParameters(address=parse_url(url), timeout=PATIENT)))
    yield broker
    runner.run(broker.close())


@pytest.fixture
def peers() -> Iterator[Peers]:
    peers: Peers = []
    yield peers
    for peer in peers:
        peer.kill()
        peer.wait()
        if peer.stdout is not None:
            peer.stdout.close()


async def test_a_waiting_worker_takes_over_within_a_second(broker: Broker, url: str, peers: Peers) -> None:
    async def takes_over() -> float:
        peers.append(start(url, "hold", 3))
        assert [line(peers[-1]) for _ in range(3)] == ["jobs-0", "jobs-1", "jobs-2"]
        assert [worker.pid for worker in await broker.workers()] == [99]
        assert await counts(broker) == (0, 3)
        consumer = await consume(broker)
        for _ in range(3):
            await nothing_for(consumer)
        assert len(await broker.workers()) == 2
        watch = Stopwatch()
        peers[-1].kill()
        held = await take(consumer)
        took = watch.seconds()
        assert (held.message.id, held.redelivered) == ("jobs-0", True)
        assert [worker.pid for worker in await broker.workers()] == [4711]
        await consumer.close()
        assert await ids(broker) == ["jobs-0", "jobs-1", "jobs-2"]
        return took

    await broker.publish_many(messages(3))
    await in_time(takes_over, within=1)


async def test_a_process_stopped_while_it_writes_is_named(
    broker: Broker, tmp_path: Path, peers: Peers, caplog: pytest.LogCaptureFixture
) -> None:
    writer = _stopped_writer(f"{tmp_path}/jobs.db")
    peers.append(writer)
    line(writer)
    waiting = asyncio.ensure_future(broker.publish(message("a")))

    told = f"process {writer.pid}, which is stopped (kill -CONT {writer.pid}"
    await until(lambda: told in caplog.text, True)
    writer.kill()
    await waiting
    assert lock_holder(f"{tmp_path}/jobs.db") == "another process"


async def test_a_worker_waits_long_for_a_locked_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker = await open_broker(SessionParameters(address=parse_url(f"sqlite:///{tmp_path}/jobs.db"), timeout=0.5))
    consumer = await consume(broker)
    await broker.publish_many(messages(2))
    first = await take(consumer)
    with locked(tmp_path / "jobs.db"):
        await consumer.settle(first, Ack())
        second = asyncio.ensure_future(take(consumer))
        # This is logged after two seconds.
        await until(lambda: "has been locked by" in caplog.text, True)

    assert (await second).message.id == "jobs-1"
    assert await counts(broker) == (0, 1)
    await broker.close()


@pytest.mark.parametrize("watching", [True, False], ids=["inotify", "polling"])
async def test_a_job_starts_in_50_ms(broker: Broker, url: str, monkeypatch: pytest.MonkeyPatch, watching: bool) -> None:
    if not watching:
        monkeypatch.setattr(notifier, "_watch", lambda path: None)
    other = await open_broker(SessionParameters(address=parse_url(url), timeout=PATIENT))
    consumer = await consume(other)
    watch, waits = Stopwatch(), list[float]()
    for _ in range(21):
        waiting = asyncio.create_task(take_and_ack(consumer))
        await until(lambda: counts(broker), (0, 0))
        await broker.publish(message(str(time.time())))
        waits.append(time.time() - float((await waiting).id))
    await other.close()

    # The median, since the machine of a test may be busy with others.
    assert sorted(waits)[10] < 0.05 + watch.stalled()


async def test_a_forked_child_does_not_keep_its_parents_jobs(broker: Broker, url: str, peers: Peers) -> None:
    await broker.publish(message("7c9e"))

    async def gone() -> float:
        peers.append(start(url, "hold_and_fork"))
        assert line(peers[-1]) == "7c9e"
        child = int(line(peers[-1]))
        watch = Stopwatch()
        peers[-1].kill()
        try:
            await until(broker.workers, [])
        finally:
            os.kill(child, signal.SIGKILL)
        return watch.seconds()

    await in_time(gone, within=1)
