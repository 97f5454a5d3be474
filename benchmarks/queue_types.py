"""Compares classic and quorum queues: rates, latency, memory, disk, and what a kill -9 of one node leaves.

    python -m benchmarks.queue_types [--nodes 1|3] [--rounds 3] [-n 1000] [--waiting 20000]

On nodes of its own. PALERMO_TEST_RABBITMQ=4.3 chooses another RabbitMQ than the installed one. All programs prefer the
first node, where the leaders of the queues are. The machine's load is that of the last minute.
"""

import argparse
import os
import secrets
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any

import pika

from benchmarks.jobs import MARKED, ORDER, QUEUE, mark, noop
from palermo.client.client import Client
from palermo.core.topology import QUEUE_TYPES, amqp_queue
from palermo.errors import BrokerError
from palermo.settings.settings import Settings
from palermo.worker.handle import WorkerHandle, start_worker
from tests.rabbitmq_cluster import Cluster, cluster
from tests.rabbitmq_node import LocalNode, find_server, url_of
from tests.rabbitmq_tidy import delete_all

#: Seconds that nodes get to write and forget what is over, before they are measured.
_SETTLES = 8.0

#: Seconds for which a program enqueues before and after a node is killed.
_BEFORE, _AFTER = 2.0, 12.0

#: The jobs whose latency is measured, and how many of them are enqueued in a second.
_LATENCIES, _A_SECOND = 200, 40


class Side:
    """One type of queue: a program and an exchange that use it."""

    def __init__(self, nodes: Cluster, kind: str) -> None:
        self.nodes = nodes
        self.kind = kind
        self.exchange = f"bench-{kind}-{secrets.token_hex(3)}"
        self.settings = Settings(url=nodes.url, exchange=self.exchange, queue_type=kind, publish_timeout=10.0)
        self.client = Client(self.settings)
        self.rates: dict[str, list[float]] = {}

    def queue(self, name: str = QUEUE) -> str:
        return amqp_queue(self.exchange, name)

    def note(self, what: str, value: float) -> None:
        self.rates.setdefault(what, []).append(value)

    def worker(self, queue: str, slots: int) -> WorkerHandle:
        return start_worker(
            ["benchmarks.jobs"], queues=queue, concurrency=slots, log_level="error", settings=self.settings
        )

    def close(self) -> None:
        self.client.close()
        delete_all(url_of(self.nodes.nodes[0]), self.exchange)


def waiting(side: Side, queue: str = QUEUE) -> int:
    """How many jobs wait in the queue."""
    with pika.BlockingConnection(pika.URLParameters(url_of(side.nodes.nodes[0]))) as connection:
        declared: Any = connection.channel().queue_declare(side.queue(queue), passive=True)
        return int(declared.method.message_count)


def race(side: Side, jobs: int) -> None:
    """One round of rates: enqueue one by one, many by one call, and drain these by one slot and by four."""
    began = time.perf_counter()
    for _ in range(jobs):
        side.client.enqueue(noop.definition, (ORDER,))
    side.note("enqueue one, jobs/s", jobs / (time.perf_counter() - began))
    began = time.perf_counter()
    side.client.enqueue_many(repeat((noop.definition, (ORDER,), {}), 5 * jobs))
    side.note("enqueue many, jobs/s", 5 * jobs / (time.perf_counter() - began))
    for slots in (1, 4):
        side.note(f"run in {slots} slots, jobs/s", drained(side, slots, 3 * jobs if slots == 1 else 0))


def drained(side: Side, slots: int, leave: int) -> float:
    """Jobs a second of a worker that works until only so many wait, once it has begun."""
    there = waiting(side)
    begin_at, end_at = there - (there - leave) * 0.1, leave + (there - leave) * 0.1
    points: list[tuple[float, int]] = []
    with (
        side.worker(QUEUE, slots),
        pika.BlockingConnection(pika.URLParameters(url_of(side.nodes.nodes[0]))) as connection,
    ):
        channel = connection.channel()
        while not points or points[-1][1] > end_at:
            declared: Any = channel.queue_declare(side.queue(), passive=True)
            if (count := int(declared.method.message_count)) <= begin_at:
                points.append((time.perf_counter(), count))
            time.sleep(0.01)
    (began, first), (ended, last) = points[0], points[-1]
    return (first - last) / (ended - began)


def latencies(side: Side) -> None:
    """From the call that enqueues to the start of the job, for an idle worker of two slots."""
    with tempfile.TemporaryDirectory() as folder, side.worker(MARKED, 2):
        began: list[float] = []
        for number in range(_LATENCIES):
            began.append(time.monotonic())
            side.client.enqueue(mark.definition, (f"{folder}/{number}",))
            time.sleep(max(0.0, began[0] + (number + 1) / _A_SECOND - time.monotonic()))
        until(lambda: len(os.listdir(folder)) == _LATENCIES)
        time.sleep(0.1)
        # The first ones waited for the worker to connect.
        taken = [float(Path(folder, str(n)).read_text()) - began[n] for n in range(_A_SECOND, _LATENCIES)]
    side.note("latency p50, ms", 1_000 * statistics.median(taken))
    side.note("latency p99, ms", 1_000 * statistics.quantiles(taken, n=100)[98])


def kept(side: Side, jobs: int) -> None:
    """What so many waiting jobs take of memory and disk, on all nodes together, and what is left when they are gone."""
    side.client.enqueue(noop.definition, (ORDER,))
    time.sleep(_SETTLES)
    before = memory(side.nodes), disk(side.nodes)
    for _ in range(jobs // 1_000):
        side.client.enqueue_many(repeat((noop.definition, (ORDER,), {}), 1_000))
    time.sleep(_SETTLES)
    full = memory(side.nodes), disk(side.nodes)
    with pika.BlockingConnection(pika.URLParameters(url_of(side.nodes.nodes[0]))) as connection:
        connection.channel().queue_purge(side.queue())
    time.sleep(_SETTLES)
    after = memory(side.nodes), disk(side.nodes)
    for what, at in (("waiting", full), ("purged", after)):
        side.note(f"memory of {jobs:,} {what}, MB", (at[0] - before[0]) / 1e6)
        side.note(f"disk of {jobs:,} {what}, MB", (at[1] - before[1]) / 1e6)


def memory(nodes: Cluster) -> int:
    """Bytes that the nodes use, without what their garbage collection would free."""
    total = 0
    for node in nodes.nodes:
        node.evaluate("lists:foreach(fun erlang:garbage_collect/1, erlang:processes())")
        total += int(node.evaluate("erlang:memory(total)"))
    return total


def disk(nodes: Cluster) -> int:
    """Bytes that the data of the nodes take on the disk."""
    files = [file for node in nodes.nodes for file in (node.folder / "data").rglob("*") if file.is_file()]
    return sum(file.stat().st_blocks * 512 for file in files)


def killed(side: Side) -> str:
    """Kill the node of the queue while a program enqueues, and look for its confirmed jobs before and after."""
    confirmed: list[tuple[float, str]] = []
    refused: list[str] = []
    over = threading.Event()

    def publish() -> None:
        while not over.is_set():
            try:
                confirmed.append((time.monotonic(), side.client.enqueue(noop.definition, (ORDER,), queue="killed").id))
            except BrokerError as error:
                refused.append(str(error))

    thread = threading.Thread(target=publish)
    thread.start()
    time.sleep(_BEFORE)
    node = side.nodes.leader(side.queue("killed"))
    node.kill9()
    at = time.monotonic()
    time.sleep(_AFTER)
    over.set()
    thread.join()
    others = [other for other in side.nodes.nodes if other is not node]
    meanwhile = taken(url_of(others[0]), side.queue("killed")) if others else set()
    node.start()
    time.sleep(_SETTLES)
    ids = {id for _, id in confirmed}
    lost = ids - meanwhile - taken(url_of(node), side.queue("killed"))
    after = [began for began, _ in confirmed if began > at]
    pause = f"after {after[0] - at:.1f} s" if after else "not before its return"
    return (
        f"{len(ids):,} confirmed, {len(after):,} of them while it was away ({pause}), {len(refused)} refused;"
        f" {len(ids & meanwhile):,} could be taken while it was away, {len(lost)} lost"
    )


def taken(url: str, queue: str) -> set[str]:
    """The ids of all messages that can be had from the queue here."""
    ids: set[str] = set()
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        try:
            while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
                assert got[1] is not None
                ids.add(str(got[1].message_id))
        except pika.exceptions.AMQPError:  # a classic queue whose node is down
            return ids
    return ids


def until(probe: Callable[[], bool], within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while not probe():
        if time.monotonic() > deadline:
            raise SystemExit("the jobs do not end.")
        time.sleep(0.05)


def table(sides: list[Side]) -> None:
    print(f"{'':<38}" + "".join(f"{side.kind:>22}" for side in sides))
    for what in sides[0].rates:
        cells = [
            f"{statistics.median(side.rates[what]):,.1f} ({min(side.rates[what]):,.1f}–{max(side.rates[what]):,.1f})"
            for side in sides
        ]
        print(f"{what:<38}" + "".join(f"{cell:>22}" for cell in cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1, help="of the cluster; %(default)s unless given")
    parser.add_argument("--rounds", type=int, default=3, help="%(default)s unless given")
    parser.add_argument("-n", type=int, default=1_000, metavar="JOBS", help="enqueued one by one in each round")
    parser.add_argument("--waiting", type=int, default=20_000, metavar="JOBS", help="that memory and disk are told of")
    given = parser.parse_args()
    server = find_server()
    if server is None:
        raise SystemExit("no rabbitmq-server is installed here to start nodes with.")
    with cluster(server, given.nodes) as nodes:
        sides = [Side(nodes, kind) for kind in QUEUE_TYPES]
        print(f"RabbitMQ {version(nodes.nodes[0])}, {given.nodes} nodes, load {os.getloadavg()[0]:.1f} at first")
        for number in range(given.rounds):
            for side in sides if number % 2 == 0 else sides[::-1]:
                race(side, given.n)
                latencies(side)
        print(f"load {os.getloadavg()[0]:.1f} after the rates")
        for side in sides:
            kept(side, given.waiting)
        table(sides)
        for side in sides:
            print(f"kill -9, {side.kind}: {killed(side)}; load {os.getloadavg()[0]:.1f}", flush=True)
            side.close()


def version(node: LocalNode) -> str:
    with pika.BlockingConnection(pika.URLParameters(url_of(node))) as connection:
        return str(connection._impl.server_properties["version"])


if __name__ == "__main__":
    main()
