"""Draining many queues with one worker: `python -m benchmarks.queues [--queues 50] [--busy] [--slots 1]`.

All of them hold jobs, or with `--busy` only the last in the order: whatever is asked of the others is for nothing.
Beside it for each slot a bare SelectConnection that drains one queue, and turns as in benchmarks/drain.py.
"""

import sys

from benchmarks import bare, jobs
from benchmarks.contest import Sample, contest
from benchmarks.drain import BARE_QUEUE, side
from benchmarks.ground import Ground, Wire, ground, parser_of

#: Of the bare loop's rate, with one slot.
GOAL = 0.75


def names(count: int) -> list[str]:
    """The queues, in the order in which the worker serves them."""
    return [f"{jobs.QUEUE}-{number:03}" for number in range(1, count + 1)]


def play(
    place: Ground, wire: Wire, count: int, *, queues: list[str], busy: list[str], slots: int
) -> tuple[Sample, Sample]:
    """One round: turns of both, until one of them runs out of jobs."""
    worker = [sys.executable, "-m", "palermo", "worker", jobs.__name__, "-q", ",".join(queues)]
    options = ["--concurrency", str(slots), "--log-level", "warning"]
    loops = [[sys.executable, "-m", bare.__name__, place.url, place.amqp_name(BARE_QUEUE)]] * slots
    count -= count % len(busy)
    with (
        side(place, wire, busy[0], [[*worker, *options]], count, others=busy[1:]) as palermo,
        side(place, wire, BARE_QUEUE, loops, count) as other,
    ):
        order = [palermo, other]
        while all(each.turn() for each in order):
            order.reverse()
        if failed := place.failed():
            raise SystemExit(f"{failed} jobs have failed: this measured something else.")
        return palermo.sample, other.sample


def main() -> None:
    parser = parser_of("Drain many queues with a worker, against bare pika callback loops on one queue.", jobs=10_000)
    parser.add_argument("--queues", type=int, default=50, help="that the worker serves; %(default)s unless given")
    parser.add_argument("--busy", action="store_true", help="only the last one has jobs")
    parser.add_argument("--slots", type=int, default=1, help="of the worker, and bare loops; %(default)s unless given")
    given = parser.parse_args()
    queues = names(given.queues)
    busy = queues[-1:] if given.busy else queues
    with ground(given.url) as place:
        wire = place.wire()
        for queue in (*queues, BARE_QUEUE):
            place.make(queue)
        contest(
            f"queues: {given.slots} of a worker's slots, no-op jobs from {len(busy)} of {len(queues)} queues, against"
            " as many of pika's SelectConnections on one",
            lambda _: play(place, wire, given.n, queues=queues, busy=busy, slots=given.slots),
            rounds=given.rounds,
            goal=GOAL,
            broker=place.version,
            load=f"{given.n:,} jobs of {len(wire.body):,} bytes",
        )


if __name__ == "__main__":
    main()
