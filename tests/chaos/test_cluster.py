"""One node of three is away: killed, stopped in good order, or cut off from the other two.

Promise 1 on a cluster: with quorum queues no job is lost that was confirmed, and work goes on by itself.
"""

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from palermo.core.topology import amqp_queue
from palermo.errors import BrokerError
from soak.records import runs
from tests.debian import NotInstalled, can_install, install
from tests.harness.processes import WorkerProcess
from tests.harness.rig import Rig
from tests.helpers import Stopwatch, eventually
from tests.rabbitmq_cluster import Cluster, cluster
from tests.rabbitmq_node import LocalNode, find_server
from tests.scale import chosen

#: Seconds after the death of a node within which a job enqueued after it has run.
GOES_ON_WITHIN = 10.0

#: The same where a node is cut off: its clients learn of it by its silence.
NOTICED_WITHIN = 40.0

#: Milliseconds after which RabbitMQ 4.3 refuses what takes a majority that is not there; 30,000 as a rule.
REFUSES_AFTER_MS = 5_000

#: What RabbitMQ recommends for clusters. From 4.3 on it has no effect: a minority waits by itself.
CONFIG = "cluster_partition_handling = pause_minority\n"

#: Seconds that a publish gives the broker: after half of it a silent session is given up.
PATIENCE = 20.0

#: One job in so many raises, and belongs into `failed`.
FAILING = 100


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[Cluster]:
    if find_server() is None and can_install():
        with suppress(NotInstalled):
            install("rabbitmq-server")
    server = find_server()
    if server is None:
        pytest.fail("a cluster needs a rabbitmq-server that is installed here, not Docker's.")
    with cluster(server, config=CONFIG) as found:
        yield found


@pytest.fixture
def rig(three_nodes: Cluster, tmp_path: Path) -> Iterator[Rig]:
    for node in three_nodes.nodes:
        node.start()
    exchange = f"test-{secrets.token_hex(4)}"
    with Rig(tmp_path, three_nodes.url, exchange, queue_type="quorum", publish_timeout=PATIENCE, module="shop") as rig:
        yield rig


class Publishing:
    """A thread that enqueues one job after the other, and knows which are stored."""

    def __init__(self, rig: Rig, queue: str) -> None:
        self._place = rig
        self._queue = queue
        self._numbers = iter(range(1_000_000))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go, daemon=True)
        self.stored: dict[int, float] = {}
        self.refused: list[str] = []

    def __enter__(self) -> "Publishing":
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self._thread.join(30)

    def after(self, instant: float) -> set[int]:
        """The numbers of the jobs that were stored after this instant."""
        return {number for number, at in list(self.stored.items()) if at > instant}

    def _go(self) -> None:
        for number in self._numbers:
            if self._over.is_set():
                return
            began = time.monotonic()
            try:
                self._place.client.enqueue("soaked.work", (number, 0.004, number % FAILING == 0), queue=self._queue)
            except BrokerError as error:
                self.refused.append(str(error))
            else:
                self.stored[number] = began
            self._over.wait(0.01)


def calm(look: Callable[[], int]) -> int:
    """What it counts; -1 while the cluster is too upset to answer."""
    try:
        return look()
    except BrokerError:
        return -1


def ran(rig: Rig) -> Counter[int]:
    return Counter(run.number for run in runs(rig.lines("runs")))


def start_worker(three_nodes: Cluster, rig: Rig, queues: str, *, prefer: int) -> WorkerProcess:
    """A worker whose URL begins with this node."""
    url = three_nodes.url_from(prefer)
    return rig.worker("-q", queues, "-c", "2", "--log-level", "info", modules=("soaked",), PALERMO_URL=url)


def start_workers(three_nodes: Cluster, rig: Rig) -> list[WorkerProcess]:
    """One that prefers each node, once they have run a job of the queue mail."""
    rig.enqueue("soaked.work", -1, 0, False, queue="mail")
    served = enumerate(("mail", "mail,images", "*"))
    workers = [start_worker(three_nodes, rig, queues, prefer=number) for number, queues in served]
    rig.await_lines(1, "runs")
    return workers


def is_connected(worker: WorkerProcess, node: LocalNode) -> bool:
    """Whether the worker took jobs at this node."""
    return any(" connected " in line and f" at {node.host}:{node.port}," in line for line in worker.log.splitlines())


def goes_on(rig: Rig, publishing: Publishing, since: float) -> float:
    """Wait until a job that was enqueued since then has run; how many seconds that took."""
    watch = Stopwatch()
    eventually(lambda: publishing.after(since) & set(ran(rig)))
    return watch.seconds()


def catches_up(rig: Rig, publishing: Publishing) -> None:
    eventually(lambda: len(ran(rig)) > len(publishing.stored) - 100)


def all_is_well(rig: Rig, publishing: Publishing, workers: list[WorkerProcess]) -> None:
    """Every job that was stored has run, the failed ones are in `failed`, and the workers that began are there."""
    eventually(lambda: set(publishing.stored) <= set(ran(rig)))
    assert all(worker.alive for worker in workers)
    failing = {number for number in publishing.stored if number % FAILING == 0}
    eventually(lambda: calm(rig.inspector.failed.count) >= len(failing))
    assert publishing.refused == []
    eventually(lambda: calm(lambda: len(rig.workers())) == len(workers))


@pytest.mark.parametrize("how", chosen(["killed"], "stopped"))
def test_any_node_may_go_in_mid_load(three_nodes: Cluster, rig: Rig, how: str) -> None:
    workers = start_workers(three_nodes, rig)
    leader = three_nodes.leader(amqp_queue(rig.exchange, "mail"))
    gaps: list[float] = []
    with Publishing(rig, "mail") as publishing:
        for node in (leader, *(node for node in three_nodes.nodes if node is not leader)):
            eventually(lambda: len(publishing.stored) > 100 * (len(gaps) + 1))
            if how == "killed":
                node.kill9()
            else:
                node.stop()
            gaps.append(goes_on(rig, publishing, time.monotonic()))
            node.start()
            catches_up(rig, publishing)
    all_is_well(rig, publishing, workers)
    done = ran(rig)

    assert max(gaps) < GOES_ON_WITHIN
    assert done.total() - len(done) <= 3 * (2 * len(workers) + 1)


def test_a_first_host_that_is_cut_off_from_the_others_is_done_without(three_nodes: Cluster, rig: Rig) -> None:
    workers = start_workers(three_nodes, rig)
    # The program and one of the workers are connected to it.
    first = three_nodes.nodes[0]
    with Publishing(rig, "mail") as publishing:
        eventually(lambda: len(publishing.stored) > 100)
        # Before the cut: a node that is cut off may be busy stopping its applications.
        first.evaluate(f"application:set_env(khepri, default_timeout, {REFUSES_AFTER_MS})")
        with three_nodes.cut_off(first):
            cut, watch = time.monotonic(), Stopwatch()
            workers.append(start_worker(three_nodes, rig, "mail", prefer=0))
            gaps = [goes_on(rig, publishing, cut)]
            eventually(lambda: "job finished" in workers[-1].log)
            gaps.append(watch.seconds())
            assert not is_connected(workers[-1], first)
        gaps.append(goes_on(rig, publishing, time.monotonic()))
        workers.append(start_worker(three_nodes, rig, "mail", prefer=0))
        eventually(lambda: "job finished" in workers[-1].log)
        assert is_connected(workers[-1], first)
    all_is_well(rig, publishing, workers)

    assert max(gaps) < NOTICED_WITHIN
