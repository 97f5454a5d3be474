"""Jobs that run longer than RabbitMQ waits for their acknowledgement: it takes them back, and yet they run once.

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


@pytest.fixture(scope="module")
def hasty_node(module_node: Node) -> Node:
    """A node that takes jobs back after three seconds."""
    for name, value in (("consumer_timeout", CONSUMER_TIMEOUT), ("channel_tick_interval", TICK)):
        module_node.ctl("eval", f"application:set_env(rabbit, {name}, {value}).")
    if version_of(url_of(module_node)) >= (3, 12):
        set_policy(module_node, "hasty", "[.](jobs|low)$", {"consumer-timeout": CONSUMER_TIMEOUT})
    return module_node


@pytest.fixture
def hasty(hasty_node: Node, exchange: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    url = url_of(hasty_node)
    kind = "quorum" if version_of(url) >= (4, 3) else "classic"
    monkeypatch.setenv("PALERMO_QUEUE_TYPE", kind)
    rig = Rig(tmp_path, url=url, exchange=exchange, publish_timeout=60.0, queue_type=kind)
    yield rig
    rig.close()


@pytest.fixture
def patient(rabbitmq_url: str, exchange: str, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, url=rabbitmq_url, exchange=exchange, publish_timeout=60.0)
    yield rig
    rig.close()


def taken_back(worker: WorkerProcess, id: str) -> int:
    """How often the log says that the broker took this job back, and what to do about it."""
    line = rf"WARNING the broker took a job back that goes on here id={id} job=crew.hold .*consumer_timeout"
    return len(re.findall(line, worker.log))


def settled(id: str, *workers: WorkerProcess) -> bool:
    """Whether one of them has settled the job with another's result."""
    return any(f"INFO job settled with the result of another worker id={id}" in worker.log for worker in workers)


def drained(rig: Rig) -> bool:
    return all(row["pending"] == row["in_progress"] == 0 for row in rig.inspector.queues() if row["name"] != "failed")


@pytest.mark.parametrize("queues", ["jobs", "low,jobs"], ids=["subscribed", "polled"])
def test_a_job_three_times_longer_than_consumer_timeout_runs_once(hasty: Rig, queues: str) -> None:
    id = hasty.hold()
    first = hasty.worker("-q", queues)
    eventually(lambda: hasty.lines() == ["held begins"])
    second = hasty.worker("-q", queues)
    eventually(lambda: f"WARNING job parked, another worker has it id={id}" in second.log)
    eventually(lambda: taken_back(first, id) >= 1)

    eventually(lambda: taken_back(second, id) >= 1)
    for number in range(10):
        hasty.enqueue("note", str(hasty.notes_path), str(number))
    eventually(lambda: set(hasty.lines()) == {"held begins", *map(str, range(10))})
    hasty.open_gate()

    eventually(lambda: settled(id, first, second))
    eventually(lambda: drained(hasty))
    assert hasty.lines().count("held begins") == hasty.lines().count("held ends") == 1
    assert hasty.errors() == {}
    eventually(lambda: [row["state"] for row in hasty.inspector.history().rows if row["id"] == id] == ["done"])
    assert hasty.inspector.life(id)[-1]["worker"].startswith(f"pid:{first.pid}@")
    assert hasty.client.job_by_id(id).status().state == "done"
    assert first.alive
    assert second.alive


def test_a_worker_alone_parks_its_own_long_job_and_keeps_serving(hasty: Rig) -> None:
    id = hasty.hold()
    worker = hasty.worker("-c", "2")
    eventually(lambda: f"WARNING job parked, another worker has it id={id}" in worker.log)

    hasty.enqueue("note", str(hasty.notes_path), "meanwhile")
    eventually(lambda: "meanwhile" in hasty.lines())
    hasty.open_gate()

    eventually(lambda: settled(id, worker))
    eventually(lambda: drained(hasty))
    assert hasty.lines() == ["held begins", "meanwhile", "held ends"]


def test_a_long_job_that_fails_is_in_failed_once_with_its_error(hasty: Rig) -> None:
    id = hasty.enqueue("raises_late", str(hasty.notes_path), str(hasty.gate), module="crew_poison")
    first = hasty.worker(modules=("crew_poison",))
    eventually(lambda: hasty.lines() == ["raising"])
    second = hasty.worker(modules=("crew_poison",))
    eventually(lambda: f"WARNING job parked, another worker has it id={id}" in second.log)

    hasty.open_gate()

    # RabbitMQ may have taken it back from the second too, and given it to the first.
    eventually(lambda: settled(id, first, second))
    (row,) = [row for row in hasty.inspector.failed() if row["id"] == id]
    assert row["error"]["class"] == "ArithmeticError"
    assert row["worker"].startswith(f"pid:{first.pid}@")
    assert hasty.lines().count("raising") == 1


def test_when_the_worker_that_runs_a_parked_job_dies_the_job_runs_again(hasty: Rig) -> None:
    id = hasty.hold()
    first = hasty.worker()
    eventually(lambda: hasty.lines() == ["held begins"])
    second = hasty.worker()
    eventually(lambda: f"WARNING job parked, another worker has it id={id}" in second.log)

    first.end()

    eventually(lambda: hasty.lines().count("held begins") == 2)
    hasty.open_gate()
    eventually(lambda: drained(hasty))
    assert hasty.errors() == {}


def test_a_worker_that_is_stopped_in_mid_job_is_not_dead(hasty: Rig) -> None:
    id = hasty.hold()
    first = hasty.worker()
    eventually(lambda: hasty.lines() == ["held begins"])
    second = hasty.worker()
    parked = f"WARNING job parked, another worker has it id={id}"
    eventually(lambda: parked in second.log)

    first.send(signal.SIGSTOP)
    eventually(lambda: second.log.count(parked) >= 2)
    first.send(signal.SIGCONT)
    hasty.open_gate()

    eventually(lambda: settled(id, first, second))
    eventually(lambda: drained(hasty))
    assert hasty.lines() == ["held begins", "held ends"]
    assert hasty.errors() == {}


def test_a_parked_job_goes_back_when_the_worker_that_parked_it_stops(hasty: Rig) -> None:
    id = hasty.hold()
    first = hasty.worker()
    eventually(lambda: hasty.lines() == ["held begins"])
    second = hasty.worker()
    eventually(lambda: f"WARNING job parked, another worker has it id={id}" in second.log)

    second.send(signal.SIGTERM)
    assert second.wait() == 0
    hasty.open_gate()

    eventually(lambda: settled(id, first))
    eventually(lambda: drained(hasty))
    assert hasty.lines() == ["held begins", "held ends"]


def test_a_lone_worker_cut_in_mid_job_finishes_it_once(patient: Rig, rabbitmq_url: str) -> None:
    host, _, port = rabbitmq_url.rpartition("@")[2].partition("/")[0].rpartition(":")
    id = patient.hold()
    with TcpProxy(host, int(port)) as proxy:
        worker = patient.worker(PALERMO_URL=f"amqp://guest:guest@127.0.0.1:{proxy.port}/")
        eventually(lambda: patient.lines() == ["held begins"])
        proxy.hang_up()
        eventually(lambda: worker.log.count("INFO connected") >= 2)
        patient.open_gate()

        eventually(lambda: settled(id, worker))
        eventually(lambda: drained(patient))

    assert patient.lines() == ["held begins", "held ends"]
