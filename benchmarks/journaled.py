"""The cost of the journal for a worker: one slot drains a queue of jobs that do nothing, at two levels.

    python -m benchmarks.journaled all        the default: every job written down
    python -m benchmarks.journaled failures   counts, and what goes wrong
    python -m benchmarks.journaled all --against failures

Two workers on two queues take turns as in benchmarks.drain.
"""

import argparse
from collections.abc import Callable
from functools import partial

from benchmarks import jobs
from benchmarks.contest import Sample, contest
from benchmarks.drain import WORKER, side
from benchmarks.ground import Ground, Wire, ground

#: The least that a worker is to reach of what it does at the other level.
GOALS = {"all": 0.85, "failures": 0.97}

OTHER_QUEUE = f"{jobs.QUEUE}-other"


#: The command for a worker of this queue.
Worker = Callable[[str], list[str]]


def worker(level: str, queue: str) -> list[str]:
    """The command for a worker that writes so much down."""
    return ["env", f"PALERMO_JOURNAL={level}", *WORKER, "-q", queue, "--no-scheduler"]


def play(place: Ground, wire: Wire, one: Worker, other: Worker, count: int) -> tuple[Sample, Sample]:
    """One round: turns of both, until one of them runs out of jobs."""
    on = side(place, wire, jobs.QUEUE, [one(jobs.QUEUE)], count)
    off = side(place, wire, OTHER_QUEUE, [other(OTHER_QUEUE)], count)
    with on as written, off as compared:
        order = [written, compared]
        while all(each.turn() for each in order):
            order.reverse()
        if failed := place.failed():
            raise SystemExit(f"{failed} jobs have failed: this measured something else.")
        return written.sample, compared.sample


def main() -> None:
    parser = argparse.ArgumentParser(description="Drain a queue at one level of the journal, against another.")
    parser.add_argument("level", choices=sorted(GOALS), help="how much is written down")
    parser.add_argument("--against", choices=("off", "failures"), default="off", help="%(default)s unless given")
    parser.add_argument("--url", help="a broker to measure on; without it a private node is started")
    parser.add_argument("--rounds", type=int, default=5, help="of both sides; %(default)s unless given")
    parser.add_argument("-n", type=int, default=20_000, help="jobs per side and round; %(default)s unless given")
    given = parser.parse_args()
    with ground(given.url) as place:
        wire = place.wire()
        place.make(OTHER_QUEUE)
        contest(
            f"journal: one slot of a worker, no-op jobs from one queue, {given.level!r} against {given.against!r}",
            lambda _: play(place, wire, partial(worker, given.level), partial(worker, given.against), given.n),
            rounds=given.rounds,
            goal=GOALS[given.level],
            broker=place.version,
            load=f"{given.n:,} jobs of {len(wire.body):,} bytes",
            names=(given.level, given.against),
        )


if __name__ == "__main__":
    main()
