"""The cost of a worker without jobs, against bare pika loops: `python -m benchmarks.idle [import|start|memory]`.

    import   processor time of a fresh interpreter that imports Palermo
    start    from a worker's start to the first line of its first job, and from TERM to its exit
    memory   of the processes of a worker with two slots that have run some jobs; a shared page counts once

The interpreters and processes take turns, so that other work of the machine affects all of them.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import bare, jobs
from benchmarks.compare import machine, versions
from benchmarks.ground import ROOT, WORKER, Ground, add_url, ground
from benchmarks.processes import compiled, family, pss_bytes, spent_by_children

#: Jobs that the slots have run before their memory is read.
_JOBS = 200

#: Seconds after which a process counts as stuck.
_WITHIN = 60.0

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


_ROWS = {"import": imports, "start": start, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description="What a worker without jobs costs, against bare pika loops.")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"{', '.join(_ROWS)}; default: all")
    add_url(parser)
    parser.add_argument("--rounds", type=int, default=7, help="default: %(default)s")
    given = parser.parse_args()
    if unknown := set(given.rows) - _ROWS.keys():
        parser.error(f"unknown row {', '.join(sorted(unknown))}; the rows are {', '.join(_ROWS)}.")
    with ground(given.url) as place:
        place.connect()
        print(f"idle: {versions(place.version)}; {machine()}")
        for name in given.rows or _ROWS:
            print(flush=True)
            _ROWS[name](place, given.rounds)


if __name__ == "__main__":
    main()
