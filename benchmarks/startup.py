"""From a worker's start to the first line of its first job, and from TERM to its exit: `python -m benchmarks.startup`.

Beside it a bare pika loop in a process of its own, which imports pika, connects and acknowledges. Each finds one
message waiting. The worker has two slots, and is idle when it is told to end.
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
from benchmarks.contest import machine, versions
from benchmarks.drain import ROOT
from benchmarks.ground import Ground, ground
from benchmarks.processes import compiled, spent_by_children

#: Seconds to the first job, and to the exit of an idle worker.
START_GOAL, STOP_GOAL = 0.15, 0.3

WORKER = [sys.executable, "-m", "palermo", "worker", jobs.__name__, "-c", "2", "-q", jobs.MARKED]

_WITHIN = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What one process took, in seconds."""

    start: float
    stop: float
    #: CPU from its start to its end, its children's with it.
    cpu: float


def live(place: Ground, command: list[str], begun: Callable[[], float | None]) -> Life:
    """Start it, wait until it has `begun`, which says when, and end it when it is idle."""
    used = spent_by_children()
    started = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, env=compiled(place.environment()), stderr=subprocess.DEVNULL)
    try:
        while (at := begun()) is None:
            if process.poll() is not None or time.monotonic() > started + _WITHIN:
                raise SystemExit(f"{' '.join(command)} did not take its job.")
            time.sleep(0.002)
        time.sleep(0.3)
        told = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait(_WITHIN)
        stop = time.monotonic() - told
    finally:
        process.kill()
        process.wait()
    return Life(start=at - started, stop=stop, cpu=spent_by_children() - used)


def worker(place: Ground) -> Life:
    """One worker that finds one job."""
    with tempfile.TemporaryDirectory() as folder:
        marked = Path(folder, "marked")
        jobs.mark.enqueue(str(marked))

        def begun() -> float | None:
            text = marked.read_text() if marked.exists() else ""
            return float(text) if text.endswith("\n") else None

        return live(place, WORKER, begun)


def loop(place: Ground) -> Life:
    """One bare loop that finds one message."""
    jobs.mark.enqueue(os.devnull)
    command = [sys.executable, "-m", bare.__name__, place.url, place.amqp_name(jobs.MARKED)]
    return live(place, command, lambda: None if place.waiting(jobs.MARKED) else time.monotonic())


def main() -> None:
    parser = argparse.ArgumentParser(description="Start to first job, and TERM to exit, against a bare pika loop.")
    parser.add_argument("--url", help="a broker to measure on; without it a private node is started")
    parser.add_argument("--rounds", type=int, default=7, help="%(default)s unless given")
    given = parser.parse_args()
    with ground(given.url) as place:
        place.connect()
        print(f"startup: two slots, one job, then TERM; {versions(place.version)}; {machine()}\n")
        for each in (worker, loop):
            each(place)  # compiles what is not compiled yet
        lives: dict[str, list[Life]] = {"palermo": [], "bare": []}
        for _ in range(given.rounds):
            lives["palermo"].append(worker(place))
            lives["bare"].append(loop(place))
        print(f"{'':>8} {'start s':>16} {'stop s':>16} {'CPU s':>16}   median (lowest to highest)")
        for name, taken in lives.items():
            shown = " ".join(_span([getattr(life, what) for life in taken]) for what in ("start", "stop", "cpu"))
            print(f"{name:>8} {shown}")
        start, stop = (statistics.median(getattr(one, what) for one in lives["palermo"]) for what in ("start", "stop"))
        print(f"\ngoals {START_GOAL} and {STOP_GOAL} s: {_verdict(start, START_GOAL)}, {_verdict(stop, STOP_GOAL)}")


def _span(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"


def _verdict(seconds: float, goal: float) -> str:
    return "reached" if seconds <= goal else "not reached"


if __name__ == "__main__":
    main()
