"""The cost of many idle workers: RabbitMQ's processor time while nothing happens, and while somebody looks at them.

    python -m benchmarks.crowd --workers 20,60

A look is what the page Workers asks for, every two seconds.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.ground import Ground, ground
from benchmarks.jobs import QUEUE
from palermo.client.client import Client
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings

#: Seconds that are measured, between two looks, and until workers that have just started are at rest.
_SECONDS, _EVERY, _REST = 20.0, 2.0, 8.0

#: Seconds that all workers may take to start.
_STARTED = 240.0


def main() -> None:
    """Print RabbitMQ's processor time for each number of workers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--workers", default="20,60", help="how many, with commas between; %(default)s unless given")
    print(f"{'workers':>8} {'idle':>10} {'looked at':>10} {'a look':>10}")
    for count in map(int, parser.parse_args().workers.split(",")):
        with ground(None) as place, Client(Settings(url=place.url, exchange=place.exchange)) as client:
            _measure(place, Inspector(client), count)


def _measure(place: Ground, inspector: Inspector, count: int) -> None:
    command = [sys.executable, "-m", "palermo", "worker", "benchmarks.jobs", "-q", QUEUE, "--log-level", "error"]
    workers = [subprocess.Popen(command, env=place.environment()) for _ in range(count)]
    try:
        deadline = time.monotonic() + _STARTED
        while len(inspector.workers.list()) < count:
            if time.monotonic() > deadline:
                raise SystemExit(f"not all of {count} workers have started within {_STARTED:g} s.")
            time.sleep(1.0)
        time.sleep(_REST)
        idle = _busy(place, lambda: None)
        began = time.monotonic()
        inspector.workers.list()
        took = time.monotonic() - began
        print(
            f"{count:>8} {idle:>9.1%} {_busy(place, inspector.workers.list):>9.1%} {1_000 * took:>7.0f} ms", flush=True
        )
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()


def _busy(place: Ground, look: Callable[[], object]) -> float:
    """The part of one core that RabbitMQ uses."""
    began, before = time.monotonic(), place.broker_seconds()
    while (left := began + _SECONDS - time.monotonic()) > 0:
        look()
        time.sleep(min(_EVERY, left))
    return (place.broker_seconds() - before) / (time.monotonic() - began)


if __name__ == "__main__":
    main()
