"""A job queue's own page read again and again beside busy workers: how late a job starts by it, and in which order.

    python -m benchmarks.looked_at [--url amqp://…] [--seconds 60]

Jobs say when they start. Turns with the reader and without are interleaved. Of each are printed the
longest time in which no job started; by how much the latest began after the instant at which it would have, had
all begun in the order in which they were enqueued; and the jobs that others overtook, in a row at most the page.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import palermo
from benchmarks.contest import machine, versions
from benchmarks.ground import Ground, ground
from benchmarks.watched import Reader, served

QUEUE = "looked-at"

#: Milliseconds that a look may keep any job, and the jobs on the page.
GOAL, PAGE = 50.0, 25

#: Seconds of one turn; jobs that wait at least when it begins; seconds between two looks.
_TURN, _WAITING, _EVERY = 5.0, 4_000, 0.1

#: Numbers by which jobs of two workers may cross by themselves.
_CROSSING = 2


@palermo.job(queue=QUEUE)
def stamp(number: int, file: str) -> None:
    """Say when it started, and work a millisecond."""
    started = time.time()
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, f"{os.getpid()} {number} {started!r}\n".encode())
    os.close(descriptor)
    while time.time() < started + 0.001:
        pass


@dataclass(frozen=True, slots=True)
class Start:
    """One job that began."""

    worker: str
    number: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one turn came to; times in milliseconds."""

    jobs: int
    gap: float
    late: float
    #: Jobs that others overtook, and how many of them in a row.
    moved: int
    run: int


def judged(starts: Iterable[Start]) -> Seen:
    """Of starts in one turn."""
    ordered = sorted(starts, key=lambda start: start.at)
    gaps = [after.at - before.at for before, after in pairwise(ordered)]
    # Where each would have begun, had all these begun in the order of their numbers at the same instants.
    due = {number: start.at for number, start in zip(sorted(each.number for each in ordered), ordered, strict=True)}
    late = max((start.at - due[start.number] for start in ordered), default=0.0)
    overtaken = run = longest = highest = 0
    for start in ordered:
        # Two workers that take one job each may begin them the other way round.
        run = run + 1 if highest - start.number > _CROSSING else 0
        longest, highest = max(longest, run), max(highest, start.number)
        overtaken += run > 0
    return Seen(jobs=len(ordered), gap=1e3 * max(gaps, default=0.0), late=1e3 * late, moved=overtaken, run=longest)


class Supply:
    """Numbered jobs, always enough of them."""

    def __init__(self, place: Ground, file: Path) -> None:
        self._place = place
        self._file = file
        self._number = 0

    def fill(self) -> None:
        while self._place.waiting(QUEUE) < _WAITING:
            numbers = range(self._number, self._number + 2_000)
            stamp.enqueue_many([(number, str(self._file)) for number in numbers])
            self._number = numbers.stop

    def starts(self, begin: float, end: float) -> list[Start]:
        found = []
        for line in self._file.read_text().splitlines():
            worker, number, at = line.split()
            if begin <= float(at) <= end:
                found.append(Start(worker, int(number), float(at)))
        return found


def measure(supply: Supply, reader: Reader, seconds: float) -> dict[bool, list[Seen]]:
    print(f"{'turn':>12} {'jobs/s':>8} {'longest gap ms':>15} {'latest ms':>10} {'overtaken':>10} {'in a row':>9}")
    turns: dict[bool, list[Seen]] = {True: [], False: []}
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline or not turns[True]:
        for looked in (True, False) if len(turns[True]) % 2 else (False, True):
            supply.fill()
            (reader.on if looked else reader.off)()
            time.sleep(0.3)
            begin = time.time()
            time.sleep(_TURN)
            end = time.time()
            reader.off()
            seen = judged(supply.starts(begin, end))
            turns[looked].append(seen)
            print(
                f"{'looked at' if looked else 'alone':>12} {seen.jobs / (end - begin):>8,.0f} {seen.gap:>15.1f}"
                f" {seen.late:>10.1f} {seen.moved:>10} {seen.run:>9}",
                flush=True,
            )
    return turns


def report(turns: dict[bool, list[Seen]], pages: int) -> None:
    alone, looked = (max(seen.gap for seen in turns[each]) for each in (False, True))
    usual, late = (max(seen.late for seen in turns[each]) for each in (False, True))
    caused = max(0.0, looked - alone, late - usual)
    run = max(seen.run for seen in turns[True])
    print(
        f"\n{pages} looks: longest gap {looked:.1f} ms against {alone:.1f} ms alone; latest start {late:.1f} ms after"
        f" its turn, against {usual:.1f} ms alone; caused {caused:.1f} ms, goal {GOAL:g}: "
        + ("reached" if caused <= GOAL else "not reached")
        + f"; {sum(seen.moved for seen in turns[True])} jobs overtaken, {run} in a row at most, the page has {PAGE}: "
        + ("reached" if run <= PAGE else "not reached")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", help="a broker to measure on; without it a private node is started")
    parser.add_argument("--seconds", type=float, default=60, help="in all; %(default)s unless given")
    parser.add_argument("--workers", type=int, default=2, help="%(default)s unless given")
    given = parser.parse_args()
    # The job's module under its own name, also where it is run as a program.
    from benchmarks import looked_at

    with ground(given.url) as place, tempfile.TemporaryDirectory() as folder:
        looked_at.run(place, Path(folder), workers=given.workers, seconds=given.seconds)


def run(place: Ground, folder: Path, *, workers: int, seconds: float) -> None:
    """Measure and print."""
    place.connect()
    supply = Supply(place, folder / "starts")
    stamp.enqueue(-1, str(folder / "starts"))
    supply.fill()
    command = [sys.executable, "-m", "palermo", "worker", __name__, "-q", QUEUE, "--log-level", "warning"]
    processes = [subprocess.Popen(command, env=place.environment()) for _ in range(workers)]
    try:
        print(f"looked at: {workers} workers on one classic queue, with and without a reader of its page")
        print(f"{versions(place.version)}; {machine()}; turns of {_TURN:g} s for {seconds:g} s\n", flush=True)
        with served(place) as (url, _):
            while not (folder / "starts").exists():
                time.sleep(0.1)
            reader = Reader(url, [f"/queues/{QUEUE}"], _EVERY)
            try:
                turns = measure(supply, reader, seconds)
            finally:
                reader.close()
        report(turns, reader.pages)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
        place.purge(QUEUE)


if __name__ == "__main__":
    main()
