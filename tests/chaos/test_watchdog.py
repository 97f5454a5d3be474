"""A worker that no longer gets jobs, and notices by itself: another session first, and then the end."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from palermo.client import Client
from palermo.config import Settings
from palermo.core.address import parse_url
from palermo.core.topology import amqp_queue
from palermo.worker.ending import DEAF
from tests.acceptance.place import PROGRAMS, Place, Worker
from tests.helpers import eventually
from tests.scale import chosen
from tests.tcp_proxy import TcpProxy

#: What the watchdog waits for, made shorter.
TIMES = {
    "palermo.worker.watchdog.EVERY": 2.0,
    "palermo.worker.watchdog.ANSWER": 1.0,
    "palermo.worker.session._GOODBYE": 0.5,
}

#: The same for tests that want no alarm, and give it many chances.
NERVOUS = {"palermo.worker.watchdog.EVERY": 0.1, "palermo.worker.watchdog.ANSWER": 10.0}

#: Which worker's line falls silent, by the queues that it serves, and in which direction.
SILENCES = chosen(
    [("jobs", ("down",)), ("jobs,mail", ("up",))],
    ("jobs", ("up",)),
    ("jobs,mail", ("down",)),
)

ALARM = "worker gets no jobs"


@pytest.fixture
def proxy(rabbitmq_url: str) -> Iterator[TcpProxy]:
    with TcpProxy(*parse_url(rabbitmq_url).hosts[0]) as proxy:
        yield proxy


@pytest.fixture
def place(rabbitmq_url: str, exchange: str, proxy: TcpProxy, tmp_path: Path) -> Iterator[Place]:
    """Behind the proxy, and without heartbeats: nothing but the watchdog can notice a line that is silent."""
    address = parse_url(rabbitmq_url)
    vhost = "%2F" if address.vhost == "/" else address.vhost
    url = f"amqp://{address.username}:{address.password}@127.0.0.1:{proxy.port}/{vhost}?heartbeat=0"
    with Place(tmp_path, url, exchange) as place:
        yield place


@pytest.fixture
def direct(rabbitmq_url: str, exchange: str) -> Iterator[Client]:
    """A program whose way to the broker is in order."""
    with Client(Settings(url=rabbitmq_url, exchange=exchange)) as client:
        yield client


def note(client: Client, text: str) -> None:
    client.enqueue("shop.note", (text,), {})


def connected(worker: Worker, times: int) -> None:
    eventually(lambda: worker.log.count("INFO connected") == times, within=60)


def passed(seconds: float) -> None:
    due = time.monotonic() + seconds
    eventually(lambda: time.monotonic() >= due, within=seconds + 10)


@pytest.mark.parametrize(
    ("queues", "directions"), SILENCES, ids=lambda value: "+".join(value) if isinstance(value, tuple) else value
)
def test_a_line_that_is_silent_is_noticed_without_heartbeats(
    place: Place, proxy: TcpProxy, direct: Client, queues: str, directions: tuple[str, ...]
) -> None:
    worker = place.worker("-q", queues, times=TIMES)
    connected(worker, 1)
    proxy.stall(*directions)

    connected(worker, 2)
    # Only now does the broker hear of the end of the first session, to whose slots it would give jobs for ever.
    proxy.resume()
    note(direct, "after")

    assert place.await_lines(1) == ["after"]
    assert f"ERROR {ALARM}, opening another session" in worker.log
    assert worker.alive


def test_a_worker_to_which_another_session_is_no_help_ends_with_a_code_of_its_own(
    place: Place, proxy: TcpProxy, direct: Client
) -> None:
    worker = place.worker(times=TIMES)
    connected(worker, 1)
    proxy.stall("down")
    connected(worker, 2)
    proxy.stall("down")

    assert worker.wait(30) == DEAF
    assert f"CRITICAL {ALARM}, and another session did not help" in worker.log


def test_no_alarm_while_a_worker_is_paused(place: Place, direct: Client) -> None:
    worker = place.worker(times=NERVOUS)
    place.ready(worker)
    worker.send(signal.SIGUSR2)
    eventually(lambda: place.workers()[0]["state"] == "paused")
    for number in range(3):
        note(direct, f"{number}")

    passed(2.0)
    worker.send(signal.SIGCONT)

    place.await_lines(3)
    assert ALARM not in worker.log


def test_no_alarm_on_a_queue_that_another_program_made_for_one_consumer_at_a_time(
    place: Place, rabbitmq_url: str, exchange: str, direct: Client
) -> None:
    name = amqp_queue(exchange, "jobs")
    with pika.BlockingConnection(pika.URLParameters(rabbitmq_url)) as connection:
        channel = connection.channel()
        channel.queue_declare(name, durable=True, arguments={"x-single-active-consumer": True})
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(name, lambda *_: None)
        worker = place.worker("-q", "jobs", times=NERVOUS)
        connected(worker, 1)
        for number in range(3):
            note(direct, f"{number}")
        passed(2.0)
        assert ALARM not in worker.log

    place.await_lines(3)


def test_no_alarm_among_workers_that_share_a_busy_queue(place: Place, direct: Client) -> None:
    workers = [place.worker("-q", queues, "-c", "3", times=NERVOUS) for queues in ("jobs", "jobs,mail")]
    for worker in workers:
        connected(worker, 1)

    for number in range(600):
        note(direct, f"{number}")
    place.await_lines(600)

    assert all(ALARM not in worker.log for worker in workers)


def test_a_slot_that_is_lost_by_a_bug_ends_the_worker(tmp_path: Path) -> None:
    with Place(tmp_path, f"sqlite:///{tmp_path}/jobs.db", "palermo") as place:
        worker = place.worker(times={"palermo.worker.runner.SlotPipe": 0})

        assert worker.wait() == DEAF
        assert "CRITICAL slot lost, ending" in worker.log


def test_a_worker_whose_loop_stands_still_ends_and_says_where_it_stood(tmp_path: Path) -> None:
    """Here because nobody reads its log."""
    with Place(tmp_path, f"sqlite:///{tmp_path}/jobs.db", "palermo") as place:
        place.client.enqueue_many([("shop.note", ("x",), {}) for _ in range(1_000)])
        process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "impatient.py"), "worker", "shop"],
            env={**place.environment, "TIMES": json.dumps({"palermo.worker.watchdog.STANDSTILL": 1.0})},
            cwd=tmp_path,
            stderr=subprocess.PIPE,
        )
        with process:
            assert process.wait(40) == DEAF
        last = place.worker()

        place.await_lines(1_000)
        assert last.alive
