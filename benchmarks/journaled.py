"""The cost of the journal for a worker: one slot drains a queue of jobs that do nothing, with the journal on and off.

    python -m benchmarks.journaled all        every job written down
    python -m benchmarks.journaled failures   the default: counts, and what goes wrong

Two workers on two queues take turns as in benchmarks.drain.
"""

import argparse

from benchmarks import jobs
from benchmarks.contest import Sample, contest
from benchmarks.drain import WORKER, side
from benchmarks.ground import Ground, Wire, ground

#: The least that a worker is to reach of what it does with the journal off.
GOALS = {"all": 0.85, "failures": 0.97}

_OFF_QUEUE = f"{jobs.QUEUE}-off"


def worker(level: str, queue: str) -> list[str]:
    """The command for a worker that writes so much down."""
    return ["env", f"PALERMO_JOURNAL={level}", *WORKER, "-q", queue, "--no-scheduler"]


def play(place: Ground, wire: Wire, level: str, count: int) -> tuple[Sample, Sample]:
    """One round: turns of both, until one of them runs out of jobs."""
    on = side(place, wire, jobs.QUEUE, [worker(level, jobs.QUEUE)], count)
    off = side(place, wire, _OFF_QUEUE, [worker("off", _OFF_QUEUE)], count)
    with on as written, off as silent:
        order = [written, silent]
        while all(each.turn() for each in order):
            order.reverse()
        if failed := place.failed():
            raise SystemExit(f"{failed} jobs have failed: this measured something else.")
        return written.sample, silent.sample


def main() -> None:
    parser = argparse.ArgumentParser(description="Drain a queue with the journal on, against the journal off.")
    parser.add_argument("level", choices=sorted(GOALS), help="how much is written down")
    parser.add_argument("--url", help="a broker to measure on; without it a private node is started")
    parser.add_argument("--rounds", type=int, default=5, help="of both sides; %(default)s unless given")
    parser.add_argument("-n", type=int, default=20_000, help="jobs per side and round; %(default)s unless given")
    given = parser.parse_args()
    with ground(given.url) as place:
        wire = place.wire()
        place.make(_OFF_QUEUE)
        contest(
            f"journal: one slot of a worker, no-op jobs from one queue, journal = {given.level!r} against 'off'",
            lambda _: play(place, wire, given.level, given.n),
            rounds=given.rounds,
            goal=GOALS[given.level],
            broker=place.version,
            load=f"{given.n:,} jobs of {len(wire.body):,} bytes",
            names=(given.level, "off"),
        )


if __name__ == "__main__":
    main()
