"""One system at one workload: its queues, its producer, its worker, and how far that has come."""

import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from benchmarks.peers.marks import FOLDER, Marks
from benchmarks.peers.processes import Failed, ProducerProcess, Spent, WorkerProcess
from benchmarks.peers.setup import Setup
from benchmarks.peers.stores import Stores
from benchmarks.peers.systems.system import Store, System

#: Seconds that a worker may take until all its processes run jobs, and a queue to have what was put there.
WITHIN = 40.0

#: Jobs that a call enqueues when a queue is filled.
_BLOCK = 100

#: Seconds between two checks of a worker.
_LOOK = 0.01


class Contender:
    """A system under measurement. Its processes are started when they are needed, and ended by `close`."""

    def __init__(
        self, system: System, setup: Setup, stores: Stores, *, store: Store, name: str, folder: Path, venv: Path
    ) -> None:
        self.system = system
        self._stores = stores
        self._store = store
        self._venv = venv
        self._log = folder / f"{name}.log"
        self._marked = folder / f"{name}.marks"
        self._marked.mkdir()
        self.marks = Marks(self._marked)
        self.setup = setup.changed(url=stores.url(store, name))
        self._producer: ProducerProcess | None = None
        self._worker: WorkerProcess | None = None
        #: Jobs that were put into its queues for its worker.
        self.filled = 0

    @property
    def producer(self) -> ProducerProcess:
        """The process that enqueues, started at first use."""
        if self._producer is None:
            told = self._told(self.setup)
            self._producer = ProducerProcess(self.python, self.system.name, told, self._log)
        return self._producer

    @property
    def worker(self) -> WorkerProcess:
        """The worker, once started."""
        assert self._worker is not None
        return self._worker

    def fill(self, jobs: int, sleep: float = 0.0) -> None:
        """Put this many jobs into its queues, and return once they are stored. Hold the worker during the call."""
        self._free_file()
        before = self._waiting() if self.producer else 0
        self.add(jobs, sleep)
        if self._store == "rabbitmq":
            # The broker hands some to a worker that is held.
            there = before + jobs - self.held
            self._until(lambda: self._waiting() >= there, f"{jobs} jobs are not in its queues")

    def add(self, jobs: int, sleep: float = 0.0) -> None:
        """Send this many jobs to its queues. They may still be on their way."""
        block = _BLOCK if len(self.setup.queues) == 1 else max(1, jobs // len(self.setup.queues))
        self.producer.do("many", jobs=jobs, sleep=sleep, block=block)
        self.filled += jobs

    def enqueue(self, jobs: int, every: float) -> Spent:
        """Have jobs enqueued one by one for the worker that waits, one in each `every` seconds."""
        self.filled += jobs
        return self.producer.do("one_by_one", jobs=jobs, sleep=0.0, every=every)

    def stop_producing(self) -> None:
        """End the producer, so that it is no neighbour to what is measured."""
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def start(self) -> None:
        """Start the worker."""
        # Whether enqueuing waits for the disk is no matter of the worker's, but Huey has one setting for both.
        setup = self.setup.changed(confirm=True)
        command = [self.python, *self.system.worker(setup)]
        self._worker = WorkerProcess(command, self._told(setup) | {FOLDER: str(self._marked)}, self._log)

    def await_runs(self, jobs: int, *, processes: int = 1, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Wait until `jobs` jobs were started, in `processes` processes. Raises Failed."""

        def ran() -> bool:
            self.worker.check()
            meanwhile()
            counts = self.marks.per_process()
            return len(counts) >= processes and sum(counts) >= jobs

        self._until(ran, f"{jobs} jobs in {processes} processes were not run")

    def stored(self) -> int | None:
        """Empty its queues in RabbitMQ and return the number of their jobs; None for another store."""
        return self._stores.purge(self._amqp_queues()) if self._store == "rabbitmq" else None

    @property
    def held(self) -> int:
        """The number of unacknowledged jobs that its worker may have."""
        return self.setup.slots * len(self.setup.queues) * self.setup.prefetch

    def check(self) -> None:
        """Raises Failed unless what was put into its queues has been run, is held by the worker, or still waits."""
        if self._store != "rabbitmq":
            return
        missing = self.filled - self.marks.count() - self._waiting()
        if not -self.held <= missing <= self.held:
            raise Failed(f"{missing} jobs of {self.filled} are neither run nor waiting: this measured something else")

    def end_worker(self) -> None:
        """Kill the worker and forget its runs."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None
        self.marks.close()
        for file in self._marked.glob("*"):
            file.unlink()
        self.filled = 0

    def close(self) -> None:
        """End its processes and take away its queues."""
        self.end_worker()
        self.stop_producing()
        shutil.rmtree(self._marked, ignore_errors=True)
        if self._store == "rabbitmq":
            self._stores.delete([*self._amqp_queues(), *self.system.extra_queues(self.setup)])

    @property
    def python(self) -> str:
        """The Python that all of it runs in."""
        return self.system.python(self._venv)

    def _told(self, setup: Setup) -> dict[str, str]:
        return setup.environment() | dict(self.system.environment(setup))

    def _amqp_queues(self) -> list[str]:
        return [self.system.amqp_queue(queue) for queue in self.setup.queues]

    def _waiting(self) -> int:
        return self._stores.waiting(self._amqp_queues()) if self._store == "rabbitmq" else 0

    def _free_file(self) -> None:
        """Let a worker that was held in the middle of a transaction end it, so that another can write."""
        if self._store != "sqlite" or self._worker is None:
            return
        with closing(sqlite3.connect(self.setup.url, timeout=0, isolation_level=None)) as file:
            while True:
                try:
                    file.execute("begin immediate")
                    return
                except sqlite3.OperationalError:
                    self._worker.turn(_LOOK)

    def _until(self, holds: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + WITHIN
        while not holds():
            if time.monotonic() > deadline:
                raise Failed(f"{otherwise} within {WITHIN:.0f} s")
            time.sleep(_LOOK)
