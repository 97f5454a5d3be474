"""Enqueueing in one process, against bare pika or against plain jobs: `python -m benchmarks.enqueue [ROW…]`.

Both sides take turns of one block each on open connections. Afterwards the queues must hold exactly what was published.
"""

import itertools
import time
from collections.abc import Callable, Sequence

from benchmarks import bare
from benchmarks.compare import Row, Sample, compare
from benchmarks.ground import Ground, leader
from benchmarks.jobs import ORDER, QUEUE, noop
from palermo.client.client import default_client
from palermo.contract.events import Subscription

#: Jobs of one turn: enqueued one by one, and in one call.
ONE, MANY = 50, 2_000

#: Publishes this number of jobs.
Publish = Callable[[int], object]

_KEYED = f"{QUEUE}-keyed"

_numbers = itertools.count()


class Side:
    """The work that one side has done in a round."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self._jobs = 0
        self._seconds = self._worked = 0.0

    def turn(self, jobs: int) -> None:
        worked, began = time.process_time(), time.perf_counter()
        self._publish(jobs)
        self._seconds += time.perf_counter() - began
        self._worked += time.process_time() - worked
        self._jobs += jobs

    @property
    def sample(self) -> Sample:
        return Sample(rate=self._jobs / self._seconds, cpu=self._worked / self._jobs * 1e6)


def race(
    place: Ground, ours: Publish, theirs: Publish, *, jobs: int, block: int, queues: Sequence[str] = (QUEUE,)
) -> tuple[Sample, Sample]:
    """One round, whose jobs all end in `queues`."""
    block = min(block, jobs)
    # Connecting, declaring and whatever is made at first use aren't measured.
    ours(block)
    theirs(block)
    for queue in queues:
        place.purge(queue)
    turns, us, them = jobs // block, Side(ours), Side(theirs)
    for turn in range(turns):
        for side in (us, them) if turn % 2 else (them, us):
            side.turn(block)
    stored, wanted = sum(map(place.purge, queues)), 2 * turns * block
    if stored != wanted:
        raise SystemExit(f"{stored:,} jobs are stored instead of {wanted:,}, so the figures mean nothing.")
    return us.sample, them.sample


def one_by_one(jobs: int) -> None:
    for _ in range(jobs):
        noop.enqueue(ORDER)


def in_one_call(jobs: int) -> None:
    noop.enqueue_many((ORDER,) for _ in range(jobs))


def keyed(jobs: int) -> None:
    """Enqueue one by one, each with a unique key."""
    for _ in range(jobs):
        noop.options(queue=_KEYED, unique="until_done", unique_key=f"{next(_numbers)}").enqueue(ORDER)


def keyed_in_one_call(jobs: int) -> None:
    """Enqueue in one call, each with a unique key."""
    options = {"queue": _KEYED, "unique": "until_done", "unique_key": lambda _: f"{next(_numbers)}"}
    noop.options(**options).enqueue_many((ORDER,) for _ in range(jobs))  # type: ignore[arg-type]


def play_one(place: Ground, jobs: int) -> tuple[Sample, Sample]:
    publisher = bare.OneByOne(place.url, place.wire())
    try:
        return race(place, one_by_one, publisher.publish, jobs=jobs, block=ONE)
    finally:
        publisher.close()


def play_many(place: Ground, jobs: int) -> tuple[Sample, Sample]:
    publisher = bare.Window(place.url, place.wire())
    try:
        return race(place, in_one_call, publisher.publish, jobs=jobs, block=MANY)
    finally:
        publisher.close()


def play_keyed(place: Ground, jobs: int) -> tuple[Sample, Sample]:
    with leader(place):
        return race(place, keyed, one_by_one, jobs=jobs, block=ONE, queues=(_KEYED, QUEUE))


def play_keyed_many(place: Ground, jobs: int) -> tuple[Sample, Sample]:
    with leader(place):
        return race(place, keyed_in_one_call, in_one_call, jobs=jobs, block=MANY, queues=(_KEYED, QUEUE))


def play_event(place: Ground, jobs: int) -> tuple[Sample, Sample]:
    client = default_client()
    queue = f"{client.settings.prefix}_subscriber"
    subscription = Subscription(group="subscriber", queue=queue, topics=("order.*",))
    client.run(lambda broker: broker.events.subscribe(subscription))

    def publish(events: int) -> None:
        for _ in range(events):
            client.publish("order.paid", ORDER)

    return race(place, publish, one_by_one, jobs=jobs, block=ONE, queues=(queue, QUEUE))


ROWS = {
    "one": Row(
        title="jobs enqueued and confirmed one by one, against pika's BlockingConnection",
        play=play_one,
        jobs=2_000,
    ),
    "many": Row(
        title=f"jobs enqueued in one call, against a pika connection with {bare.WINDOW:,} unconfirmed messages",
        play=play_many,
        jobs=20_000,
    ),
    "keyed": Row(
        title="jobs with a unique key each, one by one, against plain jobs",
        play=play_keyed,
        jobs=2_000,
        names=("keyed", "plain"),
    ),
    "keyed-many": Row(
        title="jobs with a unique key each, in one call, against plain jobs",
        play=play_keyed_many,
        jobs=8_000,
        names=("keyed", "plain"),
    ),
    "event": Row(
        title="events for one group, published one by one and kept, against plain jobs",
        play=play_event,
        jobs=2_000,
        names=("events", "jobs"),
    ),
}


if __name__ == "__main__":
    compare("How fast one process enqueues.", ROWS, usual=("one", "many"))
