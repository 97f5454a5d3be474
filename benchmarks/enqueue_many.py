"""Enqueuing many jobs, all confirmed at the end: `python -m benchmarks.enqueue_many`.

Beside it a bare SelectConnection that keeps 1,000 of the same messages unconfirmed.
"""

from benchmarks import bare
from benchmarks.contest import contest
from benchmarks.enqueuing import race
from benchmarks.ground import arguments, ground
from benchmarks.jobs import ORDER, noop

GOAL = 0.9

#: Jobs that a side enqueues at a time, before it is the other's turn.
BLOCK = 2_000


def enqueue(jobs: int) -> None:
    """What a program does that has all its jobs at hand."""
    noop.enqueue_many((ORDER,) for _ in range(jobs))


def main() -> None:
    given = arguments("Enqueue many, against a bare pika SelectConnection with a window of 1,000.", jobs=20_000)
    with ground(given.url) as place:
        wire = place.wire()
        contest(
            f"enqueue_many: one process, all confirmed at the end, against a pika window of {bare.WINDOW:,}",
            lambda _: race(place, wire, enqueue, bare.Window, jobs=given.n, block=min(BLOCK, given.n)),
            rounds=given.rounds,
            goal=GOAL,
            broker=place.version,
            load=f"{given.n:,} jobs of {len(wire.body):,} bytes",
        )


if __name__ == "__main__":
    main()
