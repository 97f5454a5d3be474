"""What a key costs: the same jobs with `unique="until_done"`, each with a key of its own, against plain ones.

    python -m benchmarks.unique enqueue    many in one call
    python -m benchmarks.unique one        one after the other
    python -m benchmarks.unique drain      one slot of a worker

Both sides take turns, round by round. Another worker, on a queue of its own, keeps the time, and so decides about keys.
"""

import argparse
import itertools
import subprocess
import time
from collections.abc import Callable

from benchmarks import jobs
from benchmarks.contest import Sample, contest
from benchmarks.drain import ROOT, WORKER
from benchmarks.ground import Ground, ground
from benchmarks.processes import cpu_seconds, family

_KEYED = f"{jobs.QUEUE}-unique"

_numbers = itertools.count()

#: Seconds after which a round counts as stuck.
_WITHIN = 300.0


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


def timed(enqueue: Callable[[int], None], count: int) -> Sample:
    """How fast this process enqueues."""
    began, worked = time.perf_counter(), time.process_time()
    enqueue(count)
    return Sample(rate=count / (time.perf_counter() - began), cpu=(time.process_time() - worked) / count * 1e6)


def drained(place: Ground, queue: str, count: int) -> Sample:
    """How fast one worker empties a queue, from when a tenth is gone."""
    process = subprocess.Popen([*WORKER, "-q", queue, "--no-scheduler"], cwd=ROOT, env=place.environment())
    try:
        reach(place, queue, count * 9 // 10)
        members, left = family(process.pid), place.waiting(queue)
        began, worked = time.perf_counter(), cpu_seconds(members)
        reach(place, queue, 0)
        seconds = time.perf_counter() - began
        return Sample(rate=left / seconds, cpu=(cpu_seconds(members) - worked) / left * 1e6)
    finally:
        process.kill()
        process.wait()


def reach(place: Ground, queue: str, most: int) -> None:
    """Wait until no more than so many wait in a queue."""
    deadline = time.perf_counter() + _WITHIN
    while place.waiting(queue) > most:
        if time.perf_counter() > deadline:
            raise SystemExit(f"nobody takes the jobs of queue {queue!r}.")
        time.sleep(0.005)


def play(place: Ground, what: str, count: int) -> tuple[Sample, Sample]:
    """One round."""
    if what == "drain":
        fill_plain(count)
        fill_keyed(count)
        return drained(place, _KEYED, count), drained(place, jobs.QUEUE, count)
    keyed, plain = (one_keyed, one_plain) if what == "one" else (fill_keyed, fill_plain)
    samples = timed(keyed, count), timed(plain, count)
    place.purge(jobs.QUEUE)
    place.purge(_KEYED)
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description="The same jobs with a key each, against plain ones.")
    parser.add_argument("what", choices=("enqueue", "one", "drain"))
    parser.add_argument("--url", help="a broker to measure on; without it a private node is started")
    parser.add_argument("--rounds", type=int, default=5, help="of both sides; %(default)s unless given")
    parser.add_argument("-n", type=int, default=2_000, help="jobs per side and round; %(default)s unless given")
    given = parser.parse_args()
    with ground(given.url) as place:
        wire = place.wire()
        place.make(_KEYED)
        keeper = subprocess.Popen([*WORKER, "-q", "keeper"], cwd=ROOT, env=place.environment())
        try:
            contest(
                f"unique: {given.what}, with a key for each job against without",
                lambda _: play(place, given.what, given.n),
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
