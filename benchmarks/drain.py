"""Workers draining a queue of jobs that do nothing: `python -m benchmarks.drain [ROW…]`.

Each side has a full queue, and runs until a tenth of it is gone, so that starting isn't measured. From then on the
sides take turns of a fraction of a second, in which the other is stopped by SIGSTOP. Jobs are counted while both are
stopped.
"""

import itertools
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from os import kill
from typing import Any

from benchmarks import bare, jobs
from benchmarks.compare import Row, Sample, compare
from benchmarks.ground import ROOT, WORKER, Ground, leader
from benchmarks.processes import cpu_seconds, family
from palermo.client.decorator import FunctionJob

#: The queue of the side that Palermo is compared with.
OTHER = f"{jobs.QUEUE}-other"

#: Seconds of one turn, and from its end until everything that was sent has arrived.
TURN, SETTLE = 0.2, 0.01

#: Seconds after which a round counts as stuck.
_WITHIN = 120.0

#: Puts this number of jobs into a queue.
Fill = Callable[[str, int], object]

_numbers = itertools.count()


class Side:
    """Processes that drain one or more queues together."""

    def __init__(
        self, place: Ground, commands: list[list[str]], fill: Fill, count: int, *, queues: Sequence[str]
    ) -> None:
        for queue in queues:
            place.make(queue)
            fill(queue, count // len(queues))
        self._place = place
        self._queues = queues
        self._done = 0
        self._seconds = self._worked = 0.0
        self._family: list[int] = []
        self._processes = [subprocess.Popen(each, cwd=ROOT, env=place.environment()) for each in commands]

    def wait_until_running(self) -> None:
        """Wait until a tenth of the jobs is gone, then stop; by then all processes run."""
        full, deadline = self._waiting(), time.perf_counter() + _WITHIN
        while self._waiting() > full * 0.9:
            if any(one.poll() is not None for one in self._processes) or time.perf_counter() > deadline:
                raise SystemExit(f"no worker takes the jobs of queue {self._queues[0]!r}.")
            time.sleep(SETTLE)
        self._family = [pid for one in self._processes for pid in family(one.pid)]
        self._send(signal.SIGSTOP)
        time.sleep(SETTLE)
        self._left = self._waiting()

    def turn(self) -> bool:
        """Run for one turn; false if there weren't enough jobs for it."""
        worked, began = cpu_seconds(self._family), time.perf_counter()
        self._send(signal.SIGCONT)
        time.sleep(TURN)
        self._send(signal.SIGSTOP)
        seconds = time.perf_counter() - began
        time.sleep(SETTLE)
        left, before = self._waiting(), self._left
        if not left:
            return False
        self._left = left
        self._done += before - left
        self._seconds += seconds
        self._worked += cpu_seconds(self._family) - worked
        return True

    @property
    def sample(self) -> Sample:
        if not self._done:
            raise SystemExit(f"no job of queue {self._queues[0]!r} was run; give it more jobs with -n.")
        return Sample(rate=self._done / self._seconds, cpu=self._worked / self._done * 1e6)

    def close(self) -> None:
        for queue in self._queues:
            self._place.purge(queue)
        self._send(signal.SIGCONT)
        for one in self._processes:
            one.terminate()
        for one in self._processes:
            one.wait()

    def _waiting(self) -> int:
        return sum(map(self._place.waiting, self._queues))

    def _send(self, number: signal.Signals) -> None:
        for pid in self._family:
            with suppress(ProcessLookupError):
                kill(pid, number)


def turns(place: Ground, *make: Callable[[], Side]) -> tuple[Sample, Sample]:
    """One round: both sides take turns until one of them runs out of jobs."""
    with ExitStack() as stack:
        sides = list[Side]()
        for each in make:
            sides.append(each())
            stack.callback(sides[-1].close)
            sides[-1].wait_until_running()
        order = list(sides)
        while all(each.turn() for each in order):
            order.reverse()
        if failed := place.failed():
            raise SystemExit(f"{failed} jobs have failed, so the figures mean nothing.")
        return sides[0].sample, sides[1].sample


def against_bare(
    *options: str,
    loops: int = 1,
    queues: Sequence[str] = (jobs.QUEUE,),
    busy: Sequence[str] = (),
    job: FunctionJob[..., Any, Any] = jobs.noop,
) -> Callable[[Ground, int], tuple[Sample, Sample]]:
    """A worker with these options on `queues`, of which `busy` hold jobs, against bare loops on one queue."""

    def play(place: Ground, count: int) -> tuple[Sample, Sample]:
        wire = place.wire(job)

        def fill(queue: str, count: int) -> None:
            window = bare.Window(place.url, replace(wire, routing_key=queue))
            window.publish(count)
            window.close()

        for queue in queues:
            place.make(queue)
        worker = [*WORKER, "-q", ",".join(queues), *options]
        loop = [sys.executable, "-m", bare.__name__, place.url, place.amqp_name(OTHER)]
        return turns(
            place,
            lambda: Side(place, [worker], fill, count, queues=busy or queues),
            lambda: Side(place, [loop] * loops, fill, count, queues=(OTHER,)),
        )

    return play


def fill_plain(queue: str, count: int) -> None:
    jobs.noop.options(queue=queue).enqueue_many((jobs.ORDER,) for _ in range(count))


def with_options(**options: Any) -> Callable[[Ground, int], tuple[Sample, Sample]]:
    """Jobs with these options, against plain ones; a third worker leads."""

    def fill(queue: str, count: int) -> None:
        jobs.noop.options(queue=queue, **options).enqueue_many((jobs.ORDER,) for _ in range(count))

    def play(place: Ground, count: int) -> tuple[Sample, Sample]:
        worker = [*WORKER, "--no-scheduler", "-q"]
        with leader(place):
            return turns(
                place,
                lambda: Side(place, [[*worker, jobs.QUEUE]], fill, count, queues=(jobs.QUEUE,)),
                lambda: Side(place, [[*worker, OTHER]], fill_plain, count, queues=(OTHER,)),
            )

    return play


def journaled(place: Ground, count: int) -> tuple[Sample, Sample]:
    """A worker that records every job, against one that records nothing."""

    def side(level: str, queue: str) -> Side:
        command = ["env", f"PALERMO_JOURNAL={level}", *WORKER, "--no-scheduler", "-q", queue]
        return Side(place, [command], fill_plain, count, queues=(queue,))

    return turns(place, lambda: side("all", jobs.QUEUE), lambda: side("off", OTHER))


def logged(place: Ground, count: int) -> tuple[Sample, Sample]:
    """A worker that logs each job into /dev/null, against one that logs only warnings."""

    def side(level: str, queue: str) -> Side:
        command = shlex.join([*WORKER, "--no-scheduler", "-q", queue, "--log-level", level])
        return Side(place, [["sh", "-c", f"exec {command} 2>/dev/null"]], fill_plain, count, queues=(queue,))

    return turns(place, lambda: side("info", jobs.QUEUE), lambda: side("warning", OTHER))


#: The queues of a worker that serves many of them.
_FIFTY = [f"{jobs.QUEUE}-{number:03}" for number in range(1, 51)]

ROWS = {
    "1": Row(title="one slot, against one bare loop", play=against_bare(), jobs=10_000),
    "2": Row(title="2 slots, against 2 bare loops", play=against_bare("-c", "2", loops=2), jobs=10_000),
    "4": Row(title="4 slots, against 4 bare loops", play=against_bare("-c", "4", loops=4), jobs=10_000),
    "threads": Row(
        title="8 threads of one process, against one bare loop",
        play=against_bare("-c", "8", "--pool", "thread"),
        jobs=20_000,
    ),
    "coroutines": Row(
        title="100 coroutines of one process, against one bare loop",
        play=against_bare("-c", "100", "--pool", "async", job=jobs.awaited),
        jobs=20_000,
    ),
    "queues": Row(
        title="one slot on 50 queues, all with jobs, against one bare loop on one queue",
        play=against_bare(queues=_FIFTY),
        jobs=10_000,
    ),
    "last-queue": Row(
        title="one slot on 50 queues, of which the last has jobs, against one bare loop on one queue",
        play=against_bare(queues=_FIFTY, busy=_FIFTY[-1:]),
        jobs=10_000,
    ),
    "keyed": Row(
        title="jobs with a unique key each, against plain jobs",
        play=with_options(unique="until_done", unique_key=lambda _: f"{next(_numbers)}"),
        jobs=2_000,
        names=("keyed", "plain"),
    ),
    "limit": Row(
        title="jobs with a limit that is never reached, against plain jobs",
        play=with_options(limit=1_000),
        jobs=4_000,
        names=("limited", "plain"),
    ),
    "rate": Row(
        title="jobs with a rate that is never reached, against plain jobs",
        play=with_options(rate="1000000/s"),
        jobs=4_000,
        names=("limited", "plain"),
    ),
    "journal": Row(
        title="every job recorded in the journal, against no journal",
        play=journaled,
        jobs=20_000,
        names=("all", "off"),
    ),
    "log": Row(
        title="a log line for each job, against warnings only",
        play=logged,
        jobs=20_000,
        names=("info", "warning"),
    ),
}


if __name__ == "__main__":
    compare("How fast workers run jobs that do nothing.", ROWS, usual=("1", "threads"))
