"""The cost of limits, and how exactly a rate is kept.

    python -m benchmarks.limited rate     50/s for 20 s, two workers of four slots: how near, how many in any second
    python -m benchmarks.limited cost     jobs a second: plain, with a priority, a limit, a rate, none of them ever met
    python -m benchmarks.limited kills    limit=3 under 20 slots of ten workers, of which one is killed every second

On the embedded broker in a directory of its own, or on the broker that --url names.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from palermo.client.client import Call, Client
from palermo.jobs.options import ManyOptions
from palermo.settings.settings import Settings

PROGRAMS = Path(__file__).parents[1] / "tests" / "worker" / "programs"

RATE, SECONDS = 50, 20

JOBS, ROUNDS = 1_000, 3


class Ground:
    """One broker, and the workers started on it."""

    def __init__(self, url: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="palermo-limited-"))
        self.notes = self.path / "notes"
        self.settings = Settings(url=url or f"sqlite:///{self.path}/jobs.db", exchange=f"bench-{uuid.uuid4().hex[:8]}")
        self.client = Client(self.settings)
        self.workers: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, "PALERMO_URL": self.settings.url, "PALERMO_EXCHANGE": self.settings.exchange}
        command = [
            sys.executable,
            "-m",
            "palermo",
            "worker",
            "crew_limited",
            "crew",
            "--log-level",
            "error",
            *arguments,
        ]
        worker = subprocess.Popen(command, cwd=PROGRAMS, env=environment, stdin=subprocess.DEVNULL)
        self.workers.append(worker)
        return worker

    def lines(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []

    def until(self, count: int) -> None:
        while len(self.lines()) < count:
            time.sleep(0.05)

    def close(self) -> None:
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self.workers:
            worker.wait(30)
        self.client.close()


def rate(ground: Ground) -> None:
    for _ in range(2):
        ground.start("-c", "4")
    time.sleep(3)
    calls: list[Call] = [("crew_limited.paced", (str(ground.notes),), {}) for _ in range(RATE * SECONDS)]
    ground.client.enqueue_many(calls, rate=f"{RATE}/s")
    ground.until(RATE * SECONDS)
    began = sorted(float(line) for line in ground.lines())
    took = began[-1] - began[0]
    most = max(sum(start <= other < start + 1 for other in began[n : n + 3 * RATE]) for n, start in enumerate(began))
    print(f"{RATE}/s: {(len(began) - 1) / took:.2f}/s over {took:.1f} s, at most {most} in any second")


def cost(ground: Ground) -> None:
    """Each way in its turn, in both orders; the ratios are those of one round."""
    rates: dict[str, list[float]] = {name: [] for name in _WAYS}
    for number in range(ROUNDS):
        for name in sorted(_WAYS, reverse=bool(number % 2)):
            rates[name].append(_drained(ground, f"{name}-{number}", _WAYS[name]))
    for name, found in rates.items():
        ratios = sorted(one / plain for one, plain in zip(found, rates["plain"], strict=True))
        middle = statistics.median(ratios)
        print(
            f"{name}: {statistics.median(found):,.0f} jobs/s, {middle:.2f} of plain"
            f" ({ratios[0]:.2f} to {ratios[-1]:.2f}), load {os.getloadavg()[0]:.1f}"
        )


def _drained(ground: Ground, queue: str, options: dict[str, Any]) -> float:
    """Jobs a second of one slot, from the first to the last, which write down when they run."""
    ground.notes.unlink(missing_ok=True)
    mark: Call = ("crew_limited.paced", (str(ground.notes),), {})
    of_mark: ManyOptions = {"queue": queue, "priority": 9} if "priority" in options else {"queue": queue}
    ground.client.enqueue_many([mark], **of_mark)
    ground.client.enqueue_many([("crew.nothing", (), {})] * JOBS, queue=queue, **options)
    ground.client.enqueue_many([mark], queue=queue)
    worker = ground.start("-q", queue)
    ground.until(2)
    worker.send_signal(signal.SIGTERM)
    worker.wait(30)
    ground.workers.remove(worker)
    first, last = (float(line) for line in ground.lines())
    return JOBS / (last - first)


#: Limits and rates that are never met: what asking costs.
_WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "priority": {"priority": 5},
    "limit": {"limit": 1_000},
    "rate": {"rate": "1000000/s"},
}


def kills(ground: Ground) -> None:
    running = ground.path / "running"
    running.mkdir()
    jobs = 200
    calls: list[Call] = [
        ("crew_limited.probed", (str(ground.notes), str(running), 0.1, number), {}) for number in range(jobs)
    ]
    ground.client.enqueue_many(calls, limit=3)
    for _ in range(10):
        ground.start("-c", "2")
    time.sleep(5)
    began, killed = time.monotonic(), 0
    while len(ground.lines()) < jobs:
        victim = ground.workers.pop(0)
        victim.kill()
        victim.wait()
        killed += 1
        ground.start("-c", "2")
        time.sleep(1)
    most = max(int(line.split()[0]) for line in ground.lines())
    print(f"limit=3: {jobs} jobs done {time.monotonic() - began:.0f} s later, {killed} kills, at most {most} at once")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rate", "cost", "kills"])
    parser.add_argument("--url", default="")
    chosen = parser.parse_args()
    ground = Ground(chosen.url)
    try:
        {"rate": rate, "cost": cost, "kills": kills}[chosen.what](ground)
    finally:
        ground.close()


if __name__ == "__main__":
    main()
