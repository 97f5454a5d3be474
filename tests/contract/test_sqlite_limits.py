"""The embedded broker hands a free permit to the job that waits for it, however the permit was freed.

Nobody keeps the time in these tests, so a job that was put aside comes back only with a permit.
"""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from palermo.brokers.sqlite import SqliteBroker
from palermo.brokers.sqlite.workers import OverdueClaims
from palermo.contract.broker import Broker
from palermo.contract.sweep import Remove
from palermo.core.lifecycle import Ack, Release
from tests.contract.files import opened
from tests.contract.limiting import limited, nothing_permitted, permitted, worker
from tests.contract.tools import ids, message
from tests.contract.workers import consume, take


async def overdue(broker: SqliteBroker) -> None:
    """Have the `rerun_after` of the jobs that run be over."""
    await broker._store.write(lambda db: db.execute("update job set held_until = 1 where holder is not null"))


async def test_a_clock_that_jumps_ahead_ends_no_claim_of_a_worker_that_goes_on(broker: SqliteBroker) -> None:
    await broker.publish(message("7c9e", rerun_after=600.0))
    await take(await consume(broker))
    (consumer,) = broker._consumers
    consumer._beating.cancel()
    await overdue(broker)
    claims = OverdueClaims(broker._store, broker._directory, 0)

    for second in range(50):
        os.utime(os.path.join(broker._directory, consumer._lock.name), (second, second))
        assert await claims.release() == 0
    while not await claims.release():
        pass

    assert await ids(broker) == ["7c9e"]


@pytest.mark.parametrize("way", ["given back", "its worker is gone", "held too long"])
async def test_a_job_that_is_not_run_to_its_end_hands_its_permit_on(broker: SqliteBroker, path: Path, way: str) -> None:
    session = await opened(path)
    await broker.publish_many([limited("1"), limited("2")])
    first = await worker(session, 1)
    held = await permitted(first)
    other = await worker(broker, 2)
    await nothing_permitted(other)

    match way:
        case "given back":
            await first.settle(held, Release())
        case "its worker is gone":
            await session.close()
        case _:
            await overdue(session)
            session._consumers[0]._beating.cancel()

    assert (await permitted(other)).message.id == "2"
    await session.close()


@pytest.mark.parametrize(
    "remove",
    [
        lambda broker: broker.purge("other"),
        lambda broker: broker.delete("other"),
        lambda broker: broker.sweep("other", lambda message: Remove()),
    ],
    ids=["purge", "delete", "sweep"],
)
async def test_a_removal_frees_a_permit(broker: SqliteBroker, remove: Callable[[Broker], Awaitable[object]]) -> None:
    await broker.publish_many([limited("1"), limited("2", queue="other"), limited("3", queue="third")])
    consumer = await consume(broker, "jobs,other,third", slots=2)
    first = await permitted(consumer, 1)
    await nothing_permitted(consumer, 2)
    await consumer.settle(first, Ack())

    await remove(broker)

    assert (await permitted(consumer, 1)).message.id == "3"
