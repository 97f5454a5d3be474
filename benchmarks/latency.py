"""The time from the call of enqueue to the first line of the job, on an idle worker: `python -m benchmarks.latency`.

One job at a time, each shortly after the one before has ended, on a private broker that `--broker` selects. Redis
writes each job to its disk before enqueue returns, unless `--fsync everysec` is given. All processes share one clock.
"""

import argparse
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.compare import machine
from benchmarks.ground import BROKERS, ROOT, WORKER, connected
from benchmarks.jobs import MARKED, mark
from benchmarks.processes import cpu_seconds, family

#: Seconds for which the idle worker is watched.
_IDLE = 10.0

#: Seconds after which a job counts as lost.
_WITHIN = 60.0


def measure(environment: Mapping[str, str], *, jobs: int, space: float) -> tuple[list[float], float]:
    """Seconds from enqueue to start of each job, and the share of a core that the idle worker takes."""
    with tempfile.TemporaryDirectory() as folder:
        worker = subprocess.Popen([*WORKER, "-q", MARKED], cwd=ROOT, env=dict(environment))
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
    parser.add_argument("--broker", choices=BROKERS, default="rabbitmq", help="default: %(default)s")
    parser.add_argument("-n", type=int, default=300, metavar="JOBS", help="default: %(default)s")
    parser.add_argument("--space", type=float, default=0.05, metavar="S", help="between two jobs; default: %(default)s")
    parser.add_argument("--fsync", choices=("always", "everysec"), default="always", help="of Redis; %(default)s")
    given = parser.parse_args()
    config = ("--appendfsync", given.fsync) if given.broker == "redis" else ()
    with connected(given.broker, *config) as (version, environment):
        took, spent = measure(environment, jobs=given.n, space=given.space)
    took.sort()
    print("latency: from the call of enqueue to the first line of the job, on an idle worker")
    print(f"{' '.join((version, *config))}; {machine()}; {given.n} jobs\n")
    for name, share in (("p10", 0.1), ("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        print(f"{name} {took[int(share * len(took))] * 1e3:>8.2f} ms")
    print(f"\nthe idle worker takes {spent:.2%} of a core")


if __name__ == "__main__":
    main()
