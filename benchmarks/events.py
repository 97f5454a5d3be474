"""The cost of publishing an event, against enqueuing a job: `python -m benchmarks.events`.

One process, one at a time, each confirmed before the next. The event goes to one group unless `--groups` says more. It
is kept besides, unless events that no group wants are refused (`--refuse`).
"""

import argparse

from msgspec.structs import replace

from benchmarks.contest import Sample, contest
from benchmarks.enqueuing import Side
from benchmarks.ground import Ground, ground
from benchmarks.jobs import ORDER, QUEUE, noop
from palermo.client.client import Client, default_client
from palermo.contract.events import Subscription

#: The least that publishing is to reach of what enqueuing does, to one group.
GOAL = 0.5

#: Events, or jobs, before it is the other's turn.
BLOCK = 50


def play(place: Ground, *, groups: int, refuse: bool, count: int) -> tuple[Sample, Sample]:
    """One round, on connections of its own."""
    place.connect()
    settings = replace(default_client().settings, events_unsubscribed="refuse" if refuse else "keep")
    queues = [f"{settings.prefix}_g{number}" for number in range(groups)]
    with Client(settings) as client:
        for number, queue in enumerate(queues):
            one = Subscription(group=f"g{number}", queue=queue, topics=("order.*",))
            client.run(lambda broker, one=one: broker.events.subscribe(one))  # type: ignore[misc]

        def publish(events: int) -> None:
            for _ in range(events):
                client.publish("order.paid", ORDER)

        def enqueue(jobs: int) -> None:
            for _ in range(jobs):
                noop.enqueue(ORDER)

        # Connecting and declaring are no part of it.
        publish(BLOCK)
        enqueue(BLOCK)
        events, jobs = Side(publish), Side(enqueue)
        for turn in range(count // BLOCK):
            for side in (events, jobs) if turn % 2 else (jobs, events):
                side.go(BLOCK)
        for queue in (*queues, QUEUE):
            place.purge(queue)
        return events.sample, jobs.sample


def main() -> None:
    parser = argparse.ArgumentParser(description="Publish events one by one, against enqueuing jobs one by one.")
    parser.add_argument("--url", help="a broker to measure on; without it a private node is started")
    parser.add_argument("--rounds", type=int, default=5, help="of both sides; %(default)s unless given")
    parser.add_argument("-n", type=int, default=2_000, help="events per round; %(default)s unless given")
    parser.add_argument("--groups", type=int, default=1, help="that subscribe; %(default)s unless given")
    parser.add_argument("--refuse", action="store_true", help="keep no events")
    given = parser.parse_args()
    with ground(given.url) as place:
        kept = "refused where nobody wants them" if given.refuse else "kept"
        contest(
            f"events: one process, one event at a time to {given.groups} group(s), {kept}, against enqueuing",
            lambda _: play(place, groups=given.groups, refuse=given.refuse, count=given.n),
            rounds=given.rounds,
            goal=GOAL,
            broker=place.version,
            load=f"{given.n:,} events",
            names=("events", "jobs"),
        )


if __name__ == "__main__":
    main()
