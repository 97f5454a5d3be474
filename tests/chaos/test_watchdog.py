"""A worker that no longer gets jobs, and notices by itself: another session first, and then the end."""

import json
import signal
import subprocess
import sys
import time
from itertools import count

import pika
import pytest

from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.messages import Properties
from palermo.core.topology import amqp_queue
from palermo.worker.parent.shutdown import STALLED
from tests.harness.processes import WorkerProcess
from tests.harness.rig import PROGRAMS, Rig
from tests.helpers import eventually
from tests.scale import scaled
from tests.tcp_proxy import TcpProxy

#: What the watchdog waits for, made shorter.
TIMES = {
    "palermo.worker.parent.watchdog.CHECK_EVERY": 1.0,
    "palermo.worker.parent.watchdog.ANSWER_TIMEOUT": 3.0,
    "palermo.worker.parent.broker_session._CLOSE_TIMEOUT": 0.5,
}

#: The same for tests that want no alarm, and give it many chances: four checks take a second.
NERVOUS = {"palermo.worker.parent.watchdog.CHECK_EVERY": 0.3, "palermo.worker.parent.watchdog.ANSWER_TIMEOUT": 60.0}

ALARM = "worker gets no jobs"

#: Jobs that the worker must not run now, in front of one that it must.
MANY = scaled(400, 2_000)


@pytest.fixture
def rig(rabbitmq_rig: Rig, proxy: TcpProxy) -> Rig:
    """Without heartbeats, and its workers behind the proxy: nothing but the watchdog notices a line that is silent."""
    rabbitmq_rig.environment["PALERMO_URL"] = f"{proxy.url(rabbitmq_rig.url)}?heartbeat=0"
    return rabbitmq_rig


def connected(worker: WorkerProcess, times: int) -> None:
    eventually(lambda: worker.log.count("INFO connected") >= times)


def passed(seconds: float) -> None:
    due = time.monotonic() + seconds
    eventually(lambda: time.monotonic() >= due, within=seconds + 10)


@pytest.mark.parametrize(("queues", "direction"), [("jobs", "down"), ("jobs,mail", "up")])
def test_a_silent_line_is_noticed_without_heartbeats(rig: Rig, proxy: TcpProxy, queues: str, direction: str) -> None:
    worker = rig.worker("-q", queues, times=TIMES)
    connected(worker, 1)
    proxy.stall(direction)

    connected(worker, 2)
    # Only now does the broker hear of the end of the first session, to whose slots it would give jobs for ever.
    proxy.resume()
    rig.enqueue("note", "after")

    assert rig.await_lines(1) == ["after"]
    assert f"ERROR {ALARM}, opening another session" in worker.log
    assert worker.alive


def test_a_worker_that_no_new_session_helps_ends_with_its_own_code(rig: Rig, proxy: TcpProxy) -> None:
    worker = rig.worker(times=TIMES)
    for number in count(1):
        eventually(lambda number=number: not worker.alive or worker.log.count("INFO connected") >= number)
        if not worker.alive:
            break
        # A session that was checked before this is one that helped, and there is another after it.
        proxy.stall("down")

    assert worker.wait() == STALLED
    assert f"CRITICAL {ALARM} even on another session" in worker.log


def test_no_alarm_while_a_worker_is_paused(rig: Rig) -> None:
    worker = rig.idle(times=NERVOUS)
    worker.send(signal.SIGUSR2)
    eventually(lambda: [row["state"] for row in rig.workers()] == ["paused"])
    for number in range(3):
        rig.enqueue("note", f"{number}")

    passed(2.0)
    worker.send(signal.SIGCONT)

    rig.await_lines(3)
    assert ALARM not in worker.log


def test_no_alarm_on_a_single_active_consumer_queue(rig: Rig, rabbitmq_url: str, exchange: str) -> None:
    name = amqp_queue(exchange, "jobs")
    with pika.BlockingConnection(pika.URLParameters(rabbitmq_url)) as connection:
        channel = connection.channel()
        channel.queue_declare(name, durable=True, arguments={"x-single-active-consumer": True})
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(name, lambda *_: None)
        worker = rig.worker("-q", "jobs", times=NERVOUS)
        connected(worker, 1)
        for number in range(3):
            rig.enqueue("note", f"{number}")
        passed(2.0)
        assert ALARM not in worker.log

    rig.await_lines(3)


def test_no_alarm_among_workers_that_share_a_busy_queue(rig: Rig) -> None:
    workers = [rig.worker("-q", queues, "-c", "3", times=NERVOUS) for queues in ("jobs", "jobs,mail")]
    for worker in workers:
        connected(worker, 1)

    for number in range(600):
        rig.enqueue("note", f"{number}")
    rig.await_lines(600)

    assert all(ALARM not in worker.log for worker in workers)


@pytest.mark.parametrize(("kind", "queues"), [("classic", "jobs"), ("quorum", "jobs,mail")])
def test_a_job_behind_delayed_ones_runs(rig: Rig, rabbitmq_url: str, exchange: str, kind: str, queues: str) -> None:
    later = time.time() + 3_600
    with pika.BlockingConnection(pika.URLParameters(rabbitmq_url)) as connection:
        channel = connection.channel()
        channel.exchange_declare(exchange, "direct", durable=True)
        arguments = versions.arguments(kind, connection._impl.server_properties["version"])
        channel.queue_declare(amqp_queue(exchange, "jobs"), durable=True, arguments=arguments)
        channel.queue_bind(amqp_queue(exchange, "jobs"), exchange, "jobs")
        # A quorum queue may lose what is not confirmed yet when its publisher leaves.
        channel.confirm_delivery()
        for number in range(MANY):
            headers = {"job-class": "shop.note", "id": f"{number}", "queue": "jobs", "perform_job_at": later}
            properties = Properties(content_type="application/json", delivery_mode=2, headers=headers)
            channel.basic_publish(exchange, "jobs", b'["too early"]', properties)
    rig.enqueue("note", "behind")

    worker = rig.worker("-q", queues, "-c", "2", times=NERVOUS)

    assert rig.await_lines(1) == ["behind"]
    assert ALARM not in worker.log
    assert worker.log.count("INFO connected") == 1
    expected = sorted(f"{number}" for number in range(MANY))

    def all_are_scheduled() -> bool:
        found = sorted(row["id"] for row in rig.inspector.scheduled.list(limit=2 * MANY))
        missing = sorted(set(expected) - set(found))
        assert found == expected, f"{len(missing)} not scheduled: {missing[:10]}\n{worker.log[-4_000:]}"
        return True

    eventually(all_are_scheduled, every=0.5)
    assert rig.lines() == ["behind"]


def test_no_alarm_while_jobs_wait_for_a_permit_of_another_worker(rig: Rig) -> None:
    rig.worker("-q", "others")
    rig.enqueue("hold", "first", queue="others", limit=1)
    rig.await_lines(1)
    for number in range(MANY // 4):
        rig.enqueue("hold", f"{number}", limit=1)
    rig.enqueue("note", "behind")

    worker = rig.worker(times=NERVOUS)

    assert rig.await_lines(2) == ["first begins", "behind"]
    assert ALARM not in worker.log


def test_a_slot_that_is_lost_by_a_bug_ends_the_worker(sqlite_rig: Rig) -> None:
    worker = sqlite_rig.worker(times={"palermo.worker.pools.child.SlotPipe": 0})

    assert worker.wait() == STALLED
    assert "CRITICAL slot lost, ending" in worker.log


def test_a_worker_whose_loop_stands_still_ends(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    rig.client.enqueue_many([("shop.note", ("x",), {}) for _ in range(1_000)])
    command = [sys.executable, str(PROGRAMS / "standing_still.py"), "worker", "shop"]
    times = {"TIMES": json.dumps({"palermo.worker.parent.watchdog.LOOP_TIMEOUT": 1.0})}

    # Nobody reads its log.
    with subprocess.Popen(command, env=rig.environment | times, cwd=rig.path, stderr=subprocess.PIPE) as process:
        assert process.wait(120) == STALLED

    last = rig.worker()
    rig.await_lines(1_000)
    assert last.alive
