"""A real worker draining one queue of jobs that do nothing: `python -m benchmarks.drain [--slots 1|2|4]`.

Beside it for each of its slots a bare SelectConnection in a process of its own, which acknowledges each message as it
comes.
With `--model` it is not a worker but its process model alone (process_model.py): what a worker could reach at best.
Each has a queue of its own, full of the same messages. Each runs until a tenth of it is gone, so that
starting up is no part of it. From then on they take turns of a fraction of a second, in which the
other is stopped by SIGSTOP; what a turn has done is counted when both stand still.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from os import kill
from pathlib import Path

from benchmarks import bare, jobs, process_model
from benchmarks.contest import Sample, contest
from benchmarks.ground import Ground, Wire, ground, parser_of
from benchmarks.processes import cpu_seconds, family

#: By the number of slots; what is not named is held to the last.
GOALS = {1: 1.0, 2: 0.95, 4: 0.95}

ROOT = Path(__file__).parent.parent

#: Of one queue: the one that is full.
WORKER = [sys.executable, "-m", "palermo", "worker", jobs.__name__, "-q", jobs.QUEUE, "--log-level", "warning"]

#: Where the messages for the bare side wait.
BARE_QUEUE = f"{jobs.QUEUE}-bare"

#: Seconds of one turn, and between its end and counting: what has been sent must have arrived.
TURN, SETTLE = 0.2, 0.01

#: Seconds after which a round counts as stuck.
_WITHIN = 120.0


class Side:
    """Some processes, with their children, that drain one queue together, or several."""

    def __init__(
        self,
        place: Ground,
        queue: str,
        fill: Callable[[int], None],
        commands: list[list[str]],
        count: int,
        *,
        others: Sequence[str] = (),
    ) -> None:
        """`fill` puts this many jobs into the queue, and the others with it."""
        fill(count)
        self._place = place
        self._queue = queue
        self._queues = (queue, *others)
        self._full = count
        self._done = 0
        self._seconds = self._worked = 0.0
        self._processes = [subprocess.Popen(each, cwd=ROOT, env=place.environment()) for each in commands]

    def wait_until_running(self) -> None:
        """Wait until a tenth of the jobs is gone, then stop; all its processes are there by then."""
        deadline = time.perf_counter() + _WITHIN
        while self._waiting() > self._full * 0.9:
            if any(one.poll() is not None for one in self._processes) or time.perf_counter() > deadline:
                raise SystemExit(f"nobody takes the jobs of queue {self._queue!r}.")
            time.sleep(SETTLE)
        self._family = [pid for one in self._processes for pid in family(one.pid)]
        self._send(signal.SIGSTOP)
        time.sleep(SETTLE)
        self._left = self._waiting()

    def turn(self) -> bool:
        """Run for one turn; False if there was not enough to do until its end."""
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
            raise SystemExit(f"nothing was done in queue {self._queue!r}; give it more jobs by -n.")
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
        for pid in getattr(self, "_family", []):
            with suppress(ProcessLookupError):
                kill(pid, number)


@contextmanager
def side(
    place: Ground, wire: Wire, queue: str, commands: list[list[str]], count: int, *, others: Sequence[str] = ()
) -> Iterator[Side]:
    """One side, running well and stopped for now; ended whatever happens. All its queues get as many jobs."""

    def fill(count: int) -> None:
        for each in (queue, *others):
            window = bare.Window(place.url, replace(wire, routing_key=each))
            window.publish(count // (1 + len(others)))
            window.close()

    made = Side(place, queue, fill, commands, count, others=others)
    try:
        made.wait_until_running()
        yield made
    finally:
        made.close()


def play(
    place: Ground,
    wire: Wire,
    count: int,
    *,
    slots: int,
    prefetch: int = 1,
    pool: str = "process",
    loops: int | None = None,
    model: bool = False,
) -> tuple[Sample, Sample]:
    """One round: turns of both, until one of them runs out of jobs. For each slot a bare loop, unless `loops` says.

    With `model` the process model in place of the worker.
    """
    worker = [*WORKER, "--concurrency", str(slots), "--prefetch", str(prefetch), "--pool", pool]
    if model:
        worker = [sys.executable, "-m", process_model.__name__, place.url, place.amqp_name(jobs.QUEUE), str(slots)]
    bare_loop = [sys.executable, "-m", bare.__name__, place.url, place.amqp_name(BARE_QUEUE)]
    with (
        side(place, wire, jobs.QUEUE, [worker], count) as palermo,
        side(place, wire, BARE_QUEUE, [bare_loop] * (slots if loops is None else loops), count) as other,
    ):
        order = [palermo, other]
        while all(each.turn() for each in order):
            order.reverse()
        if failed := place.failed():
            raise SystemExit(f"{failed} jobs have failed: this measured something else.")
        return palermo.sample, other.sample


def main() -> None:
    parser = parser_of("Drain a queue with a worker, against bare pika callback loops at prefetch 1.", jobs=10_000)
    parser.add_argument("--slots", type=int, default=1, help="of the worker, and bare loops; %(default)s unless given")
    parser.add_argument("--prefetch", type=int, default=1, help="of the worker; the bare loops have 1")
    parser.add_argument("--model", action="store_true", help="the process model of a worker alone, on pika")
    given = parser.parse_args()
    with ground(given.url) as place:
        wire = place.wire()
        place.make(BARE_QUEUE)
        what = "process model with as many slots" if given.model else f"slots at prefetch {given.prefetch}"
        contest(
            f"drain: {given.slots} of a worker's {what}, no-op jobs from one queue,"
            " against as many of pika's SelectConnections at prefetch 1",
            lambda _: play(place, wire, given.n, slots=given.slots, prefetch=given.prefetch, model=given.model),
            rounds=given.rounds,
            goal=GOALS.get(given.slots, GOALS[4]),
            broker=place.version,
            load=f"{given.n:,} jobs of {len(wire.body):,} bytes",
        )


if __name__ == "__main__":
    main()
