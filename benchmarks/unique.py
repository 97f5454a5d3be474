"""The cost of a key: the same jobs with `unique="until_done"`, each with a key of its own, against plain ones.

    python -m benchmarks.unique enqueue    many in one call
    python -m benchmarks.unique one        one after the other
    python -m benchmarks.unique drain      a worker, of one slot unless --slots says otherwise

Both sides take turns within each round: of 0.2 s in which the other is stopped, or of a quarter of the jobs. Another
worker, on a queue of its own, is the leader, and so decides about keys.
"""

import argparse
import itertools
import subprocess
import time
from collections.abc import Callable

from benchmarks import jobs
from benchmarks.contest import Sample, contest
from benchmarks.drain import ROOT, WORKER, Side
from benchmarks.ground import Ground, ground

_KEYED = f"{jobs.QUEUE}-unique"

_numbers = itertools.count()

#: Into how many turns of each side a round of enqueuing is divided.
TURNS = 4


def fill_keyed(count: int) -> None:
    """So many jobs, each with another key."""
    key = f"{next(_numbers)}:"
    options = {"queue": _KEYED, "unique": "until_done", "unique_key": lambda order: key + str(next(_numbers))}
    jobs.noop.options(**options).enqueue_many((jobs.ORDER,) for _ in range(count))  # type: ignore[arg-type]


def fill_plain(count: int) -> None:
    """So many jobs without."""
    jobs.noop.enqueue_many((jobs.ORDER,) for _ in range(count))


def one_keyed(count: int) -> None:
    """The same, a call for each."""
    key = f"{next(_numbers)}:"
    for number in range(count):
        jobs.noop.options(queue=_KEYED, unique="until_done", unique_key=f"{key}{number}").enqueue(jobs.ORDER)


def one_plain(count: int) -> None:
    """The same, a call for each."""
    for _ in range(count):
        jobs.noop.enqueue(jobs.ORDER)


def timed(enqueue: Callable[[int], None], count: int) -> tuple[float, float]:
    """Seconds, and seconds of CPU, that this process takes to enqueue so many."""
    began, worked = time.perf_counter(), time.process_time()
    enqueue(count)
    return time.perf_counter() - began, time.process_time() - worked


def drained(place: Ground, slots: int, count: int) -> tuple[Sample, Sample]:
    """Turns of two workers, of which each has a queue, until one of these is empty."""
    sides: list[Side] = []
    try:
        for queue, fill in ((_KEYED, fill_keyed), (jobs.QUEUE, fill_plain)):
            worker = [*WORKER, "-q", queue, "--no-scheduler", "-c", str(slots)]
            sides.append(Side(place, queue, fill, [worker], count))
            sides[-1].wait_until_running()
        order = list(sides)
        while all(each.turn() for each in order):
            order.reverse()
        return sides[0].sample, sides[1].sample
    finally:
        for each in sides:
            each.close()


def enqueued(place: Ground, ways: tuple[Callable[[int], None], Callable[[int], None]], count: int) -> list[Sample]:
    """Turns of this process with a key and without."""
    took = [(0.0, 0.0), (0.0, 0.0)]
    for number in range(TURNS):
        for which in (0, 1) if number % 2 else (1, 0):
            seconds, worked = timed(ways[which], count // TURNS)
            took[which] = took[which][0] + seconds, took[which][1] + worked
    place.purge(jobs.QUEUE)
    place.purge(_KEYED)
    return [Sample(rate=count / seconds, cpu=worked / count * 1e6) for seconds, worked in took]


def play(place: Ground, what: str, slots: int, count: int) -> tuple[Sample, Sample]:
    """One round."""
    if what == "drain":
        return drained(place, slots, count)
    keyed, plain = enqueued(place, (one_keyed, one_plain) if what == "one" else (fill_keyed, fill_plain), count)
    return keyed, plain


def main() -> None:
    parser = argparse.ArgumentParser(description="The same jobs with a key each, against plain ones.")
    parser.add_argument("what", choices=("enqueue", "one", "drain"))
    parser.add_argument("--url", help="a broker to measure on; without it a private node is started")
    parser.add_argument("--rounds", type=int, default=5, help="of both sides; %(default)s unless given")
    parser.add_argument("-n", type=int, default=2_000, help="jobs per side and round; %(default)s unless given")
    parser.add_argument("--slots", type=int, default=1, help="of each worker that drains; %(default)s unless given")
    given = parser.parse_args()
    with ground(given.url) as place:
        wire = place.wire()
        place.make(_KEYED)
        keeper = subprocess.Popen([*WORKER, "-q", "keeper"], cwd=ROOT, env=place.environment())
        try:
            contest(
                f"unique: {given.what}, with a key for each job against without",
                lambda _: play(place, given.what, given.slots, given.n),
                rounds=given.rounds,
                goal=0.0,
                broker=place.version,
                load=f"{given.n:,} jobs of {len(wire.body):,} bytes",
                names=("keyed", "plain"),
            )
        finally:
            keeper.kill()
            keeper.wait()


if __name__ == "__main__":
    main()
