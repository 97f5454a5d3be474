"""Jobs that run longer than RabbitMQ waits for their acknowledgement, or hold the worker up: yet each runs once.

From 4.3 on RabbitMQ takes jobs back from quorum queues only; before that, from both types.
"""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.processes import WorkerProcess
from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.rabbitmq_node import Node, set_policy, url_of, version_of
from tests.tcp_proxy import TcpProxy

#: Milliseconds until RabbitMQ takes a job back, and between its looks at that: a minute unless it is told otherwise. A
#: worker that takes a job asks the others for up to two seconds who runs it.
CONSUMER_TIMEOUT, TICK = 3_000, 300

#: What both ends of the connection are told to do without for, in seconds, while a job holds the interpreter.
HEARTBEAT = 4


@pytest.fixture(scope="module")
def hasty_node(module_node: Node) -> Node:
    """A node that takes jobs back after three seconds."""
    for name, value in (("consumer_timeout", CONSUMER_TIMEOUT), ("channel_tick_interval", TICK)):
        module_node.evaluate(f"application:set_env(rabbit, {name}, {value})")
    if version_of(url_of(module_node)) >= (3, 12):
        set_policy(module_node, "hasty", "[.](jobs|low)$", {"consumer-timeout": CONSUMER_TIMEOUT})
    return module_node


@pytest.fixture
def hasty(hasty_node: Node, exchange: str, tmp_path: Path) -> Iterator[Rig]:
    url = url_of(hasty_node)
    kind = "quorum" if version_of(url) >= (4, 3) else "classic"
    with Rig(tmp_path, url, exchange, queue_type=kind, module="shop") as rig:
        yield rig


def adopted(worker: WorkerProcess, id: str) -> int:
    """How often the worker got this job while another, or itself, ran it."""
    return worker.log.count(f"job adopted, another worker runs it id={id}")


def taken_back(worker: WorkerProcess, id: str) -> bool:
    """Whether the log says that the broker took this job back, and what to do about it."""
    return bool(re.search(rf"WARNING .* id={id} job=shop.hold .*consumer_timeout", worker.log))


def settled(id: str, *workers: WorkerProcess) -> bool:
    """Whether one of them has settled the job with another's result."""
    return any(f"job settled with the result of another worker id={id}" in worker.log for worker in workers)


def two_workers(rig: Rig, id: str, begun: str, *arguments: str) -> tuple[WorkerProcess, WorkerProcess]:
    """One that runs the job, and another that was given it later."""
    first = rig.worker(*arguments, modules=("shop", "crew_poison"))
    eventually(lambda: rig.lines() == [begun])
    second = rig.worker(*arguments, modules=("shop", "crew_poison"))
    eventually(lambda: adopted(second, id))
    return first, second


@pytest.mark.parametrize("queues", ["jobs", "low,jobs"], ids=["subscribed", "polled"])
def test_a_job_three_times_longer_than_consumer_timeout_runs_once(hasty: Rig, queues: str) -> None:
    id = hasty.enqueue("hold", "it")
    first, second = two_workers(hasty, id, "it begins", "-q", queues)
    eventually(lambda: taken_back(first, id))

    eventually(lambda: taken_back(second, id))
    for number in range(10):
        hasty.enqueue("note", str(number))
    eventually(lambda: set(hasty.lines()) == {"it begins", *map(str, range(10))})
    hasty.open_gate()

    eventually(lambda: settled(id, first, second))
    eventually(hasty.drained)
    assert hasty.lines().count("it begins") == hasty.lines().count("it ends") == 1
    assert hasty.errors() == {}
    eventually(lambda: [row["state"] for row in hasty.inspector.history.list().rows if row["id"] == id] == ["done"])
    assert hasty.inspector.history.timeline(id)[-1]["worker"].startswith(f"pid:{first.pid}@")
    assert hasty.client.job_by_id(id).status().state == "done"
    assert first.alive
    assert second.alive


def test_a_worker_alone_adopts_its_own_long_job_and_keeps_serving(hasty: Rig) -> None:
    id = hasty.enqueue("hold", "it")
    worker = hasty.worker("-c", "2")
    eventually(lambda: adopted(worker, id))

    hasty.enqueue("note", "meanwhile")
    eventually(lambda: "meanwhile" in hasty.lines())
    hasty.open_gate()

    eventually(lambda: settled(id, worker))
    eventually(hasty.drained)
    assert hasty.lines() == ["it begins", "meanwhile", "it ends"]


def test_a_long_job_that_fails_is_in_failed_once_with_its_error(hasty: Rig) -> None:
    id = hasty.enqueue("raises_late", str(hasty.notes_path), str(hasty.gate), module="crew_poison")
    first, second = two_workers(hasty, id, "raising")

    hasty.open_gate()

    # RabbitMQ may have taken it back from the second too, and given it to the first.
    eventually(lambda: settled(id, first, second))
    (row,) = [row for row in hasty.inspector.failed.list() if row["id"] == id]
    assert row["error"]["class"] == "ArithmeticError"
    assert row["worker"].startswith(f"pid:{first.pid}@")
    assert hasty.lines() == ["raising"]


def test_a_worker_that_is_stopped_in_mid_job_is_not_dead_till_it_is_killed(hasty: Rig) -> None:
    id = hasty.enqueue("hold", "it")
    first, second = two_workers(hasty, id, "it begins")

    first.send(signal.SIGSTOP)
    eventually(lambda: adopted(second, id) >= 2)
    assert hasty.lines() == ["it begins"]
    first.kill9()

    eventually(lambda: hasty.lines() == ["it begins"] * 2)
    hasty.open_gate()
    eventually(hasty.drained)
    assert hasty.errors() == {}


def test_a_lone_worker_cut_in_mid_job_finishes_it_once(rabbitmq_rig: Rig, proxy: TcpProxy) -> None:
    rig = rabbitmq_rig
    id = rig.enqueue("hold", "it")
    worker = rig.worker(PALERMO_URL=proxy.url(rig.url))
    eventually(lambda: rig.lines() == ["it begins"])
    proxy.hang_up()
    eventually(lambda: worker.log.count("INFO connected") >= 2)
    rig.open_gate()
    eventually(lambda: settled(id, worker))
    eventually(rig.drained)
    assert rig.lines() == ["it begins", "it ends"]


def test_a_job_holding_the_gil_beyond_three_heartbeats_runs_once(rabbitmq_rig: Rig) -> None:
    rig = rabbitmq_rig
    worker = rig.worker(PALERMO_URL=f"{rig.url}?heartbeat={HEARTBEAT}")
    rig.enqueue("hold_the_gil", "long", 3 * HEARTBEAT + 0.5)
    rig.await_lines(2)
    rig.enqueue("note", "next")
    assert rig.await_lines(3) == ["long begins", "long ends", "next"]
    assert worker.log.count("connected") == 1
    assert (rig.errors(), rig.pending()) == ({}, 0)
