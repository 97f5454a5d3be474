"""Scheduled jobs on RabbitMQ: the leader moves each once, reads a bucket once for all pages, and deletes it then."""

import time
from typing import Any

import pytest

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.messages import Properties
from palermo.brokers.rabbitmq.amqp.publisher import Publisher, RecordQueue
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.browsing.sweep import Reader
from palermo.brokers.rabbitmq.publishing.handover import write_acks
from palermo.brokers.rabbitmq.publishing.job_destinations import delay_queue_name
from palermo.brokers.rabbitmq.scheduling import buckets
from palermo.contract.broker import SessionParameters
from palermo.contract.scheduled import CANCEL, MOVE, ScheduledFilter
from palermo.core.due_times import Bucket, Intake
from palermo.core.failure import Failure
from palermo.core.message import Message
from palermo.core.topology import amqp_queue
from tests.contract.timing import DAY, by_id, due, listed, time_kept
from tests.contract.tools import counts, ids, message, until
from tests.rabbitmq.conftest import Open, on_both_kinds, outbox_on

HOUR = 3_600


async def messages_in(connection: Connection, queue: str) -> int:
    found = await connection.probe(queue)
    return found.messages if found.exists else 0


async def test_the_next_leader_finds_overdue_jobs_in_a_bucket_and_then_deletes_it(
    session: SessionParameters, broker: RabbitmqBroker, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "_KEPT", 0.1)
    over = Bucket(1, int(time.time() // HOUR) - 5)
    queue = delay_queue_name(session.exchange, over)
    outbox = outbox_on(connection, session)
    names = RecordQueue(f"{session.exchange}.~later", connection, outbox.open, {"x-queue-type": session.queue_type})
    await names.write({"made": str(over)})
    await connection.declare(queue, {"x-queue-type": session.queue_type})
    await (await outbox.open()).send_job("", queue, due("late", -5 * HOUR))

    async def is_there() -> bool:
        return (await connection.probe(queue)).exists

    async with time_kept(broker):
        await until(lambda: counts(broker), (1, 0))
        await until(is_there, False)
        assert [found.name for found in await broker.queues()] == ["jobs"]


@on_both_kinds
async def test_a_mark_that_is_delivered_again_is_no_job(
    session: SessionParameters, broker: RabbitmqBroker, connection: Connection
) -> None:
    queue = delay_queue_name(session.exchange, Intake.SOON)
    await broker.publish_many([message("now"), due("soon", 1.0)])
    await write_acks(await outbox_on(connection, session).open(), queue)
    reader = Reader(connection, session.exchange, name=queue)
    assert [got.body == b"" async for _, page in reader.pages(2) for got in page] == [False, True]
    await reader.close()

    async def waiting() -> list[str]:
        return sorted(await ids(broker, "jobs"))

    async with time_kept(broker):
        await until(waiting, ["now", "soon"])
        assert await counts(broker) == (2, 0)


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


async def test_leaders_that_end_while_they_fill_buckets_double_none(
    session: SessionParameters, broker: RabbitmqBroker, connection: Connection
) -> None:
    jobs = [job(number, number % 2 * DAY) for number in range(1_000)]
    await broker.publish_many(jobs)
    queue = delay_queue_name(session.exchange, Intake.NEW)
    for _ in range(5):
        before = await messages_in(connection, queue)

        async def fewer(before: int = before) -> bool:
            return await messages_in(connection, queue) < before or before == 0

        async with time_kept(broker):
            await until(fewer, True)
    assert sorted(await listed(broker, limit=2_000)) == sorted(job.id for job in jobs)


@pytest.mark.parametrize(
    ("kind", "intake"), [("classic", Intake.SOON), ("classic", Intake.NEW), ("quorum", Intake.SOON)]
)
async def test_a_scheduled_job_too_large_for_the_leader_fails_and_others_run(
    session: SessionParameters, broker: RabbitmqBroker, another: Open, small: dict[str, Any], intake: Intake
) -> None:
    leader = await another(**small)
    lost = Failure(exception_class="shop.Full", message="no", stack_trace="line\n" * 4_000, failed_at=5)
    jobs = [due("large", 0.5, extra={"note": "n" * 20_000}), due("retry", 0.6, failure=lost), due("small", 0.7)]
    await broker._outbox.destinations.ensure(intake)
    for job in jobs:
        await (await broker._outbox.open()).send_job("", delay_queue_name(session.exchange, intake), job)

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
    queue = delay_queue_name(session.exchange, Bucket(1, 1))
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
    """The names of the queues of delayed jobs that are read for a request, once each time."""
    found, pages = list[str](), Reader.pages

    def noted(self: Reader, count: int, **more: Any) -> object:
        if "~later." in self._name and self.only_look and count:
            found.append(self._name.partition("~later.")[2])
        return pages(self, count, **more)

    monkeypatch.setattr(Reader, "pages", noted)
    return found


def job(number: int, second: float, **more: str) -> Message:
    return message(f"job-{number}", run_at=TOMORROW + second, body=b'["x"]', **more)


async def test_a_bucket_is_read_once_for_all_requests(
    session: SessionParameters, another: Open, broker: RabbitmqBroker, connection: Connection, read: list[str]
) -> None:
    bucket = Bucket(2, int(TOMORROW // DAY))
    # The last one that is enqueued is due first.
    sent = [job(number, 60 - number, queue="odd" if number % 2 else "even") for number in range(20)]
    async with time_kept(await another()):
        await broker.publish_many(sent)
        await until(lambda: messages_in(connection, delay_queue_name(session.exchange, bucket)), 20)
        for _ in range(2):
            page = await broker.scheduled(ScheduledFilter(), limit=3)
            assert ([found.id for found in page.messages], page.total) == (["job-19", "job-18", "job-17"], 20)
            assert page.messages[0] == sent[19]
        chosen = await broker.scheduled(ScheduledFilter(queue="o*"), limit=2)
        assert ([found.id for found in chosen.messages], chosen.total) == (["job-19", "job-17"], 10)
        assert await listed(broker, by_id("job-18")) == ["job-18"]
        assert await listed(broker, by_id("nobody")) == []
        assert read.count(str(bucket)) == 1

        # One job fewer and one more: other jobs of the same number.
        await broker.alter_scheduled(by_id("job-19"), CANCEL)
        await broker.publish(job(98, 42.5))
        assert await listed(broker, limit=3) == ["job-18", "job-98", "job-17"]
        await broker.alter_scheduled(by_id("job-10"), MOVE, at=TOMORROW + 1)
        assert await listed(broker, limit=2) == ["job-10", "job-18"]
        assert read.count(str(bucket)) == 1


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
