"""The time until an idle worker starts a job, from the call of enqueue to the first line of the job.

    python -m benchmarks.wake [--broker rabbitmq|redis|sqlite] [-n 300] [--space 0.05] [--fsync always|everysec]

One job at a time, each some moments after the one before has ended, on a private broker. It writes each job to its disk
before enqueue returns, but Redis with `--fsync everysec`. One worker with one slot runs them, in a process. All
processes read the same clock.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.jobs import MARKED, mark
from benchmarks.processes import cpu_seconds, family
from benchmarks.visits import BROKERS, ROOT, connected

#: Seconds for which the idle worker is watched.
_IDLE = 10.0

#: Seconds after which a job counts as lost.
_WITHIN = 60.0


def started(environment: Mapping[str, str], *, jobs: int, space: float) -> tuple[list[float], float]:
    """Seconds from enqueue to start of each job; then the processor time of the idle worker, in seconds a second."""
    command = [sys.executable, "-m", "palermo", "worker", mark.__module__, "-q", MARKED, "--log-level", "warning"]
    with tempfile.TemporaryDirectory() as folder:
        worker = subprocess.Popen(command, cwd=ROOT, env=dict(environment))
        try:
            for number in range(20):
                _start(Path(folder) / f"before-{number}")
            spent = cpu_seconds(family(worker.pid))
            time.sleep(_IDLE)
            spent = (cpu_seconds(family(worker.pid)) - spent) / _IDLE
            took = []
            for number in range(jobs):
                time.sleep(space)
                took.append(_start(Path(folder) / f"{number}"))
        finally:
            worker.terminate()
            worker.wait()
    return took, spent


def _start(path: Path) -> float:
    """Enqueue one job, and wait for its start."""
    began = time.monotonic()
    mark.enqueue(str(path))
    while not path.exists() or not (text := path.read_text()):
        if time.monotonic() - began > _WITHIN:
            raise SystemExit("the worker did not take its job.")
        time.sleep(0.002)
    return float(text) - began


def main() -> None:
    parser = argparse.ArgumentParser(description="How soon an idle worker starts a job.")
    parser.add_argument("--broker", choices=BROKERS, default="rabbitmq", help="%(default)s unless given")
    parser.add_argument("-n", type=int, default=300, metavar="JOBS", help="%(default)s unless given")
    parser.add_argument("--space", type=float, default=0.05, metavar="S", help="between two jobs; %(default)s")
    parser.add_argument("--fsync", choices=("always", "everysec"), default="always", help="of Redis; %(default)s")
    given = parser.parse_args()
    config = ("--appendfsync", given.fsync) if given.broker == "redis" else ()
    with connected(given.broker, *config) as (versions, environment):
        took, spent = started(environment, jobs=given.n, space=given.space)
    took.sort()
    print("wake: one job for an idle worker, from the call of enqueue to the job's first line")
    print(f"{' '.join((versions, *config))}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {given.n} jobs\n")
    for name, share in (("p10", 0.1), ("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        print(f"{name} {took[int(share * len(took))] * 1e3:>8.2f} ms")
    print(f"\nthe idle worker takes {spent:.2%} of a core")


if __name__ == "__main__":
    main()
