"""One process that enqueues, against one that publishes: what enqueue_one and enqueue_many share."""

import time
from collections.abc import Callable
from typing import Protocol

from benchmarks.contest import Sample
from benchmarks.ground import Ground, Wire


class Publisher(Protocol):
    """A bare side, connected."""

    def publish(self, jobs: int) -> float:
        """Seconds that so many take."""
        ...

    def close(self) -> None: ...


class Side:
    """What one side has done in a round so far."""

    def __init__(self, publish: Callable[[int], object]) -> None:
        self._publish = publish
        self._jobs = 0
        self._seconds = self._worked = 0.0

    def go(self, jobs: int) -> None:
        """Publish so many, and keep the time."""
        worked, began = time.process_time(), time.perf_counter()
        self._publish(jobs)
        self._seconds += time.perf_counter() - began
        self._worked += time.process_time() - worked
        self._jobs += jobs

    @property
    def sample(self) -> Sample:
        return Sample(rate=self._jobs / self._seconds, cpu=self._worked / self._jobs * 1e6)


def race(
    place: Ground,
    wire: Wire,
    enqueue: Callable[[int], object],
    make: Callable[[str, Wire], Publisher],
    *,
    jobs: int,
    block: int,
) -> tuple[Sample, Sample]:
    """One round: both sides publish so many jobs, in turns of one block each, on connections of this round's own."""
    place.connect()
    publisher = make(place.url, wire)
    try:
        # Connecting, declaring and what is made at first use are no part of it.
        enqueue(block)
        publisher.publish(block)
        place.purge()
        palermo, bare = Side(enqueue), Side(publisher.publish)
        for turn in range(jobs // block):
            for side in (palermo, bare) if turn % 2 else (bare, palermo):
                side.go(block)
    finally:
        publisher.close()
    stored, wanted = place.purge(), 2 * (jobs // block) * block
    if stored != wanted:
        raise SystemExit(f"{wanted:,} were to be stored, and {stored:,} were: this measured something else.")
    return palermo.sample, bare.sample
