"""Time, line by line of the feature list: L1 to L8 (seed 003), K1 and K2 (Sidekiq), R12 (resque-scheduler)."""

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pika
import pytest

from palermo.brokers.rabbitmq.amqp.messages import Properties
from tests.harness.processes import WorkerProcess
from tests.harness.rig import Rig
from tests.helpers import Stopwatch, eventually
from tests.scale import scaled
from tests.tcp_proxy import TcpProxy

MODULES = ("shop", "timed")

#: Seconds by which a job may be late here, besides those in which the machine did other things.
LATE = 1.0


@pytest.fixture
def watch() -> Stopwatch:
    return Stopwatch()


def on_time(watch: Stopwatch, seconds: float) -> bool:
    """Whether something was not early, and no later than LATE and what the machine had for others meanwhile."""
    return 0 <= seconds < LATE + watch.stalled()


def stamps(rig: Rig) -> dict[str, float]:
    """When each ran, the last time."""
    return {text: float(at) for text, at in (line.split() for line in rig.lines())}


def await_stamps(rig: Rig, count: int) -> dict[str, float]:
    rig.await_lines(count)
    return stamps(rig)


def start(rig: Rig, *arguments: str, **more: Any) -> WorkerProcess:
    worker = rig.worker(*arguments, modules=MODULES, **more)
    rig.ready(worker)
    return worker


def publish(rig: Rig, text: str, **headers: Any) -> None:
    """As seed 003 does it: straight into the job's queue."""
    with pika.BlockingConnection(pika.URLParameters(rig.url)) as connection:
        connection.channel().basic_publish(
            rig.exchange,
            "jobs",
            json.dumps([text]).encode(),
            # pika's own cannot write a float, which other clients can.
            Properties(
                content_type="application/json",
                delivery_mode=2,
                headers={"job-class": "timed.stamp", "id": f"id-{text}", "queue": "jobs", **headers},
            ),
        )


def delayed(rig: Rig, text: str, delay: float) -> float:
    """Enqueue a job that is due after so many seconds; the instant, at the earliest."""
    due = time.time() + delay
    rig.client.enqueue("timed.stamp", (text,), {}, delay=delay)
    return due


def resident(worker: WorkerProcess) -> int:
    """Kilobytes of memory of the worker's parent."""
    status = Path(f"/proc/{worker.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def test_L1_a_header_says_when_and_each_message_has_its_own_time(rabbitmq_rig: Rig, watch: Stopwatch) -> None:
    rig = rabbitmq_rig
    start(rig, "-c", "2")
    now = time.time()
    due = {"third": now + 4.25, "first": now + 1.0, "second": now + 2.5}

    for text, at in due.items():
        publish(rig, text, perform_job_at=at)

    # With that, in this order, unless the machine stood still until two were due.
    ran = await_stamps(rig, 3)
    assert all(on_time(watch, ran[text] - due[text]) for text in due)


def test_L2_a_job_due_in_a_second_does_not_wait_for_one_due_in_an_hour(rig: Rig, watch: Stopwatch) -> None:
    start(rig)

    delayed(rig, "hour", 3_600)
    due = delayed(rig, "second", 1)

    assert on_time(watch, await_stamps(rig, 1)["second"] - due)
    # A leader lets go of a job after it has handed it over.
    eventually(lambda: [row["args"] for row in rig.inspector.scheduled()] == [["hour"]])


def test_L3_a_lost_connection_loses_no_delayed_job_and_runs_none_early_or_twice(
    rabbitmq_rig: Rig, rabbitmq_url: str
) -> None:
    rig = rabbitmq_rig
    host, _, port = rabbitmq_url.rpartition("@")[2].partition("/")[0].rpartition(":")
    with TcpProxy(host, int(port)) as proxy:
        worker = start(rig, PALERMO_URL=rabbitmq_url.replace(f"{host}:{port}", f"127.0.0.1:{proxy.port}"))
        eventually(lambda: any(row["clock"] for row in rig.workers()))
        # None is on its way when the line is cut, even if the machine stands still for some seconds before.
        due = {f"job-{number}": delayed(rig, f"job-{number}", 7 + number / 10) for number in range(20)}

        proxy.hang_up(reset=True)

        ran = await_stamps(rig, len(due))
        assert "connection lost" in worker.log
        assert len(rig.lines()) == len(due)
        assert all(ran[text] >= at for text, at in due.items())


def test_L4_jobs_come_due_while_others_of_the_worker_run_and_are_acknowledged_each_once(rig: Rig) -> None:
    start(rig, "--pool", "thread", "-c", "8")
    for number in range(6):
        rig.client.enqueue("timed.stamp_and_hold", (f"long-{number}",), {}, delay=0.5)
    due = {f"short-{number}": delayed(rig, f"short-{number}", 0.5 + number / 50) for number in range(60)}

    ran = await_stamps(rig, len(due) + 12)

    assert all(ran[text] >= at for text, at in due.items())
    assert len(rig.lines()) == len(due) + 12
    eventually(lambda: rig.pending() == 0 and not any(row["jobs"] for row in rig.workers()))
    assert rig.failed() == {}


def test_L5_backoff_goes_by_the_same_mechanism(rig: Rig, watch: Stopwatch) -> None:
    start(rig)
    id = rig.client.enqueue("timed.ship", ("box",), {}).id

    ran = [float(line.split()[1]) for line in rig.await_lines(5)]

    assert list(stamps(rig)) == ["box-1", "box-2", "box-3", "box-4", "box-exhausted"]
    for (before, after), least in zip(pairwise(ran[:4]), (0.4, 0.8, 1.6), strict=True):
        assert on_time(watch, after - before - least)
    failed = eventually(lambda: rig.failed()[id])
    assert [one["attempt"] for one in failed["attempts"]] == [1, 2, 3, 4]


def test_L6_many_scheduled_jobs_cost_workers_no_memory_and_ready_jobs_no_time(rig: Rig, watch: Stopwatch) -> None:
    crowd = scaled(2_500, 100_000)
    worker = start(rig)
    # It leads from then on, for which it needs some memory.
    delayed(rig, "warm", 0.1)
    rig.await_lines(1)
    before = resident(worker)
    tomorrow = time.time() + 86_400
    calls = [("timed.stamp", (f"{number}",), {}) for number in range(crowd)]
    rig.client.enqueue_many(calls, run_at=tomorrow)

    due = delayed(rig, "soon", 1)
    sent = time.time()
    rig.client.enqueue("timed.stamp", ("ready",), {})

    ran = await_stamps(rig, 3)
    assert on_time(watch, ran["soon"] - due)
    assert on_time(watch, ran["ready"] - sent)
    eventually(lambda: rig.inspector.scheduled(limit=1).total == crowd)
    assert resident(worker) - before < 8_000


@pytest.mark.parametrize("delay", [0.05, 0.777, 61.5, 86_401.0, 10 * 366 * 86_400.0])
def test_L7_any_delay_will_do_and_nothing_has_to_be_installed(rig: Rig, delay: float, watch: Stopwatch) -> None:
    due = delayed(rig, "then", delay)

    if delay < 1:
        start(rig)
        assert await_stamps(rig, 1)["then"] >= due
        return
    (row,) = rig.inspector.scheduled()
    shown = datetime.fromisoformat(row["run_at"]).timestamp()
    assert on_time(watch, shown - due + 0.001)


def test_L8_without_the_header_a_job_runs_now(rabbitmq_rig: Rig, watch: Stopwatch) -> None:
    rig = rabbitmq_rig
    start(rig)
    sent = time.time()

    publish(rig, "now")

    assert await_stamps(rig, 1)["now"] - sent < 10 + watch.stalled()
    assert rig.inspector.scheduled().total == 0


def test_K1_the_usual_wait_is_sidekiqs_and_what_waits_says_why_and_until_when(rig: Rig, watch: Stopwatch) -> None:
    start(rig)
    sent = time.time()
    id = rig.client.enqueue("timed.charge", ("7",), {}).id

    (row,) = eventually(lambda: rig.inspector.scheduled().rows)

    wait = datetime.fromisoformat(row["run_at"]).timestamp() - sent
    assert 15 <= wait < 15 + 10 + LATE + 5 + watch.stalled()
    assert (row["id"], row["error"]["class"]) == (id, "ConnectionError")
    assert rig.failed() == {}


def test_K1_an_error_decides_on_its_delay_on_discard_or_on_failing_at_once(rig: Rig) -> None:
    start(rig)
    ids = {verdict: rig.client.enqueue("timed.told", (verdict,), {}).id for verdict in ("discard", "fail", 3_600)}

    rig.await_lines(3)

    eventually(lambda: set(rig.failed()) == {ids["fail"]})
    (row,) = eventually(lambda: rig.inspector.scheduled().rows)
    assert row["id"] == ids[3_600]
    assert datetime.fromisoformat(row["run_at"]).timestamp() > time.time() + 3_500
    eventually(lambda: rig.pending() == 0)


def test_K1_retry_for_ends_retrying_by_time(rig: Rig, watch: Stopwatch) -> None:
    start(rig)
    id = rig.client.enqueue("timed.impatient", (), {}).id

    eventually(lambda: id in rig.failed())

    # Two at least, if the machine stood still for all of the time in between.
    ran = [float(line.split()[1]) for line in rig.lines()]
    assert len(ran) >= 2
    assert on_time(watch, ran[-1] - ran[0] - 1.0)


def test_K2_in_at_and_many_at_once_from_code(rig: Rig) -> None:
    program = """
import datetime, palermo, timed
timed.stamp.enqueue_in(0.5, "in")
timed.stamp.enqueue_in(datetime.timedelta(seconds=0.6), "delta")
timed.stamp.enqueue_at(datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=0.7), "at")
timed.stamp.options(delay=0.8).enqueue("option")
timed.stamp.enqueue_many([("many-1",), ("many-2",)])
"""
    before = time.time()
    rig.python(program)
    start(rig, "-c", "4")

    ran = await_stamps(rig, 6)

    assert sorted(ran) == ["at", "delta", "in", "many-1", "many-2", "option"]
    for text, delay in (("in", 0.5), ("delta", 0.6), ("at", 0.7), ("option", 0.8)):
        assert ran[text] >= before + delay


def test_R12_from_the_command_line_delayed_seen_moved_run_and_cancelled(rig: Rig) -> None:
    def enqueue(text: str, *when: str) -> None:
        rig.palermo("enqueue", "timed.stamp", "--args", json.dumps([text]), *when)

    later = datetime.fromtimestamp(time.time() + 7_200, UTC).isoformat(timespec="seconds")
    for text, when in (
        ("moved", ("--in", "1h")),
        ("run", ("--at", later)),
        ("cancelled", ("--in", "2d")),
        ("kept", ("--in", "40d")),
    ):
        enqueue(text, *when)
    rows = {row["args"][0]: row for row in scheduled(rig)}
    assert list(rows) == ["moved", "run", "cancelled", "kept"]
    start(rig)

    rig.palermo("scheduled", "move", rows["moved"]["id"], "--in", "1s")
    rig.palermo("scheduled", "run", rows["run"]["id"])
    rig.palermo("scheduled", "cancel", rows["cancelled"]["id"])

    assert set(await_stamps(rig, 2)) == {"moved", "run"}
    eventually(lambda: [row["args"] for row in scheduled(rig)] == [["kept"]])
    done = rig.run("scheduled", "cancel", rows["run"]["id"])
    assert done.returncode == 4
    assert "fired already or not there" in done.stdout + done.stderr
    listing = rig.palermo("scheduled", "list")
    assert "timed.stamp" in listing
    assert rows["kept"]["id"] in listing


def scheduled(rig: Rig) -> Sequence[Any]:
    rows: Sequence[Any] = rig.rows("scheduled", "list")
    return rows
