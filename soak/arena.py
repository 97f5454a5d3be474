"""The system under test: a RabbitMQ node, workers of every pool that each connect through a proxy, and publishing
programs.
"""

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import pika

from palermo.errors import BrokerError
from soak import traffic
from soak.parts import DELAYED, FOREIGN, HOSTILE, RECURRING, REMADE, TENANTS, UNIQUE
from soak.records import Records
from soak.traffic import QUEUES, REMADE_QUEUE
from tests.harness.processes import WorkerProcess
from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.rabbitmq_node import Node, url_of
from tests.tcp_proxy import TcpProxy

#: For each pool, a worker that consumes one queue and a worker that polls several.
WORKERS = {
    "process push": ("-q", "mail", "-c", "3", "--prefetch", "8"),
    "process poll": ("-q", "mail,images,reports,calls", "-c", "2"),
    "thread push": ("--pool", "thread", "-q", "images", "-c", "4"),
    "thread poll": ("--pool", "thread", "-q", "images,reports", "-c", "4"),
    "async push": ("--pool", "async", "-q", "feeds", "-c", "40", "--prefetch", "4"),
    "async poll": ("--pool", "async", "-q", "feeds,calls", "-c", "20"),
}

#: The workers of the queue that is deleted and recreated; eight slots in total.
REMADE_WORKERS = {
    "remade push": ("--pool", "thread", "-q", REMADE_QUEUE, "-c", "4"),
    "remade poll": ("--pool", "thread", "-q", f"reports,{REMADE_QUEUE}", "-c", "4"),
}

PUBLISHERS = "publishers"

#: Maximum number of waiting and running jobs before publishers pause, so that the soak can end.
BACKLOG = 400

#: Maximum seconds between a worker's attempts to connect; 30 by default.
MAX_PAUSE = 2.0

#: Seconds within which all workers must have started.
READY = 120.0

#: The ids of jobs in logs and in reports of broken promises.
_IDS = re.compile(r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b")

#: The name of the recurring job.
TICK = "tick"


class Arena:
    """The processes, and a record of everything done to them."""

    def __init__(self, path: Path, node: Node, *, seed: str, parts: frozenset[str]) -> None:
        self.node = node
        self.seed = seed
        self.parts = parts
        self.records = Records()
        #: Every worker that has existed, by the pid of its parent, with its name.
        self.past: dict[int, WorkerProcess] = {}
        self.names: dict[int, str] = {}
        self.workers: dict[str, WorkerProcess] = {}
        #: The time up to which every tick must have been published.
        self.ticked = 0.0
        chance = random.Random(f"{seed} arena")
        #: One worker of each pool whose parent is never killed, to measure its growth.
        self.steady = tuple(f"{pool} {chance.choice(('push', 'poll'))}" for pool in ("process", "thread", "async"))
        self._kinds = {**WORKERS, **(REMADE_WORKERS if REMADE in parts else {})}
        self.mortal = tuple(name for name in self._kinds if name not in self.steady)
        self._path = path
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._read = self._begun = 0

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            self.proxies = {
                name: undo.enter_context(TcpProxy(self.node.host, self.node.port))
                for name in (*self._kinds, PUBLISHERS)
            }
            # The inspector connects without a proxy.
            self.rig = undo.enter_context(Rig(self._path, url_of(self.node), "palermo", module="shop"))
            if REMADE in self.parts:
                self.make_queue()
            for name in self._kinds:
                self.start(name)
            self.ready()
            sources = self._sources()
            self._threads = undo.enter_context(ThreadPoolExecutor(len(sources)))
            undo.callback(self._stop.set)
            self._publishing = [self._threads.submit(self._publish, name, source) for name, source in sources.items()]
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        self._undo.close()

    def start(self, name: str) -> None:
        worker = self.rig.worker(
            *self._kinds[name],
            modules=("soaked", "mixed"),
            times={"palermo.worker.parent.broker_session.MAX_PAUSE": MAX_PAUSE},
            PALERMO_URL=self._url(name),
            SOAK_RECURS="1" if RECURRING in self.parts else "",
        )
        self.workers[name] = self.past[worker.pid] = worker
        self.names[worker.pid] = name

    @property
    def logs(self) -> dict[int, str]:
        return {pid: worker.log for pid, worker in self.past.items()}

    def log_lines_about(self, wrongs: Iterable[str]) -> list[str]:
        """Return the lines in workers' logs about the jobs that these texts mention."""
        ids = {id for wrong in wrongs for id in _IDS.findall(wrong)}
        return [
            f"{self.names[pid]} {pid}: {line}"
            for pid, log in self.logs.items()
            for line in log.splitlines()
            if not ids.isdisjoint(_IDS.findall(line))
        ]

    @property
    def sizes(self) -> dict[str, float]:
        """The resident memory, in MB, of the parents that are never killed."""
        return {name: _resident(self.workers[name].pid) for name in self.steady}

    def ready(self) -> None:
        """Wait until all workers wait for jobs. They start simultaneously, possibly on a busy machine."""

        def all_idle() -> bool:
            rows = {row["pid"]: row for row in self.rig.workers()}
            busy = {name: rows.get(worker.pid) for name, worker in self.workers.items()}
            assert {name: row for name, row in busy.items() if row is None or row["state"] != "idle"} == {}
            return True

        eventually(all_idle, within=READY)

    def pause(self, seconds: float) -> None:
        due = time.monotonic() + seconds
        eventually(lambda: time.monotonic() >= due, within=seconds + 5)

    def finish(self, *, within: float) -> Counter[str]:
        """Stop publishing, and wait until all jobs are done and every worker is idle. Returns the remaining jobs by
        queue.

        Gives up when no job has started for `within` seconds.
        """
        self._stop.set()
        for publishing in self._publishing:
            publishing.result(timeout=60)
        if RECURRING in self.parts:
            self._end_ticks(within=within)
        begun, deadline = -1, 0.0
        while left := self._left() or held(self.node):
            now = self._beginnings()
            if now > begun:
                begun, deadline = now, time.monotonic() + within
            elif time.monotonic() > deadline:
                break
            self.pause(0.2)
        if not left:
            self.ready()
        return left

    def _end_ticks(self, *, within: float) -> None:
        """Wait for all ticks that are due by now, and stop the recurring job."""
        self.ticked = time.time()
        with suppress(AssertionError):  # Ticks reports missing ones
            eventually(
                lambda: any(int(line.split()[1]) >= self.ticked for line in self.rig.lines("ticks")), within=within
            )
        eventually(self._switch_off, within=within)

    def _switch_off(self) -> bool:
        # The inspector's session may predate the last fault.
        try:
            self.rig.inspector.recurring.switch(TICK, on=False)
        except BrokerError:
            return False
        return True

    def _left(self) -> Counter[str]:
        """Return the numbers of unfinished jobs, by queue."""
        rows = self.rig.inspector.queues.list()
        left = Counter({row["name"]: row["pending"] + row["in_progress"] for row in rows if row["name"] != "failed"})
        left["scheduled"] = self.rig.inspector.scheduled.list(limit=0).total or 0
        return +left

    # The queue that is deleted and recreated

    def make_queue(self) -> None:
        with pika.BlockingConnection(pika.URLParameters(url_of(self.node))) as connection:
            channel = connection.channel()
            channel.exchange_declare("palermo", "direct", durable=True)
            channel.queue_declare(REMADE_QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
            channel.queue_bind(REMADE_QUEUE, "palermo", REMADE_QUEUE)

    def delete_queue(self) -> int:
        """Delete the queue, and return the number of its jobs that no consumer had received."""
        with pika.BlockingConnection(pika.URLParameters(url_of(self.node))) as connection:
            return int(connection.channel().queue_delete(REMADE_QUEUE).method.message_count)

    # The publishers

    def _url(self, name: str) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.proxies[name].port}/%2F?heartbeat=2"

    def _sources(self) -> dict[str, traffic.Source]:
        """Return the sources of jobs, by name."""
        url, records, plain = self._url(PUBLISHERS), self.records, tuple(QUEUES)
        all_queues = (*plain, REMADE_QUEUE) if REMADE in self.parts else plain
        made: dict[str, traffic.Source] = {
            "first": traffic.One(url, records, all_queues),
            "second": traffic.One(url, records, all_queues),
            "third": traffic.Many(url, records, all_queues),
        }
        if TENANTS in self.parts:
            made[TENANTS] = traffic.Tenants(url, records, plain)
        if DELAYED in self.parts:
            made[DELAYED] = traffic.Delayed(url, records, plain)
        if UNIQUE in self.parts:
            made[UNIQUE] = traffic.Unique(url, records, plain)
        if FOREIGN in self.parts:
            made[FOREIGN] = traffic.Foreign(url, "palermo", records, plain)
        if HOSTILE in self.parts:
            made[HOSTILE] = traffic.Hostile(url, "palermo", records, plain)
        return made

    def _publish(self, name: str, source: traffic.Source) -> None:
        chance = random.Random(f"{self.seed} {name}")
        try:
            while not self._stop.wait(source.step(chance)):
                while self._outstanding() > BACKLOG and not self._stop.wait(0.1):
                    pass
        finally:
            source.close()

    def _outstanding(self) -> int:
        return self.records.stored - self.records.deleted - self._beginnings()

    def _beginnings(self) -> int:
        """Return the number of runs that have started so far."""
        path = self.rig.path / "runs"
        with self._lock:
            if path.exists():
                with path.open("rb") as file:
                    file.seek(self._read)
                    new = file.read()
                self._read += len(new)
                self._begun += new.count(b"begins ")
            return self._begun


def _resident(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def held(node: Node) -> Counter[str]:
    """Return the number of messages in the queues of jobs, tenants and delayed jobs, as counted by the broker.

    No other count includes the messages sent to a slot in the 12 seconds before it notices that its queue was
    recreated, or messages that a new leader is still checking because its predecessor may have dispatched them.
    """
    lines = node.ctl("list_queues", "--no-table-headers", "name", "messages").splitlines()
    counts = Counter({name: int(count) for name, count in (line.split("\t") for line in lines)})
    ours = {
        name for name in counts if ("~" not in name and "failed" not in name) or "~tenant." in name or "~later." in name
    }
    return +Counter({name: counts[name] for name in ours})
