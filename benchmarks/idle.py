"""The cost and the latency of an idle worker: `python -m benchmarks.idle [import|start|memory|latency]`.

    import   processor time of a fresh interpreter that imports Palermo, against pika
    start    from a worker's start to the first line of its first job, and from TERM to its exit, against a bare loop
    memory   of the processes of a worker with two slots that have run some jobs, against two bare loops
    latency  from the call of enqueue to the first line of the job, and the processor time of the idle worker

In memory, a shared page counts once. Interpreters and processes take turns, so that other work of the machine affects
all of them. For `latency`, jobs are enqueued one at a time, each shortly after the previous one has ended, on the
broker that `--broker` selects. All processes share one clock. Redis writes each job to its disk before enqueue returns,
unless `--fsync everysec` is given.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks import bare, jobs
from benchmarks.compare import machine, versions
from benchmarks.ground import BROKERS, ROOT, WORKER, Ground, add_url, connected, ground
from benchmarks.processes import compiled, cpu_seconds, family, pss_bytes, spent_by_children

#: Jobs that the slots have run before their memory is read.
_JOBS = 200

#: Seconds after which a process counts as stuck, and a job as lost.
_WITHIN = 60.0

#: Seconds for which the processor time of the idle worker is measured.
_IDLE = 10.0

#: The imports of each interpreter. All others contain the first.
_PROGRAMS = {
    "nothing": "pass",
    "palermo": "import palermo",
    "palermo, and a job": "import palermo\n@palermo.job(queue='mail')\ndef send(to): ...",
    "palermo, to enqueue": "import palermo.client.client, palermo.brokers.rabbitmq",
    "pika": "import pika",
}


def imports(place: Ground, rounds: int) -> None:
    """Print the processor time of interpreters."""

    def cost(program: str) -> float:
        before = spent_by_children()
        # In another directory, which holds nothing to import.
        environment = compiled(os.environ) | {"PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", program], check=True, cwd=tempfile.gettempdir(), env=environment)
        return (spent_by_children() - before) * 1e3

    taken = {name: list[float]() for name in _PROGRAMS}
    for program in _PROGRAMS.values():
        cost(program)  # compiles the modules
    for _ in range(2 * rounds):
        for name, program in _PROGRAMS.items():
            taken[name].append(cost(program))
    print(f"{'import':>20} {'lowest ms':>10} {'median ms':>10} {'above nothing':>14}")
    nothing = statistics.mean(taken["nothing"])
    for name, each in taken.items():
        print(
            f"{name:>20} {min(each):>10.0f} {statistics.median(each):>10.0f} {statistics.mean(each) - nothing:>14.0f}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """Seconds of one process."""

    start: float
    stop: float
    #: CPU from its start to its end, with its children's.
    cpu: float


def live(place: Ground, command: list[str], begun: Callable[[], float | None]) -> Life:
    """Start a process, wait until `begun` returns the time of its first job, and end it while it is idle."""
    used = spent_by_children()
    started = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, env=compiled(place.environment()), stderr=subprocess.DEVNULL)
    try:
        while (at := begun()) is None:
            if process.poll() is not None or time.monotonic() > started + _WITHIN:
                raise SystemExit(f"{' '.join(command)} did not take its job.")
            time.sleep(0.002)
        time.sleep(0.3)
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait(_WITHIN)
        stop = time.monotonic() - asked
    finally:
        process.kill()
        process.wait()
    return Life(start=at - started, stop=stop, cpu=spent_by_children() - used)


def worker_life(place: Ground) -> Life:
    """A worker with two slots that finds one job."""
    with tempfile.TemporaryDirectory() as folder:
        marked = Path(folder, "marked")
        jobs.mark.enqueue(str(marked))

        def begun() -> float | None:
            text = marked.read_text() if marked.exists() else ""
            return float(text) if text.endswith("\n") else None

        return live(place, [*WORKER, "-c", "2", "-q", jobs.MARKED], begun)


def loop_life(place: Ground) -> Life:
    """A bare loop that finds one message."""
    jobs.mark.enqueue(os.devnull)
    command = [sys.executable, "-m", bare.__name__, place.url, place.amqp_name(jobs.MARKED)]
    return live(place, command, lambda: None if place.waiting(jobs.MARKED) else time.monotonic())


def start(place: Ground, rounds: int) -> None:
    """Print how long processes take to start and to stop."""
    for each in (worker_life, loop_life):
        each(place)  # compiles the modules
    lives: dict[str, list[Life]] = {"palermo": [], "bare": []}
    for _ in range(rounds):
        lives["palermo"].append(worker_life(place))
        lives["bare"].append(loop_life(place))
    print(f"{'start':>20} {'first job s':>20} {'exit s':>20} {'CPU s':>20}   median (lowest to highest)")
    for name, taken in lives.items():
        shown = " ".join(_span([getattr(life, what) for life in taken]) for what in ("start", "stop", "cpu"))
        print(f"{name:>20} {shown}")


def settled(place: Ground, commands: list[list[str]]) -> list[float]:
    """MB of each process of these commands once the queue is empty."""
    jobs.noop.enqueue_many((jobs.ORDER,) for _ in range(_JOBS))
    started = [subprocess.Popen(one, cwd=ROOT, env=compiled(place.environment())) for one in commands]
    try:
        deadline = time.monotonic() + _WITHIN
        while place.waiting():
            if time.monotonic() > deadline or any(process.poll() is not None for process in started):
                raise SystemExit(f"no worker takes the jobs of queue {jobs.QUEUE!r}.")
            time.sleep(0.05)
        time.sleep(1.0)
        return [pss_bytes([pid]) / 2**20 for process in started for pid in family(process.pid)]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(_WITHIN)


def memory(place: Ground, _: int) -> None:
    """Print the memory of a worker with two slots and of two bare loops."""
    place.make(jobs.QUEUE)
    loop = [sys.executable, "-m", bare.__name__, place.url, place.amqp_name(jobs.QUEUE)]
    ours, theirs = settled(place, [[*WORKER, "-c", "2", "-q", jobs.QUEUE]]), settled(place, [loop, loop])
    print(f"{'memory':>20} {'MB':>10}   of each process")
    for name, found in (("palermo", ours), ("bare", theirs)):
        print(f"{name:>20} {sum(found):>10.1f}   {' '.join(f'{each:.1f}' for each in found)}")
    print(f"ratio {sum(ours) / sum(theirs):.2f}; less is better")


def _span(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})".rjust(20)


def latency(*, broker: str, url: str | None, count: int, space: float, fsync: str) -> None:
    """Print how soon an idle worker starts a job."""
    config = ("--appendfsync", fsync) if broker == "redis" else ()
    with connected(broker, *config, url=url) as (version, environment):
        took, spent = delays(environment, count=count, space=space)
    took.sort()
    print("latency: from the call of enqueue to the first line of the job, on an idle worker")
    print(f"{' '.join((version, *config))}; {machine()}; {count} jobs\n")
    shares = (("p10", 0.1), ("p25", 0.25), ("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999))
    for name, value in (*((name, took[int(share * len(took))]) for name, share in shares), ("max", took[-1])):
        print(f"{name:5} {value * 1e3:>8.2f} ms")
    print(f"\nthe idle worker takes {spent:.2%} of a core")


def delays(environment: Mapping[str, str], *, count: int, space: float) -> tuple[list[float], float]:
    """Seconds from enqueue to start of each job, and the share of a core that the idle worker takes."""
    with tempfile.TemporaryDirectory() as folder:
        worker = subprocess.Popen([*WORKER, "-q", jobs.MARKED], cwd=ROOT, env=dict(environment))
        try:
            for number in range(20):
                _delay(Path(folder) / f"before-{number}")
            spent = cpu_seconds(family(worker.pid))
            time.sleep(_IDLE)
            spent = (cpu_seconds(family(worker.pid)) - spent) / _IDLE
            took = []
            for number in range(count):
                time.sleep(space)
                took.append(_delay(Path(folder) / f"{number}"))
        finally:
            worker.terminate()
            worker.wait()
    return took, spent


def _delay(path: Path) -> float:
    """Enqueue one job, and wait for its start."""
    began = time.monotonic()
    jobs.mark.enqueue(str(path))
    while not path.exists() or not (text := path.read_text()):
        if time.monotonic() - began > _WITHIN:
            raise SystemExit("the worker did not take its job.")
        time.sleep(0.002)
    return float(text) - began


#: The rows that compare a worker with bare pika loops.
_COMPARED = {"import": imports, "start": start, "memory": memory}

_ROWS = (*_COMPARED, "latency")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"{', '.join(_ROWS)}; default: all")
    add_url(parser)
    parser.add_argument("--rounds", type=int, default=7, help="of the compared rows; default: %(default)s")
    parser.add_argument("--broker", choices=BROKERS, default="rabbitmq", help="for latency; default: %(default)s")
    parser.add_argument("-n", type=int, default=300, metavar="JOBS", help="for latency; default: %(default)s")
    parser.add_argument("--space", type=float, default=0.05, metavar="S", help="between two jobs; default: %(default)s")
    parser.add_argument("--fsync", choices=("always", "everysec"), default="always", help="of Redis; %(default)s")
    given = parser.parse_args()
    if unknown := set(given.rows) - set(_ROWS):
        parser.error(f"unknown row {', '.join(sorted(unknown))}; the rows are {', '.join(_ROWS)}.")
    if given.url and given.broker != "rabbitmq":
        parser.error("--url names a RabbitMQ, so it cannot be combined with another --broker.")
    for name in given.rows or _ROWS:
        if name == "latency":
            latency(broker=given.broker, url=given.url, count=given.n, space=given.space, fsync=given.fsync)
        else:
            with ground(given.url) as place:
                place.connect()
                print(f"{name}: {versions(place.version)}; {machine()}\n", flush=True)
                _COMPARED[name](place, given.rounds)
        print(flush=True)


if __name__ == "__main__":
    main()
