"""The leader deletes the delay queues of time slots that are over, and goes on."""

import asyncio
import time

import pytest
from msgspec.structs import replace

from palermo.brokers.rabbitmq.amqp.connection import open_connection
from palermo.brokers.rabbitmq.amqp.messages import Properties, to_properties
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.broker import open_rabbitmq
from palermo.brokers.rabbitmq.publishing.job_destinations import DelayQueues, delay_queue_name
from palermo.contract.broker import SessionParameters, open_broker
from palermo.core.address import parse_url
from palermo.core.election import Duty
from palermo.core.failure import Failure
from palermo.core.time_slots import KEPT_AFTER_END, LEVELS, TimeSlot
from palermo.core.topology import amqp_queue
from tests.contract.timing import due, listed, time_kept
from tests.contract.tools import PATIENT, counts, message, until


@pytest.fixture
def session(rabbitmq_url: str, exchange: str, kind: str) -> SessionParameters:
    return SessionParameters(address=parse_url(rabbitmq_url), exchange=exchange, timeout=PATIENT, queue_type=kind)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_the_queue_of_a_far_time_slot_is_deleted_when_that_is_over(session: SessionParameters) -> None:
    over = TimeSlot(1, int((time.time() - KEPT_AFTER_END) // LEVELS[1].span) - 1)

    async def work() -> None:
        connection = await open_connection(session, "test")
        publisher = await Publisher.open(connection)

        async def ours() -> Publisher:
            return publisher

        arguments = {"x-queue-type": session.queue_type}
        leader = await open_broker(session)
        try:
            await DelayQueues(session.exchange, connection, ours, arguments).ensure(over)

            async def is_there() -> bool:
                return (await connection.probe(delay_queue_name(session.exchange, over))).exists

            assert await is_there()
            async with time_kept(leader):
                await until(is_there, False)
                assert await leader.queues() == []
        finally:
            await leader.close()
            await connection.close()

    asyncio.run(work())


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_time_slot_that_a_session_makes_again_just_after_its_deletion_is_still_looked_after(
    session: SessionParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a program whose clock is slow."""
    over = TimeSlot(1, int((time.time() - KEPT_AFTER_END) // LEVELS[1].span) - 1)
    delete = DelayQueues.delete

    async def work() -> None:
        connection = await open_connection(session, "test")
        publisher = await Publisher.open(connection)
        leader = await open_rabbitmq(session)

        async def ours() -> Publisher:
            return publisher

        delay_queues = DelayQueues(session.exchange, connection, ours, {"x-queue-type": session.queue_type})

        async def read() -> int:
            return len(leader._leader_client._leaders[Duty.TIME]._work._slot_names._records)  # type: ignore[attr-defined]

        async def deleted(self: DelayQueues, time_slot: TimeSlot) -> bool:
            gone, before = await delete(self, time_slot), await read()
            if gone and time_slot == over and delay_queues.has(over):
                monkeypatch.setattr(DelayQueues, "delete", delete)
                delay_queues.forget(over)
                await delay_queues.ensure(over)
                job = due("late", over.begins - time.time())
                await publisher.send("", delay_queue_name(session.exchange, over), to_properties(job), job.body)
                await until(read, before + 1)
            return gone

        monkeypatch.setattr(DelayQueues, "delete", deleted)
        try:
            await delay_queues.ensure(over)
            async with time_kept(leader):
                await until(lambda: counts(leader), (1, 0))
        finally:
            await leader.close()
            await connection.close()

    asyncio.run(work())


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_leader_that_ends_while_it_moves_jobs_to_their_queue_moves_none_twice(session: SessionParameters) -> None:
    async def work() -> None:
        broker = await open_broker(session)
        connection = await open_connection(session, "counts")
        try:
            await broker.publish_many([due(f"{number}", 2.0) for number in range(400)])

            async def begun() -> bool:
                found = await connection.probe(amqp_queue(session.exchange, "jobs"))
                return found.exists and found.messages > 0

            async with time_kept(broker):
                await until(begun, True)
            await broker.publish_many([due("last", 0.0)])
            async with time_kept(broker):
                await until(lambda: counts(broker), (401, 0))
        finally:
            await connection.close()
            await broker.close()

    asyncio.run(work())


@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_leaders_that_end_while_they_move_jobs_to_shorter_time_slots_double_none(
    session: SessionParameters,
) -> None:
    slot = TimeSlot(2, int(time.time() // LEVELS[2].span) + 1)
    queue = delay_queue_name(session.exchange, slot)
    jobs = [message(f"{number}", run_at=slot.ends - 1.0) for number in range(1_000)]
    broker, connection = await open_rabbitmq(session), await open_connection(session, "counts")
    try:
        publisher = await broker._outbox.open()
        await broker._outbox.delay_queues.ensure(slot)
        for job in jobs:
            await publisher.send_job("", queue, job)
        for _ in range(5):
            before = (await connection.probe(queue)).messages

            async def fewer(before: int = before) -> bool:
                return (await connection.probe(queue)).messages < before

            async with time_kept(broker):
                await until(fewer, True)
        assert sorted(await listed(broker, limit=2_000)) == sorted(job.id for job in jobs)
    finally:
        await connection.close()
        await broker.close()


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("level", [0, 1])
def test_a_scheduled_job_whose_headers_do_not_fit_the_leaders_frames_fails_and_the_others_run(
    session: SessionParameters, level: int
) -> None:
    small = replace(session, address=replace(session.address, options=(("frame_max", "8192"),)))

    async def work() -> None:
        broker, leader = await open_rabbitmq(session), await open_rabbitmq(small)
        lost = Failure(exception_class="shop.Full", message="no", stack_trace="line\n" * 4_000, failed_at=5)
        jobs = [
            due("large", 0.5, extra={"note": "n" * 20_000}),
            due("retry", 0.6, failure=lost),
            due("small", 0.7),
        ]
        try:
            publisher = await broker._outbox.open()
            for job in jobs:
                assert job.run_at is not None
                slot = TimeSlot(level, int(job.run_at // LEVELS[level].span))
                await broker._outbox.delay_queues.ensure(slot)
                await publisher.send_job("", delay_queue_name(session.exchange, slot), job)
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
        finally:
            await leader.close()
            await broker.close()

    asyncio.run(work())


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_what_a_leader_has_stored_among_the_failed_jobs_is_shown_also_if_the_leader_then_ends(
    session: SessionParameters,
) -> None:
    small = replace(session, address=replace(session.address, options=(("frame_max", "8192"),)))

    async def work() -> None:
        broker, leader = await open_rabbitmq(session), await open_rabbitmq(small)
        connection = await open_connection(session, "counts")
        large = [due(f"{number}", 1.0, extra={"note": "n" * 20_000}) for number in range(50)]
        try:
            await broker.publish_many(large)

            async def stored() -> bool:
                found = await connection.probe(amqp_queue(session.exchange, "failed"))
                return found.exists and found.messages > 0

            async with time_kept(leader):
                await until(stored, True)
            async with time_kept(leader):
                await until(lambda: counts(broker, "failed"), (50, 0))

            async def shown() -> set[str]:
                return {one.id for one in (await broker.browse("failed", limit=100)).messages}

            await until(shown, {one.id for one in large})
        finally:
            await connection.close()
            await leader.close()
            await broker.close()

    asyncio.run(work())


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_queue_with_a_message_or_a_consumer_is_not_deleted(session: SessionParameters) -> None:
    async def work() -> None:
        connection = await open_connection(session, "test")
        try:
            queue = delay_queue_name(session.exchange, TimeSlot(1, 1))
            await connection.declare(queue, {"x-queue-type": session.queue_type})
            channel = await connection.channel()
            await channel.consume(queue, lambda _: None)
            assert not await connection.delete_unused(queue)
            await channel.close()
            await (await Publisher.open(connection)).send("", queue, Properties(), b"1")
            assert not await connection.delete_unused(queue)

            async def messages() -> int:
                return (await connection.probe(queue)).messages

            await until(messages, 1)
            await connection.purge(queue)
            await until(lambda: connection.delete_unused(queue), True)
            assert not (await connection.probe(queue)).exists
        finally:
            await connection.close()

    asyncio.run(work())
