"""A node dies: of three, one after the other, each in the middle of the work, and first the leader of the queue.

Promise 1 on a cluster: with quorum queues no job is lost that was confirmed, and work goes on by itself.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from palermo.errors import BrokerError
from tests.acceptance.place import Place
from tests.chaos.records import runs
from tests.debian import NotInstalled, can_install, install
from tests.helpers import Stopwatch, eventually
from tests.rabbitmq_cluster import Cluster, cluster
from tests.rabbitmq_node import find_server

#: Seconds after the death of a node within which a job enqueued after it has run.
GOES_ON_WITHIN = 10.0

#: One job in so many raises, and belongs into `failed`.
FAILING = 100


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[Cluster]:
    if find_server() is None and can_install():
        try:
            install("rabbitmq-server")
        except NotInstalled as error:
            pytest.skip(f"a cluster needs a rabbitmq-server that is installed here, not Docker's: {error}")
    server = find_server()
    if server is None:
        pytest.skip("a cluster needs a rabbitmq-server that is installed here, not Docker's, and none is.")
    with cluster(server) as found:
        yield found


@pytest.fixture
def place(three_nodes: Cluster, tmp_path: Path) -> Iterator[Place]:
    with Place(tmp_path, three_nodes.url, "palermo", queue_type="quorum") as place:
        yield place


class Publishing:
    """A thread that enqueues one job after the other, and knows which are stored."""

    def __init__(self, place: Place, queue: str) -> None:
        self._place = place
        self._queue = queue
        self._numbers = iter(range(1_000_000))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go, daemon=True)
        self.stored: dict[int, float] = {}
        self.refused: list[str] = []
        self.slowest = 0.0

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
            self.slowest = max(self.slowest, time.monotonic() - began)
            self._over.wait(0.01)


def calm(look: Callable[[], int]) -> int:
    """What it counts; -1 while the cluster is too upset to answer."""
    try:
        return look()
    except BrokerError:
        return -1


def ran(place: Place) -> Counter[int]:
    return Counter(run.number for run in runs(place.lines("runs")))


def test_any_node_may_die_in_mid_load(three_nodes: Cluster, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.enqueue("soaked.work", -1, 0, False, queue="mail")
    workers = [
        place.worker(
            *("-q", queues, "-c", "2", "--log-level", "info"),
            modules=("soaked",),
            PALERMO_URL=three_nodes.url_from(number),
        )
        for number, queues in enumerate(("mail", "mail,images", "*"))
    ]
    place.await_lines(1, "runs")
    leader = three_nodes.leader("mail")
    others = [node for node in three_nodes.nodes if node is not leader]
    gaps: list[float] = []
    with Publishing(place, "mail") as publishing:
        for node in (leader, *others):
            eventually(lambda: len(publishing.stored) > 100 * (len(gaps) + 1))
            killed, watch = time.monotonic(), Stopwatch()
            node.kill9()
            eventually(lambda killed=killed: publishing.after(killed) & set(ran(place)))
            gaps.append(watch.seconds())
            if node is not others[-1]:
                node.start()
                eventually(lambda: len(ran(place)) > len(publishing.stored) - 100)
    eventually(lambda: set(publishing.stored) <= set(ran(place)))
    done = ran(place)

    with capsys.disabled():
        print(
            f"\n{len(publishing.stored):,} jobs, killed {len(gaps)} nodes, leader first: work went on after"
            f" {', '.join(f'{gap:.1f}' for gap in gaps)} s; slowest enqueue {publishing.slowest:.1f} s,"
            f" {len(publishing.refused)} refused, {done.total() - len(done)} ran again"
        )
    assert max(gaps) < GOES_ON_WITHIN
    assert all(worker.alive for worker in workers)
    failing = {number for number in publishing.stored if number % FAILING == 0}
    eventually(lambda: calm(place.inspector.count_failed) >= len(failing))
    assert publishing.refused == []
    assert done.total() - len(done) <= 3 * (2 * len(workers) + 1)
    eventually(lambda: calm(lambda: len(place.workers())) == len(workers))
