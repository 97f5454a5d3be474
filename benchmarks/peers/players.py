"""The turns of a contender in a round, by workload, and the scores of a round."""

import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from benchmarks.peers.contender import Contender
from benchmarks.peers.marks import RING
from benchmarks.peers.processes import Failed, Spent, environment
from benchmarks.peers.scores import Score, percentile


class Player(Protocol):
    """One contender at one workload."""

    def prepare(self) -> None:
        """Prepare once, before the first round."""

    def turn(self) -> None:
        """Take one measured turn."""

    def score(self) -> Score:
        """The scores of this round's turns."""


@dataclass(slots=True)
class Tally:
    """Turns of one round, added up."""

    jobs: int = 0
    seconds: float = 0.0
    cpu: float = 0.0

    def add(self, jobs: int, spent: Spent) -> None:
        self.jobs += jobs
        self.seconds += spent.seconds
        self.cpu += spent.cpu

    def score(self) -> Score:
        """Jobs per second, and microseconds of CPU per job since the last call."""
        if not self.jobs:
            raise Failed("no job was done in a whole round")
        score = {"rate": self.jobs / self.seconds, "cpu": self.cpu / self.jobs * 1e6}
        self.jobs, self.seconds, self.cpu = 0, 0.0, 0.0
        return score


class Enqueuing:
    """Enqueues a block of jobs a turn, one by one or by one call, on a connection that stays open."""

    def __init__(self, contender: Contender, *, jobs: int, many: bool) -> None:
        self._contender = contender
        self._jobs = jobs
        self._work, self._size = ("many", {"block": jobs}) if many else ("one_by_one", {"every": 0})
        self._tally = Tally()

    def prepare(self) -> None:
        """Connecting, declaring and what is made at first use are no part of it."""
        self._enqueue()
        self._contender.stored()

    def turn(self) -> None:
        self._tally.add(self._jobs, self._enqueue())

    def score(self) -> Score:
        stored, wanted = self._contender.stored(), self._tally.jobs
        if stored not in (wanted, None):
            raise Failed(f"{wanted} jobs were to be stored, and {stored} were")
        return self._tally.score()

    def _enqueue(self) -> Spent:
        return self._contender.producer.do(self._work, jobs=self._jobs, sleep=0, **self._size)


class Draining:
    """Runs jobs that wait, for a fraction of a second a turn, and is held by SIGSTOP while others run."""

    #: Jobs that there must be at least when a turn begins.
    FEWEST = 500

    #: Number of times that a turn is tried.
    TRIES = 10

    def __init__(self, contender: Contender, *, seconds: float, sleep: float = 0.0) -> None:
        self._contender = contender
        self._seconds = seconds
        self._sleep = sleep
        self._most = 0
        self._tally = Tally()

    def prepare(self) -> None:
        """Start the worker, hold it as soon as all its processes have run jobs, and find out how many a turn takes."""
        setup = self._contender.setup
        processes = setup.slots if setup.pool == "process" else 1
        self._contender.fill(self.FEWEST, self._sleep)
        self._contender.start()
        # A process that comes late must find jobs, however many the earlier ones have taken.
        self._contender.await_runs(1, processes=processes, meanwhile=self._refill)
        self._contender.worker.hold()
        self.turn()
        self._tally = Tally()

    def turn(self) -> None:
        """Repeat the turn with more jobs if it ran out of them before its end."""
        for _ in range(self.TRIES):
            if self._turn():
                return
        raise Failed(f"in {self.TRIES} turns it was never busy to the end")

    def _turn(self) -> bool:
        """Half as many jobs again as any turn took have to wait when it begins."""
        contender = self._contender
        wanted = max(self.FEWEST, self._most * 3 // 2)
        if (missing := wanted - self._left()) > 0:
            contender.fill(missing, self._sleep)
        before = contender.marks.count()
        spent = contender.worker.turn(self._seconds)
        contender.worker.check()
        done = contender.marks.count() - before
        busy = done > 0 and self._left() > contender.setup.slots
        if busy:
            self._tally.add(done, spent)
        self._most = max(self._most, done if busy else 3 * done)
        return busy

    def score(self) -> Score:
        self._contender.check()
        return self._tally.score()

    def _left(self) -> int:
        return self._contender.filled - self._contender.marks.count()

    def _refill(self) -> None:
        if self._left() < self.FEWEST // 2:
            self._contender.add(self.FEWEST, self._sleep)


class Waiting:
    """Runs jobs as they are enqueued at a steady rate: how long from the call that enqueues to the start of the job."""

    #: Jobs before those that count, after it was held.
    FIRST = 10

    def __init__(self, contender: Contender, *, jobs: int, every: float) -> None:
        self._contender = contender
        self._jobs = min(jobs, RING)
        self._every = every
        self._waits: list[float] = []

    def prepare(self) -> None:
        slots = self._contender.setup.slots
        self._contender.fill(4 * slots)
        self._contender.start()
        self._contender.await_runs(4 * slots)
        self._contender.worker.hold()

    def turn(self) -> None:
        contender = self._contender
        contender.worker.release()
        contender.enqueue(self.FIRST, self._every)
        since = time.monotonic_ns()
        contender.enqueue(self._jobs, self._every)
        contender.await_runs(contender.filled)
        contender.worker.hold()
        self._waits += [(began - asked) / 1e6 for began, asked in contender.marks.runs() if asked >= since]

    def score(self) -> Score:
        """Milliseconds."""
        waits, self._waits = self._waits, []
        return {"p50": percentile(waits, 0.5), "p95": percentile(waits, 0.95), "p99": percentile(waits, 0.99)}


class Idling:
    """A worker that has run some jobs and waits for more, alone on the machine: its memory, its CPU."""

    #: Jobs that it runs first, and the seconds in which it comes to rest and in which it is watched.
    JOBS = 20

    def __init__(self, contender: Contender, *, seconds: float) -> None:
        self._contender = contender
        self._seconds = seconds
        self._score: Score = {}

    def prepare(self) -> None:
        pass

    def turn(self) -> None:
        contender = self._contender
        contender.fill(self.JOBS)
        contender.stop_producing()
        contender.start()
        contender.await_runs(self.JOBS)
        time.sleep(self._seconds)
        worked, began = contender.worker.cpu(), time.perf_counter()
        megabytes = contender.worker.memory() / 1e6
        time.sleep(self._seconds)
        idle = (contender.worker.cpu() - worked) / (time.perf_counter() - began)
        self._score = {"memory": megabytes, "processes": len(contender.worker.pids()), "idle": 100 * idle}
        contender.end_worker()

    def score(self) -> Score:
        return self._score


class Starting:
    """From the start of the worker to the start of the job that waits for it, and from TERM to its end when idle."""

    #: The most seconds that its end is waited for.
    WITHIN = 10.0

    #: Seconds between its job and TERM.
    PAUSE = 0.5

    def __init__(self, contender: Contender) -> None:
        self._contender = contender
        self._score: Score = {}

    def prepare(self) -> None:
        pass

    def turn(self) -> None:
        contender = self._contender
        contender.fill(1)
        contender.start()
        contender.await_runs(1)
        (began, _), *_ = contender.marks.runs()
        first = (began - contender.worker.began) / 1e6
        time.sleep(self.PAUSE)
        self._score = {"start": first, "end": 1e3 * contender.worker.terminate(self.WITHIN)}
        contender.end_worker()

    def score(self) -> Score:
        return self._score


class Importing:
    """The cost of importing what a program needs to enqueue, above that of an empty Python program."""

    #: Of which the median counts.
    TIMES = 3

    def __init__(self, contender: Contender) -> None:
        self._contender = contender
        self._score: Score = {}

    def prepare(self) -> None:
        """Once for nothing: what is compiled then is there for all rounds."""
        self._run(self._contender.system.imports)

    def turn(self) -> None:
        spent = [(self._run(self._contender.system.imports), self._run("pass")) for _ in range(self.TIMES)]
        wall = percentile([whole.seconds - bare.seconds for whole, bare in spent], 0.5)
        cpu = percentile([whole.cpu - bare.cpu for whole, bare in spent], 0.5)
        self._score = {"wall": 1e3 * wall, "cpu": 1e3 * cpu}

    def score(self) -> Score:
        return self._score

    def _run(self, program: str) -> Spent:
        told: Mapping[str, str] = {}
        began = time.perf_counter()
        process = subprocess.Popen([self._contender.python, "-c", program], env=environment(told), cwd="/")
        _, status, used = os.wait4(process.pid, 0)
        # Reaped above: subprocess is not to wait for it again.
        process.returncode = os.waitstatus_to_exitcode(status)
        if status:
            raise Failed(f"`{program}` ended with {status}")
        return Spent(seconds=time.perf_counter() - began, cpu=used.ru_utime + used.ru_stime)
