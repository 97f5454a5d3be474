"""The embedded broker hands a free permit to the job that waits for it, however the permit was freed.

Nobody keeps the time in these tests, so a job that was put aside comes back only with a permit.
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from palermo.brokers.sqlite import SqliteBroker
from palermo.brokers.sqlite.workers import OverdueClaims
from palermo.contract.broker import Broker, SessionParameters, open_broker
from palermo.contract.sweep import Remove
from palermo.core.address import parse_url
from palermo.core.lifecycle import Ack, Release
from palermo.errors import DeliveryLost
from tests.contract.limiting import forget_what_is_over, limited, nothing_permitted, permitted, worker
from tests.contract.tools import consume, ids, message, take


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def broker(runner: asyncio.Runner, path: Path) -> Iterator[Broker]:
    broker = runner.run(opened(path))
    yield broker
    runner.run(broker.close())


async def opened(path: Path) -> Broker:
    return await open_broker(SessionParameters(address=parse_url(f"sqlite:///{path}")))


async def stand_still(broker: Broker) -> None:
    """Stop the heartbeat of the session's worker. The `lock_for` of its jobs is over."""
    assert isinstance(broker, SqliteBroker)
    await overdue(broker)
    broker._consumers[0]._beating.cancel()


async def overdue(broker: SqliteBroker) -> None:
    await broker._store.write(lambda db: db.execute("update job set held_until = 1 where holder is not null"))


async def test_a_clock_that_jumps_ahead_ends_no_claim_of_a_worker_that_goes_on(broker: Broker) -> None:
    assert isinstance(broker, SqliteBroker)
    await broker.publish(message("7c9e", lock_for=600.0))
    await take(await consume(broker))
    (consumer,) = broker._consumers
    consumer._beating.cancel()
    await overdue(broker)
    claims = OverdueClaims(broker._store, broker._directory, 0)

    for second in range(50):
        os.utime(os.path.join(broker._directory, consumer._lock.name), (second, second))
        assert await claims.give_back() == 0
    while not await claims.give_back():
        pass

    assert await ids(broker) == ["7c9e"]


async def test_a_job_that_is_given_back_hands_its_permit_on(broker: Broker) -> None:
    await broker.publish_many([limited("1"), limited("2")])
    consumer = await consume(broker, slots=2)
    first = await permitted(consumer, 1)
    await nothing_permitted(consumer, 2)

    await consumer.settle(first, Release())

    assert (await permitted(consumer, 1)).message.id == "2"
    await nothing_permitted(consumer, 2)


async def test_a_worker_that_is_gone_hands_its_permits_on(broker: Broker, path: Path) -> None:
    leaving = await opened(path)
    await broker.publish_many([limited("1"), limited("2")])
    await permitted(await worker(leaving, 1))
    staying = await worker(broker, 2)
    await nothing_permitted(staying)

    await leaving.close()

    assert (await permitted(staying)).message.id == "2"


async def test_a_job_that_is_held_too_long_hands_its_permit_on(broker: Broker, path: Path) -> None:
    standing_still = await opened(path)
    await broker.publish_many([limited("1"), limited("2")])
    await permitted(await worker(standing_still, 1))
    other = await worker(broker, 2)
    await nothing_permitted(other)

    await stand_still(standing_still)

    assert (await permitted(other)).message.id == "2"
    await standing_still.close()


async def test_a_job_returned_before_its_permit_does_not_run(broker: Broker, path: Path) -> None:
    standing_still = await opened(path)
    await broker.publish(limited("1"))
    late = await worker(standing_still, 1)
    held = await take(late)
    await stand_still(standing_still)
    other = await worker(broker, 2)
    first = await permitted(other)
    assert first.message.id == "1"
    await broker.publish(limited("2"))

    with pytest.raises(DeliveryLost):
        await late.permit(held)

    await other.settle(first, Ack())
    assert (await permitted(late)).message.id == "2"
    await standing_still.close()


@pytest.mark.parametrize("how", ["purge", "delete", "sweep"])
async def test_a_job_that_is_removed_hands_its_permit_on(broker: Broker, how: str) -> None:
    await broker.publish_many([limited("1"), limited("2", queue="other"), limited("3", queue="third")])
    consumer = await consume(broker, "jobs,other,third", slots=2)
    first = await permitted(consumer, 1)
    await nothing_permitted(consumer, 2)
    await consumer.settle(first, Ack())

    match how:
        case "purge":
            assert await broker.purge("other") == 1
        case "delete":
            assert await broker.delete("other") == 1
        case _:
            assert (await broker.sweep("other", lambda message: Remove())).removed == 1

    assert (await permitted(consumer, 1)).message.id == "3"


async def test_keys_that_say_nothing_any_more_are_forgotten_and_all_others_kept(broker: Broker, path: Path) -> None:
    keeper = await opened(path)
    assert isinstance(broker, SqliteBroker)
    await forget_what_is_over(broker, keeper, lambda: known(broker))
    await keeper.close()


async def known(broker: SqliteBroker) -> set[str]:
    return await broker._store.read(lambda db: {key for (key,) in db.execute("select key from limited").fetchall()})
