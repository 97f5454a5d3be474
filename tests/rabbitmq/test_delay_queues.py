"""Scheduled jobs: the leader moves each job once, reads a time slot once for all pages, and deletes what is over."""

import time
from typing import Any

import pytest

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.messages import Properties, to_properties
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.browsing.sweep import Reader
from palermo.brokers.rabbitmq.publishing.job_destinations import DelayQueues, delay_queue_name
from palermo.brokers.rabbitmq.scheduling import slot_index
from palermo.contract.broker import SessionParameters
from palermo.contract.scheduled import CANCEL, MOVE, ScheduledFilter
from palermo.core.election import Duty
from palermo.core.failure import Failure
from palermo.core.message import Message
from palermo.core.time_slots import KEPT_AFTER_END, LEVELS, TimeSlot
from palermo.core.topology import amqp_queue
from tests.contract.timing import DAY, by_id, due, listed, time_kept
from tests.contract.tools import counts, ids, message, until
from tests.rabbitmq.conftest import Open, becomes, on_both_kinds


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


async def test_a_past_slots_queue_is_deleted(broker: RabbitmqBroker, connection: Connection, over: TimeSlot) -> None:
    await publisher_of(broker, over)

    async def is_there() -> bool:
        return (await connection.probe(delay_queue_name(broker._exchange, over))).exists

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

    def read() -> int:
        return len(leader._leader_client._leaders[Duty.MAIN]._work._scheduled_jobs._slot_names._records)  # type: ignore[attr-defined]

    async def deleted(self: DelayQueues, slot: TimeSlot) -> bool:
        gone, before = await delete(self, slot), read()
        if gone and slot == over:
            monkeypatch.setattr(DelayQueues, "delete", delete)
            delay_queues.forget(over)
            await delay_queues.ensure(over)
            job = due("late", over.begins - time.time())
            await publisher.send("", delay_queue_name(session.exchange, over), to_properties(job), job.body)
            await becomes(read, before + 1)
        return gone

    monkeypatch.setattr(DelayQueues, "delete", deleted)
    async with time_kept(leader):
        await until(lambda: counts(leader), (1, 0))


@on_both_kinds
async def test_a_leader_that_ends_as_it_moves_jobs_doubles_none(broker: RabbitmqBroker, connection: Connection) -> None:
    await broker.publish_many([due(f"{number}", 2.0) for number in range(400)])

    async def begun() -> bool:
        return await messages_in(connection, amqp_queue(broker._exchange, "jobs")) > 0

    async with time_kept(broker):
        await until(begun, True)
    await broker.publish_many([due("last", 0.0)])
    async with time_kept(broker):
        await until(lambda: counts(broker), (401, 0))


async def test_leaders_that_end_as_they_fill_slots_double_none(broker: RabbitmqBroker, connection: Connection) -> None:
    slot = TimeSlot(2, int(time.time() // LEVELS[2].span) + 1)
    queue = delay_queue_name(broker._exchange, slot)
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
async def test_large_jobs_fail_alone(broker: RabbitmqBroker, another: Open, small: dict[str, Any], level: int) -> None:
    leader = await another(**small)
    lost = Failure(exception_class="shop.Full", message="no", stack_trace="line\n" * 4_000, failed_at=5)
    jobs = [due("large", 0.5, extra={"note": "n" * 20_000}), due("retry", 0.6, failure=lost), due("small", 0.7)]
    for job in jobs:
        slot = TimeSlot(level, int((job.run_at or 0.0) // LEVELS[level].span))
        await (await publisher_of(broker, slot)).send_job("", delay_queue_name(broker._exchange, slot), job)

    async with time_kept(leader):
        await until(lambda: counts(broker, "failed"), (1, 0))
        await until(lambda: counts(broker), (2, 0))

    await until(lambda: ids(broker, "failed"), ["large"])  # a quorum queue is shown from its log
    (failed,) = (await broker.browse("failed", limit=10)).messages
    assert (failed.id, failed.body, failed.queue) == ("large", jobs[0].body, jobs[0].queue)
    assert failed.extra == {"dropped-headers": "note"}
    assert failed.failure is not None
    assert failed.failure.exception_class == "palermo.errors.HeadersTooLarge"
    assert "frame_max" in failed.failure.message


@pytest.mark.parametrize("kind", ["quorum"])
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
async def test_a_queue_in_use_is_not_deleted(session: SessionParameters, connection: Connection) -> None:
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


# -- listing far jobs

#: An instant some thirty hours from now, at the beginning of an hour: all jobs are due within five minutes of it.
TOMORROW = (time.time() + 1.25 * DAY) // 3_600 * 3_600


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the time slots that are read, of which the first four messages are kept."""
    found, pages = list[str](), Reader.pages
    monkeypatch.setattr(slot_index, "MOST_MESSAGES", 4)

    def noted(self: Reader, *args: object, **more: object) -> object:
        if "~later." in self._name:
            found.append(self._name.partition("~later.")[2])
        return pages(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Reader, "pages", noted)
    return found


def job(number: int, second: float, **more: str) -> Message:
    return message(f"job-{number}", run_at=TOMORROW + second, body=b'["x"]', **more)


async def test_a_slot_is_read_once_until_it_changes(another: Open, broker: RabbitmqBroker, read: list[str]) -> None:
    # The last one that is enqueued is due first.
    sent = [job(number, 60 - number, queue="odd" if number % 2 else "even") for number in range(20)]
    async with time_kept(leader := await another()):
        await broker.publish_many(sent)
        for _ in range(2):
            page = await broker.scheduled(ScheduledFilter(), limit=3)
            assert ([found.id for found in page.messages], page.total) == (["job-19", "job-18", "job-17"], 20)
            assert page.messages[0] == sent[19]
        chosen = await broker.scheduled(ScheduledFilter(queue="o*"), limit=2)
        assert ([found.id for found in chosen.messages], chosen.total) == (["job-19", "job-17"], 10)
        assert await listed(broker, by_id("job-18")) == ["job-18"]
        assert await listed(broker, by_id("nobody")) == []
        assert len(read) == 1

        # The messages of others are kept once they are shown.
        for _ in range(2):
            assert await listed(broker, by_id("job-3")) == ["job-3"]
            assert await listed(leader, offset=15, limit=10) == [f"job-{number}" for number in range(4, -1, -1)]
        assert len(read) == 3

        # One job fewer and one more: other jobs of the same number.
        await broker.alter_scheduled(by_id("job-19"), CANCEL)
        await broker.publish(job(98, 42.5))
        assert await listed(broker, limit=3) == ["job-18", "job-98", "job-17"]
        await broker.alter_scheduled(by_id("job-10"), MOVE, at=TOMORROW + 1)
        assert await listed(broker, limit=2) == ["job-10", "job-18"]


async def test_pages_of_jobs_that_are_due_together_have_each_job_once(another: Open, broker: RabbitmqBroker) -> None:
    async with time_kept(await another()):
        # A hundred in one millisecond, not all of them at its beginning.
        sent = [job(number, 7 + number % 3 / 10_000) for number in range(100)]
        await broker.publish_many([*sent, job(100, 6), job(101, 8)])
        shown = [id for offset in range(0, 102, 7) for id in await listed(broker, offset=offset, limit=7)]
        assert shown == await listed(broker, limit=200)
        assert (shown[0], len(set(shown)), shown[-1]) == ("job-100", 102, "job-101")


async def test_a_job_stored_twice_is_cancelled_twice_and_moved_once(another: Open, broker: RabbitmqBroker) -> None:
    async with time_kept(await another()):
        await broker.publish_many([job(number % 4, number % 4 + number // 4 / 100) for number in range(8)])
        [_] = await broker.alter_scheduled(by_id("job-1"), CANCEL)
        [_] = await broker.alter_scheduled(by_id("job-3"), MOVE, at=TOMORROW - 1)
        assert await listed(broker) == ["job-3", "job-0", "job-0", "job-2", "job-2"]
