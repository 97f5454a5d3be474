"""Enqueuing one job at a time, each confirmed before the next: `python -m benchmarks.enqueue_one`.

Beside it a bare BlockingConnection that publishes the same bytes, mandatory and confirmed.
"""

from benchmarks import bare
from benchmarks.contest import contest
from benchmarks.enqueuing import race
from benchmarks.ground import arguments, ground
from benchmarks.jobs import ORDER, noop

GOAL = 0.95

#: Jobs that a side enqueues at a time, before it is the other's turn.
BLOCK = 50


def enqueue(jobs: int) -> None:
    """What a program does that enqueues as things happen."""
    for _ in range(jobs):
        noop.enqueue(ORDER)


def main() -> None:
    given = arguments("Enqueue one by one, against a bare pika BlockingConnection.", jobs=2_000)
    with ground(given.url) as place:
        wire = place.wire()
        contest(
            "enqueue_one: one process, one job at a time, each confirmed, against pika's BlockingConnection",
            lambda _: race(place, wire, enqueue, bare.OneByOne, jobs=given.n, block=min(BLOCK, given.n)),
            rounds=given.rounds,
            goal=GOAL,
            broker=place.version,
            load=f"{given.n:,} jobs of {len(wire.body):,} bytes",
        )


if __name__ == "__main__":
    main()
