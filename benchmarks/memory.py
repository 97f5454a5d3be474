"""The memory of a worker that waits: `python -m benchmarks.memory`.

The proportional set size of its processes together, of which each shared page counts once: its parent, the template
that forks its slots, and two slots that have run a few jobs each. Beside it bare pika loops, as many as there are
slots, which share nothing but files.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import bare, jobs
from benchmarks.contest import machine, versions
from benchmarks.drain import ROOT
from benchmarks.ground import Ground, ground
from benchmarks.processes import compiled, family

#: MB of a parent with two idle slots.
GOAL = 36.0

_WITHIN = 60.0


def pss(pid: int) -> float:
    """MB of one process, of shared pages its part; 0.0 if it is gone, or where there is no such file."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def settled(place: Ground, commands: list[list[str]], queue: str) -> list[float]:
    """MB of each process of these commands once the queue is empty and they wait."""
    started = [subprocess.Popen(one, cwd=ROOT, env=compiled(place.environment())) for one in commands]
    try:
        deadline = time.monotonic() + _WITHIN
        while place.waiting(queue):
            if time.monotonic() > deadline or any(process.poll() is not None for process in started):
                raise SystemExit(f"nobody takes the jobs of queue {queue!r}.")
            time.sleep(0.05)
        time.sleep(1.0)
        return [pss(pid) for process in started for pid in family(process.pid)]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(_WITHIN)


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory of an idle worker with two slots, against bare pika loops.")
    parser.add_argument("--url", help="a broker to measure on; without it a private node is started")
    parser.add_argument("-n", type=int, default=200, metavar="JOBS", help="run before; %(default)s unless given")
    given = parser.parse_args()
    worker = [sys.executable, "-m", "palermo", "worker", jobs.__name__, "-c", "2", "-q", jobs.QUEUE]
    with ground(given.url) as place:
        place.connect()
        loop = [sys.executable, "-m", bare.__name__, place.url, place.amqp_name(jobs.QUEUE)]
        print(f"memory: PSS after {given.n} jobs; {versions(place.version)}; {machine()}\n")
        for name, commands in {"palermo": [[*worker, "--log-level", "warning"]], "bare": [loop, loop]}.items():
            jobs.noop.enqueue_many((jobs.ORDER,) for _ in range(given.n))
            found = settled(place, commands, jobs.QUEUE)
            print(f"{name:>8} {sum(found):6.1f} MB: {' '.join(f'{each:.1f}' for each in found)}")
            if name == "palermo":
                print(f"{'':>8} goal {GOAL:.0f} MB: {'reached' if sum(found) <= GOAL else 'not reached'}")


if __name__ == "__main__":
    main()
