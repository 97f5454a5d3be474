"""The leader deletes the delay queues of time slots that are over, and moves each job of the others once."""

import time
from typing import Any

import pytest

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.messages import Properties, to_properties
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.publishing.job_destinations import DelayQueues, delay_queue_name
from palermo.contract.broker import SessionParameters
from palermo.core.election import Duty
from palermo.core.failure import Failure
from palermo.core.time_slots import KEPT_AFTER_END, LEVELS, TimeSlot
from palermo.core.topology import amqp_queue
from tests.contract.timing import due, listed, time_kept
from tests.contract.tools import counts, message, until
from tests.rabbitmq.conftest import Open, on_both_kinds


@pytest.fixture
def over() -> TimeSlot:
    """A time slot whose queue the leader deletes."""
    return TimeSlot(1, int((time.time() - KEPT_AFTER_END) // LEVELS[1].span) - 1)


async def publisher_of(broker: RabbitmqBroker, slot: TimeSlot) -> Publisher:
    """A publisher, once the queue of the time slot is there."""
    await broker._outbox.delay_queues.ensure(slot)
    return await broker._outbox.open()


async def messages_in(connection: Connection, queue: str) -> int:
    found = await connection.probe(queue)
    return found.messages if found.exists else 0


@on_both_kinds
async def test_the_queue_of_a_far_time_slot_is_deleted_when_that_is_over(
    session: SessionParameters, broker: RabbitmqBroker, connection: Connection, over: TimeSlot
) -> None:
    await publisher_of(broker, over)

    async def is_there() -> bool:
        return (await connection.probe(delay_queue_name(session.exchange, over))).exists

    assert await is_there()
    async with time_kept(broker):
        await until(is_there, False)
        assert await broker.queues() == []


async def test_a_time_slot_that_is_made_again_after_its_deletion_loses_no_job(
    session: SessionParameters, broker: RabbitmqBroker, another: Open, over: TimeSlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a program whose clock is slow."""
    leader, delete, delay_queues = await another(), DelayQueues.delete, broker._outbox.delay_queues
    publisher = await publisher_of(broker, over)

    async def read() -> int:
        return len(leader._leader_client._leaders[Duty.TIME]._work._slot_names._records)  # type: ignore[attr-defined]

    async def deleted(self: DelayQueues, slot: TimeSlot) -> bool:
        gone, before = await delete(self, slot), await read()
        if gone and slot == over:
            monkeypatch.setattr(DelayQueues, "delete", delete)
            delay_queues.forget(over)
            await delay_queues.ensure(over)
            job = due("late", over.begins - time.time())
            await publisher.send("", delay_queue_name(session.exchange, over), to_properties(job), job.body)
            await until(read, before + 1)
        return gone

    monkeypatch.setattr(DelayQueues, "delete", deleted)
    async with time_kept(leader):
        await until(lambda: counts(leader), (1, 0))


@on_both_kinds
async def test_a_leader_that_ends_while_it_moves_jobs_doubles_none(
    session: SessionParameters, broker: RabbitmqBroker, connection: Connection
) -> None:
    await broker.publish_many([due(f"{number}", 2.0) for number in range(400)])

    async def begun() -> bool:
        return await messages_in(connection, amqp_queue(session.exchange, "jobs")) > 0

    async with time_kept(broker):
        await until(begun, True)
    await broker.publish_many([due("last", 0.0)])
    async with time_kept(broker):
        await until(lambda: counts(broker), (401, 0))


@on_both_kinds
async def test_leaders_that_end_while_they_fill_shorter_slots_double_none(
    session: SessionParameters, broker: RabbitmqBroker, connection: Connection
) -> None:
    slot = TimeSlot(2, int(time.time() // LEVELS[2].span) + 1)
    queue = delay_queue_name(session.exchange, slot)
    jobs = [message(f"{number}", run_at=slot.ends - 1.0) for number in range(1_000)]
    publisher = await publisher_of(broker, slot)
    for job in jobs:
        await publisher.send_job("", queue, job)
    for _ in range(5):
        before = await messages_in(connection, queue)

        async def fewer(before: int = before) -> bool:
            return await messages_in(connection, queue) < before

        async with time_kept(broker):
            await until(fewer, True)
    assert sorted(await listed(broker, limit=2_000)) == sorted(job.id for job in jobs)


@pytest.mark.parametrize(("kind", "level"), [("classic", 0), ("classic", 1), ("quorum", 0)])
async def test_a_scheduled_job_too_large_for_the_leader_fails_and_others_run(
    session: SessionParameters, broker: RabbitmqBroker, another: Open, small: dict[str, Any], level: int
) -> None:
    leader = await another(**small)
    lost = Failure(exception_class="shop.Full", message="no", stack_trace="line\n" * 4_000, failed_at=5)
    jobs = [due("large", 0.5, extra={"note": "n" * 20_000}), due("retry", 0.6, failure=lost), due("small", 0.7)]
    for job in jobs:
        slot = TimeSlot(level, int((job.run_at or 0.0) // LEVELS[level].span))
        await (await publisher_of(broker, slot)).send_job("", delay_queue_name(session.exchange, slot), job)

    async with time_kept(leader):
        await until(lambda: counts(broker, "failed"), (1, 0))
        await until(lambda: counts(broker), (2, 0))

    async def shown() -> int:
        return len((await broker.browse("failed", limit=10)).messages)

    await until(shown, 1)  # a quorum queue is shown from its log
    (failed,) = (await broker.browse("failed", limit=10)).messages
    assert (failed.id, failed.body, failed.queue) == ("large", jobs[0].body, jobs[0].queue)
    assert failed.extra == {"dropped-headers": "note"}
    assert failed.failure is not None
    assert failed.failure.exception_class == "palermo.errors.HeadersTooLarge"
    assert "frame_max" in failed.failure.message


@on_both_kinds
async def test_what_a_leader_has_failed_is_shown_also_if_the_leader_then_ends(
    session: SessionParameters, broker: RabbitmqBroker, another: Open, small: dict[str, Any], connection: Connection
) -> None:
    leader = await another(**small)
    large = [due(f"{number}", 1.0, extra={"note": "n" * 20_000}) for number in range(50)]
    await broker.publish_many(large)

    async def stored() -> bool:
        return await messages_in(connection, amqp_queue(session.exchange, "failed")) > 0

    async with time_kept(leader):
        await until(stored, True)
    async with time_kept(leader):
        await until(lambda: counts(broker, "failed"), (50, 0))

    async def shown() -> set[str]:
        return {one.id for one in (await broker.browse("failed", limit=100)).messages}

    await until(shown, {one.id for one in large})


@on_both_kinds
async def test_a_queue_with_a_message_or_a_consumer_is_not_deleted(
    session: SessionParameters, connection: Connection
) -> None:
    queue = delay_queue_name(session.exchange, TimeSlot(1, 1))
    await connection.declare(queue, {"x-queue-type": session.queue_type})
    channel = await connection.channel()
    await channel.consume(queue, lambda _: None)
    assert not await connection.delete_unused(queue)
    await channel.close()
    await (await Publisher.open(connection)).send("", queue, Properties(), b"1")
    assert not await connection.delete_unused(queue)

    await until(lambda: messages_in(connection, queue), 1)
    await connection.purge(queue)
    await until(lambda: connection.delete_unused(queue), True)
    assert not (await connection.probe(queue)).exists
