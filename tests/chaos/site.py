"""Everything that a soak harms: one RabbitMQ, workers of every pool behind a proxy each, and programs that enqueue."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from palermo.client import Client
from palermo.config import Settings
from palermo.errors import BrokerError
from tests.acceptance.place import Place, Worker
from tests.chaos.ledger import Harm, Order
from tests.helpers import eventually
from tests.rabbitmq_node import Node, url_of
from tests.tcp_proxy import TcpProxy

#: Workers that are pushed the jobs of one queue and workers that ask for those of several, of every pool.
WORKERS = {
    "process push": ("-q", "mail", "-c", "3", "--prefetch", "auto"),
    "process poll": ("-q", "mail,images,reports,calls", "-c", "2"),
    "thread push": ("--pool", "thread", "-q", "images", "-c", "4"),
    "thread poll": ("--pool", "thread", "-q", "images,reports", "-c", "4"),
    "async push": ("--pool", "async", "-q", "feeds", "-c", "40", "--prefetch", "4"),
    "async poll": ("--pool", "async", "-q", "feeds,calls", "-c", "20"),
}

#: The job that each queue is for.
QUEUES = {"mail": "work", "images": "work", "reports": "work", "feeds": "wait", "calls": "wait"}

PUBLISHERS = "publishers"

#: One job in so many raises.
FAILING = 50

#: How many jobs may wait or run before publishers pause, so that there is an end to it.
BACKLOG = 400

#: Seconds that enqueuing may take, and between a worker's attempts to connect; 5 and 30 in truth.
PUBLISH, MAX_PAUSE = 3.0, 2.0


class Site:
    """The processes, and the record of what was done."""

    def __init__(self, path: Path, node: Node, *, seed: str) -> None:
        self.node = node
        self.seed = seed
        self.harms: list[Harm] = []
        self.orders: list[Order] = []
        #: By the parent's pid: every worker that ever was, and what it is called.
        self.past: dict[int, Worker] = {}
        self.names: dict[int, str] = {}
        self.workers: dict[str, Worker] = {}
        chance = random.Random(f"{seed} site")
        #: One of every pool whose parent nobody kills, to see how it grows.
        self.steady = tuple(f"{pool} {chance.choice(('push', 'poll'))}" for pool in ("process", "thread", "async"))
        self.mortal = tuple(name for name in WORKERS if name not in self.steady)
        self._path = path
        self._numbers = iter(range(10**9))
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._read = self._begun = 0

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            self.proxies = {
                name: undo.enter_context(TcpProxy(self.node.host, self.node.port)) for name in (*WORKERS, PUBLISHERS)
            }
            # The inspector's way is straight.
            self.place = undo.enter_context(Place(self._path, url_of(self.node), "palermo"))
            for name in WORKERS:
                self.start(name)
            self.place.ready(*self.workers.values())
            self._threads = undo.enter_context(ThreadPoolExecutor(3))
            undo.callback(self._stop.set)
            self._publishing = [
                self._threads.submit(self._publish, name, publish)
                for name, publish in (("first", self._one), ("second", self._one), ("third", self._many))
            ]
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        self._undo.close()

    def start(self, name: str) -> None:
        worker = self.place.worker(
            *WORKERS[name],
            modules=("soaked",),
            times={"palermo.worker.session.MAX_PAUSE": MAX_PAUSE},
            PALERMO_URL=self._url(name),
        )
        self.workers[name] = self.past[worker.pid] = worker
        self.names[worker.pid] = name

    @property
    def logs(self) -> dict[int, str]:
        return {pid: worker.log for pid, worker in self.past.items()}

    @property
    def sizes(self) -> dict[str, float]:
        """The resident size, in MB, of the parents that nobody kills."""
        return {name: _resident(self.workers[name].pid) for name in self.steady}

    def pause(self, seconds: float) -> None:
        due = time.monotonic() + seconds
        eventually(lambda: time.monotonic() >= due, within=seconds + 5)

    def finish(self, *, within: float) -> None:
        """Enqueue no more, and wait until all that was enqueued has run and every worker waits."""
        self._stop.set()
        for publishing in self._publishing:
            publishing.result(timeout=30)
        eventually(lambda: not self._left(), within=within, every=0.2)
        self.place.ready(*self.workers.values())

    def _left(self) -> Counter[str]:
        """What is not done, by queue."""
        rows = self.place.inspector.queues()
        left = Counter({row["name"]: row["pending"] + row["in_progress"] for row in rows if row["name"] != "failed"})
        return +left

    # Those that enqueue.

    def _url(self, name: str) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.proxies[name].port}/%2F?heartbeat=2"

    def _publish(self, name: str, publish: Callable[[Client, random.Random], None]) -> None:
        chance = random.Random(f"{self.seed} {name}")
        with Client(Settings(url=self._url(PUBLISHERS), publish_timeout=PUBLISH)) as client:
            while not self._stop.is_set():
                publish(client, chance)
                while len(self.orders) - self._beginnings() > BACKLOG and not self._stop.wait(0.1):
                    pass

    def _one(self, client: Client, chance: random.Random) -> None:
        queue, args = self._job(chance)
        began = time.monotonic()
        try:
            id = client.enqueue(f"soaked.{QUEUES[queue]}", args, queue=queue).id
        except BrokerError:
            id = ""
        self._enqueued([(args, id)], began)
        self._stop.wait(chance.uniform(0.0, 0.06))

    def _many(self, client: Client, chance: random.Random) -> None:
        queue = chance.choice(list(QUEUES))
        jobs = [self._job(chance)[1] for _ in range(chance.randint(2, 60))]
        began = time.monotonic()
        try:
            ids = [
                job.id
                for job in client.enqueue_many([(f"soaked.{QUEUES[queue]}", args, {}) for args in jobs], queue=queue)
            ]
        except BrokerError:
            ids = [""] * len(jobs)
        self._enqueued(list(zip(jobs, ids, strict=True)), began)
        self._stop.wait(chance.uniform(0.2, 1.2))

    def _job(self, chance: random.Random) -> tuple[str, tuple[int, float, bool]]:
        kind = chance.random()
        takes = (
            chance.uniform(1, 4) if kind < 0.02 else chance.uniform(0.2, 1) if kind < 0.1 else chance.uniform(0, 0.04)
        )
        with self._lock:
            number = next(self._numbers)
        return chance.choice(list(QUEUES)), (number, round(takes, 4), chance.randrange(FAILING) == 0)

    def _enqueued(self, jobs: list[tuple[tuple[int, float, bool], str]], began: float) -> None:
        ended = time.monotonic()
        orders = [Order(number=n, id=id, raises=raises, began=began, ended=ended) for (n, _, raises), id in jobs]
        with self._lock:
            self.orders += orders

    def _beginnings(self) -> int:
        """How many runs have begun so far."""
        path = self.place.path / "runs"
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
