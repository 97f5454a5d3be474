"""Workflows beside plain jobs, on each broker: `python -m benchmarks.workflows [ROW…] --broker redis`.

    map     a map of jobs that do nothing, against `enqueue_many` of the same jobs, until the last one has run
    steps   chains of ten jobs that do nothing, against as many plain jobs
    hop     one chain at a time: from the first line of a step to the first line of the next
    cancel  cancel of a map of which nearly all members are not released yet

One worker has four slots; a second one, without jobs, leads. Processor time is that of all processes, with the client
and the broker: it counts where something else uses the machine too. Memory is the highest of the leader.
"""

import argparse
import itertools
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from os import getpid
from pathlib import Path

import palermo
from benchmarks import jobs
from benchmarks.compare import machine
from benchmarks.ground import BROKERS, ROOT, WORKER, connected
from benchmarks.processes import cpu_seconds, family, pss_bytes

#: Seconds after which a side counts as stuck.
_WITHIN = 1_200.0

#: The steps of one chain of `steps` and of `hop`, and the chains of `hop`.
_CHAIN, _LONG, _CHAINS = 10, 50, 6


class Team:
    """A worker with jobs, a worker that leads, and what both cost."""

    def __init__(self, worker: int, leader: int) -> None:
        self.worker, self.leader = worker, leader

    def timed(self, work: Callable[[], object]) -> tuple[float, float, float]:
        """The seconds that this takes, and the processor seconds of all processes and of the leader in it."""
        everybody, leader = self._spent(getpid()), self._spent(self.leader)
        began = time.perf_counter()
        work()
        took = time.perf_counter() - began
        return took, self._spent(getpid()) - everybody, self._spent(self.leader) - leader

    @staticmethod
    def _spent(root: int) -> float:
        return cpu_seconds(family(root))


@contextmanager
def team(environment: Mapping[str, str]) -> Iterator[Team]:
    """Both workers, once they run jobs."""
    with ExitStack() as stack:
        processes = []
        for options in (["-q", "keeper", "-c", "1"], ["-q", jobs.QUEUE, "-c", "4", "--no-scheduler"]):
            process = subprocess.Popen([*WORKER, *options], cwd=ROOT, env=dict(environment))
            stack.callback(process.wait)
            stack.callback(process.terminate)
            processes.append(process.pid)
            time.sleep(1.0)
        jobs.chain.enqueue(1).wait(timeout=60)
        jobs.last.enqueue().result(timeout=60)
        yield Team(processes[1], processes[0])


def _plain(count: int) -> None:
    jobs.nothing.enqueue_many((number,) for number in range(count))
    jobs.last.enqueue().result(timeout=_WITHIN)


def _against_plain(us: Team, rounds: int, count: int, work: Callable[[], object], what: str) -> None:
    print(f"{'round':>6} {what:>10} {'plain':>8} {'ratio':>6}   CPU: {what} {'plain':>8} {'ratio':>6} {'leader':>7}")
    ratios = []
    for number in range(1, rounds + 1):
        sides = [lambda: us.timed(work), lambda: us.timed(lambda: _plain(count))]
        turn = number % 2
        first, second = sides[1 - turn](), sides[turn]()
        ours, plain = (first, second) if turn else (second, first)
        ratios.append((ours[0] / plain[0], ours[1] / plain[1]))
        print(
            f"{number:>6} {ours[0]:>8.2f} s {plain[0]:>6.2f} s {ratios[-1][0]:>6.2f}"
            f" {ours[1]:>8.2f} s {plain[1]:>6.2f} s {ratios[-1][1]:>6.2f} {ours[2]:>5.2f} s",
            flush=True,
        )
    wall, cpu = (statistics.median(each) for each in zip(*ratios, strict=True))
    print(f"{count / ours[0]:,.0f}/s in the last round; ratio {wall:.2f} of the time, {cpu:.2f} of the processor time")


def fan_out(us: Team, rounds: int, count: int) -> None:
    with _peak(us.leader) as peak:
        _against_plain(us, rounds, count, lambda: jobs.fan_out.enqueue(count).wait(timeout=_WITHIN), "map")
    print(f"the leader has at most {peak() / 1e6:.0f} MB")


@contextmanager
def _peak(pid: int) -> Iterator[Callable[[], int]]:
    """Measure the highest memory use of this process during the block."""
    ended, highest = threading.Event(), [0]

    def watch() -> None:
        while not ended.wait(0.2):
            highest[0] = max(highest[0], pss_bytes([pid]))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: highest[0]
    finally:
        ended.set()
        thread.join()


def steps(us: Team, rounds: int, count: int) -> None:
    def work() -> None:
        for job in [jobs.chain.enqueue(_CHAIN) for _ in range(count // _CHAIN)]:
            job.wait(timeout=_WITHIN)

    _against_plain(us, rounds, count, work, "steps")


def hop(us: Team, rounds: int, count: int) -> None:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(_CHAINS):
            path = Path(folder) / str(number)
            jobs.chain.enqueue(_LONG, str(path)).wait(timeout=_WITHIN)
            times = [float(line) for line in path.read_text().split()]
            found += [then - now for now, then in itertools.pairwise(times)]
    found.sort()
    print(f"p50 {1e3 * found[len(found) // 2]:.2f} ms, p99 {1e3 * found[len(found) * 99 // 100]:.2f} ms")


def cancel(us: Team, rounds: int, count: int) -> None:
    with _peak(us.leader) as peak:
        for _ in range(rounds):
            job = jobs.fan_out.enqueue(count, "bench-nobody")
            while not any(found["id"] == job.id for found in palermo.inspector().workflows.list()):
                time.sleep(0.1)
            took, *_ = us.timed(job.cancel)
            print(f"cancel {took:.3f} s", flush=True)
    print(f"the leader has at most {peak() / 1e6:.0f} MB")


ROWS = {"map": fan_out, "steps": steps, "hop": hop, "cancel": cancel}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"default: {' '.join(ROWS)}")
    parser.add_argument("--broker", choices=BROKERS, default="rabbitmq", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("-n", type=int, default=10_000, metavar="JOBS", help="on each side; default: %(default)s")
    given = parser.parse_args()
    if unknown := set(given.rows) - ROWS.keys():
        parser.error(f"unknown row {', '.join(sorted(unknown))}; the rows are {', '.join(ROWS)}.")
    for name in given.rows or ROWS:
        with connected(given.broker) as (version, environment), team(environment) as us:
            print(f"{name}: {version}; {machine()}; {given.n:,} jobs")
            ROWS[name](us, given.rounds, given.n)
            print(flush=True)


if __name__ == "__main__":
    main()
