"""The cost of the pages for workers: throughput while a reader loads them in a loop, against nobody looking.

    python -m benchmarks.watched [--url amqp://…] [--seconds 300]

Two workers drain one queue, and the pages are served by a process of their own. Rounds are interleaved: one with the
reader, one without, in turns of a few seconds, so that other work of the machine hits both. The reader asks for the
overview, the workers and the failures, one after the other, five times a second.
"""

import argparse
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import httpx

from benchmarks import jobs
from benchmarks.contest import machine, versions
from benchmarks.drain import ROOT, WORKER
from benchmarks.failed_jobs import fill
from benchmarks.ground import Ground, ground
from benchmarks.processes import cpu_seconds

GOAL = 0.95

#: What is read.
PAGES = ("/", "/workers", "/failures")

#: Seconds of one turn; jobs that are put there at a time; failed jobs that the page has to show.
_TURN, _BATCH, _FAILED = 2.0, 3_000, 2_000

#: Seconds between two pages: a person who reloads as fast as possible, or five with live updates.
_EVERY = 0.2


class Reader:
    """Asks for pages in a loop while it is let."""

    def __init__(self, url: str, paths: Sequence[str], every: float = _EVERY) -> None:
        self._paths = paths
        self._every = every
        self._http = httpx.Client(base_url=url, timeout=30)
        self._let = threading.Event()
        self._over = False
        self.pages = 0
        self._thread = threading.Thread(target=self._read, name="reader")
        self._thread.start()

    def on(self) -> None:
        self._let.set()

    def off(self) -> None:
        self._let.clear()

    def close(self) -> None:
        self._over = True
        self._let.set()
        self._thread.join()
        self._http.close()

    def _read(self) -> None:
        while True:
            for path in self._paths:
                self._let.wait()
                if self._over:
                    return
                self._http.get(path).raise_for_status()
                self.pages += 1
                time.sleep(self._every)


class Place(Protocol):
    """A broker that a process can use."""

    def environment(self) -> dict[str, str]: ...


@contextmanager
def served(place: Place) -> Iterator[tuple[str, int]]:
    """`palermo web` as a process of its own; its address and its pid."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "palermo", "web", "--no-token", "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, env=place.environment(), stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("palermo web does not answer.")
            time.sleep(0.1)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    try:
        return all(httpx.get(url + path, timeout=30).status_code == 200 for path in PAGES)
    except httpx.TransportError:
        return False


class Supply:
    """Keeps the queue from running dry, outside of what is counted."""

    def __init__(self, place: Ground) -> None:
        self._place = place
        self._given = 0

    def done(self) -> int:
        """How many jobs have gone."""
        waiting = self._place.waiting()
        if self._given and not waiting:
            raise SystemExit("the workers ran out of jobs: this measured something else.")
        return self._given - waiting

    def fill(self) -> None:
        while self._place.waiting() < 2 * _BATCH:
            # Each with an id of its own: workers would take two of one id for one job that was taken back.
            jobs.noop.enqueue_many([(jobs.ORDER,)] * _BATCH)
            self._given += _BATCH


def turn(supply: Supply) -> float:
    """Jobs a second over one turn."""
    supply.fill()
    time.sleep(0.3)
    before, began = supply.done(), time.perf_counter()
    time.sleep(_TURN)
    return (supply.done() - before) / (time.perf_counter() - began)


def measure(reader: Reader, supply: Supply, seconds: float) -> None:
    print(f"{'round':>6} {'watched/s':>10} {'alone/s':>10} {'ratio':>6}")
    ratios: list[float] = []
    watched_sum = alone_sum = 0.0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline or len(ratios) < 2:
        rates = {}
        for watched in (True, False) if len(ratios) % 2 else (False, True):
            (reader.on if watched else reader.off)()
            rates[watched] = turn(supply)
        reader.off()
        ratios.append(rates[True] / rates[False])
        watched_sum, alone_sum = watched_sum + rates[True], alone_sum + rates[False]
        print(f"{len(ratios):>6} {rates[True]:>10,.0f} {rates[False]:>10,.0f} {ratios[-1]:>6.3f}", flush=True)
    median = statistics.median(ratios)
    verdict = "reached" if median >= GOAL else "not reached"
    print(
        f"\nratio {median:.3f} (median of {len(ratios)}; {min(ratios):.3f} to {max(ratios):.3f};"
        f" over all {watched_sum / alone_sum:.3f}), goal {GOAL:.2f}: {verdict}; {reader.pages} pages read"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", help="a broker to measure on; without it a private node is started")
    parser.add_argument("--seconds", type=float, default=300, help="in all; %(default)s unless given")
    parser.add_argument("--workers", type=int, default=2, help="%(default)s unless given")
    given = parser.parse_args()
    with ground(given.url) as place:
        fill(place, _FAILED)
        place.make(jobs.QUEUE)
        supply = Supply(place)
        supply.fill()
        workers = [
            subprocess.Popen([*WORKER, "-q", jobs.QUEUE], cwd=ROOT, env=place.environment())
            for _ in range(given.workers)
        ]
        try:
            print(f"watched: {given.workers} workers drain one queue, with and without a reader of the pages")
            print(f"{versions(place.version)}; {machine()}; turns of {_TURN:g} s for {given.seconds:g} s\n")
            with served(place) as (url, pid):
                while supply.done() < 500:
                    time.sleep(0.1)
                reader = Reader(url, PAGES)
                try:
                    spent = cpu_seconds([pid])
                    measure(reader, supply, given.seconds)
                    spent = cpu_seconds([pid]) - spent
                    print(f"CPU of the pages' process: {1e3 * spent / max(1, reader.pages):.0f} ms a page")
                finally:
                    reader.close()
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.wait()
            place.purge()


if __name__ == "__main__":
    main()
