"""Scheduled and recurring jobs on RabbitMQ: the leader moves each once, and reads a bucket once for all pages."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.messages import Properties
from palermo.brokers.rabbitmq.amqp.publisher import Publisher, RecordQueue
from palermo.brokers.rabbitmq.amqp.stream import exists
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.browsing.sweep import Reader
from palermo.brokers.rabbitmq.publishing.handover import write_acks
from palermo.brokers.rabbitmq.publishing.job_destinations import delay_queue_name
from palermo.brokers.rabbitmq.publishing.ledger import Ledger
from palermo.brokers.rabbitmq.scheduling import buckets
from palermo.brokers.rabbitmq.scheduling.recurring_jobs import RecurringJobs
from palermo.contract.broker import Broker, SessionParameters
from palermo.contract.recurring_entries import EntryChange
from palermo.contract.scheduled import CANCEL, MOVE, ScheduledFilter, ignore_jobs
from palermo.contract.worker_info import WorkerCommand
from palermo.core.due_times import Bucket, Intake
from palermo.core.failure import Failure
from palermo.core.message import Message
from palermo.core.topology import amqp_queue, internal
from palermo.errors import PalermoError
from tests.contract.recurring import entry
from tests.contract.timing import DAY, by_id, due, listed, time_kept
from tests.contract.tools import counts, message, stopped, until
from tests.contract.workers import Report, consume, nothing_for, take_and_ack
from tests.rabbitmq.conftest import Open, connected, ids_in, on_both_kinds, outbox_on, too_large
from tests.rabbitmq.patience import have_patience

HOUR = 3_600


async def messages_in(connection: Connection, queue: str) -> int:
    found = await connection.probe(queue)
    return found.messages if found.exists else 0


async def test_the_next_leader_finds_overdue_jobs_in_a_bucket_and_then_deletes_it(
    session: SessionParameters, broker: RabbitmqBroker, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "RARELY", 0.1)
    over = Bucket(1, int(time.time() // HOUR) - 5)
    queue = delay_queue_name(session.exchange, over)
    outbox = outbox_on(connection, session)
    names = RecordQueue(f"{session.exchange}.~later", connection, outbox.open, {"x-queue-type": session.queue_type})
    await names.write({"made": str(over)})
    await connection.declare(queue, {"x-queue-type": session.queue_type})
    await (await outbox.open()).send_job("", queue, due("late", -5 * HOUR))

    async with time_kept(broker):
        await until(lambda: counts(broker), (1, 0))
        await until(lambda: exists(connection, queue), False)
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

    async with time_kept(broker):
        await until(lambda: ids_in(broker), ["now", "soon"])
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


@pytest.mark.slow
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
    assert (await too_large(broker, "large")).extra == {"dropped-headers": "note"}


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

    await until(lambda: ids_in(broker, "failed"), sorted(one.id for one in large))


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
        if "~later." in self._names[0] and self.only_look and count:
            found.append(self._names[0].partition("~later.")[2])
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
        assert (await broker.scheduled(ScheduledFilter(due=(0.0, time.time())))).total == 0
        assert read.count(str(bucket)) == 0, "its jobs are due later"
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
        together = sorted(sent, key=lambda one: (one.run_at, one.id))
        assert shown == ["job-100", *(one.id for one in together), "job-101"]


async def test_a_job_stored_twice_is_cancelled_twice_and_moved_once(another: Open, broker: RabbitmqBroker) -> None:
    async with time_kept(await another()):
        await broker.publish_many([job(number % 4, number % 4 + number // 4 / 100) for number in range(8)])
        [_] = await broker.alter_scheduled(by_id("job-1"), CANCEL)
        [_] = await broker.alter_scheduled(by_id("job-3"), MOVE, at=TOMORROW - 1)
        assert await listed(broker) == ["job-3", "job-0", "job-0", "job-2", "job-2"]


# -- recurring jobs, with clocks that jump and states that were left behind


class Wall:
    """A clock that can be set."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead

    def set(self, instant: float) -> None:
        self.ahead = instant - time.time()


@pytest.fixture
def wall() -> Wall:
    return Wall()


async def ticker_on(connection: Connection, session: SessionParameters, wall: Callable[[], float]) -> RecurringJobs:
    """What a leader has to keep recurring jobs, by this clock."""
    states = versions.arguments("classic", connection.version)
    outbox = outbox_on(connection, session)
    return RecurringJobs(session.exchange, connection, outbox, states, now=wall, fired=ignore_jobs)


@pytest.fixture
def ticker(runner: asyncio.Runner, connection: Connection, session: SessionParameters, wall: Wall) -> RecurringJobs:
    return runner.run(ticker_on(connection, session, wall))


@asynccontextmanager
async def running(ticker: RecurringJobs) -> AsyncIterator[None]:
    task = asyncio.ensure_future(ticker.run())
    try:
        yield
    finally:
        await stopped(task)


async def waiting(broker: Broker, queue: str = "jobs") -> int:
    """The number of jobs in the queue, which may be gone."""
    return len(await ids_in(broker, queue))


async def next_tick(ticker: RecurringJobs) -> float:
    return (await ticker.entries())[0].next or 0.0


async def last_runs(ticker: RecurringJobs) -> set[float | None]:
    return {found.last_run for found in await ticker.entries()}


async def test_a_clock_that_jumps_makes_nothing_early_and_leaves_no_tick_out(
    broker: RabbitmqBroker, ticker: RecurringJobs, wall: Wall
) -> None:
    consumer = await consume(broker)
    async with running(ticker):
        await ticker.change(EntryChange.put(entry(every=HOUR, missed="all")))
        due = await next_tick(ticker)
        wall.set(due - 60)
        await nothing_for(consumer)
        wall.set(due - 1.5)
        got = await take_and_ack(consumer)
        assert (got.extra["tick"], wall() >= due) == (due, True)

        # Back by two hours: the tick has fired, and none is early.
        wall.ahead -= 2 * HOUR
        await nothing_for(consumer)

        wall.set(due + 3.5 * HOUR)
        assert [(await take_and_ack(consumer)).extra["tick"] for _ in range(3)] == [due + n * HOUR for n in (1, 2, 3)]
        await nothing_for(consumer)


async def test_a_tick_fires_once_though_its_channel_or_its_queue_is_gone(
    broker: RabbitmqBroker, ticker: RecurringJobs, wall: Wall
) -> None:
    async with running(ticker):
        # More than a megabyte together: they leave in several writes.
        for number in range(30):
            await ticker.change(EntryChange.put(entry(f"sweep {number}", every=HOUR, sent={"body": b"1" * 100_000})))
        for is_cut in (False, False, True):
            due = await next_tick(ticker)
            if is_cut:
                (await ticker._ledger._outbox.open()).channel.abandon()
            wall.set(due)
            await until(lambda: waiting(broker), 30)
            fired = (await broker.browse("jobs", limit=40)).messages
            assert {one.extra["tick"] for one in fired} == {due}
            assert len({one.id for one in fired}) == 30
            await until(lambda due=due: last_runs(ticker), {due})
            await broker.delete("jobs")


async def test_a_new_leader_asks_workers_once_and_publishes_what_none_has(
    broker: RabbitmqBroker,
    another: Open,
    session: SessionParameters,
    ticker: RecurringJobs,
    wall: Wall,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    have_patience(monkeypatch)
    names = [f"sweep {number:03}" for number in range(100)]
    for name in names:
        await ticker.change(EntryChange.put(entry(name, every=HOUR)))
    due = await next_tick(ticker)
    runs = [found.fired(due)[0][0].id for found in await ticker.entries()][7]
    asked, died = list[tuple[int, int]](), asyncio.Event()

    async def dies(ledger: Ledger[Any], jobs: Sequence[Message]) -> dict[str, PalermoError]:
        died.set()
        ledger._connection.raw.abort()
        return {}

    def worker(number: int, *jobs: str) -> Callable[[WorkerCommand], Any]:
        async def answer(order: WorkerCommand) -> Mapping[str, Any]:
            asked.append((number, len(order.ids)))
            return {"known": [id for id in order.ids if id in jobs]}

        return answer

    for number, jobs in ((1, ()), (2, (runs,))):
        report = Report("others", pid=number)
        await consume(await another(), "others", report=report, on_command=worker(number, *jobs))
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "_publish", dies)
        wall.set(due)
        async with running(ticker):
            await died.wait()
    async with connected(session) as connection:
        later = await ticker_on(connection, session, wall)

        assert await last_runs(later) == {due}

    fired = {job.id.partition("@")[0] for job in (await broker.browse("jobs", limit=1_000)).messages}
    assert sorted(fired) == [name for name in names if name != "sweep 007"]
    assert sorted(asked) == [(1, 100), (2, 100)]


async def test_entries_are_gone_and_the_leader_ends_when_their_queue_is_deleted(
    broker: RabbitmqBroker, connection: Connection, session: SessionParameters, ticker: RecurringJobs
) -> None:
    await ticker.change(EntryChange.put(entry(every=DAY)))
    async with running(ticker):
        await broker._connection.delete(internal(session.exchange, "recurring"))
        await until(lambda: "was deleted" in str(connection.error))
    assert await broker.recurring() == []


async def test_a_recurring_job_too_large_for_the_leader_fails_at_each_tick(
    broker: RabbitmqBroker, session: SessionParameters, small: dict[str, Any], wall: Wall
) -> None:
    leading, large = replace(session, **small), entry("large", every=HOUR, sent={"extra": {"note": "n" * 20_000}})
    async with connected(leading) as connection, running(ticker := await ticker_on(connection, leading, wall)):
        await ticker.change(EntryChange.put(large))
        for number in (1, 2):
            due = await next_tick(ticker)
            wall.set(due + 0.5)
            await until(lambda due=due: last_runs(ticker), {due})
            await until(lambda: waiting(broker, "failed"), number)
            failed = (await broker.browse("failed")).messages
            assert failed[-1].extra == {"recurring": "large", "tick": due, "dropped-headers": "note"}
            assert failed[-1].failure is not None
            assert failed[-1].failure.exception_class == "palermo.errors.HeadersTooLarge"
        assert await waiting(broker) == 0
