"""A real worker whose slots share one child, draining a queue: `python -m benchmarks.pools --pool thread|async`.

Beside it one bare SelectConnection, which acknowledges each message as it comes, at a prefetch of one. How they take
turns is told in drain.py. The jobs of an async pool are coroutines.
"""

from typing import Any

from benchmarks import jobs
from benchmarks.contest import contest
from benchmarks.drain import BARE_QUEUE, play
from benchmarks.ground import ground, parser_of
from palermo.client.decorator import FunctionJob

#: By pool: its slots unless given, its job, and the goal.
POOLS: dict[str, tuple[int, FunctionJob[..., Any, Any], float]] = {
    "thread": (8, jobs.noop, 1.1),
    "async": (100, jobs.awaited, 1.5),
}


def main() -> None:
    parser = parser_of("Drain a queue with a shared child, against one bare pika loop at prefetch 1.", jobs=20_000)
    parser.add_argument("--pool", choices=POOLS, default="thread", help="%(default)s unless given")
    parser.add_argument("--slots", type=int, help="of the worker; 8 threads or 100 coroutines unless given")
    given = parser.parse_args()
    usual, job, goal = POOLS[given.pool]
    slots = given.slots or usual
    with ground(given.url) as place:
        wire = place.wire(job)
        place.make(BARE_QUEUE)
        contest(
            f"drain: {given.pool} pool of {slots} slots in one child, no-op jobs from one queue, against one of pika's"
            " SelectConnections at prefetch 1",
            lambda _: play(place, wire, given.n, slots=slots, loops=1, pool=given.pool),
            rounds=given.rounds,
            goal=goal,
            broker=place.version,
            load=f"{given.n:,} jobs of {len(wire.body):,} bytes",
        )


if __name__ == "__main__":
    main()
