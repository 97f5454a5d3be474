"""The leader's recurring jobs on RabbitMQ, with clocks that jump and states that were left behind."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.connection import Connection, open_connection
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.publishing.ledger import Ledger
from palermo.brokers.rabbitmq.scheduling.recurring_jobs import RecurringJobs
from palermo.contract.broker import Broker, SessionParameters
from palermo.contract.recurring_entries import EntryChange
from palermo.contract.scheduled import ignore_jobs
from palermo.contract.worker_info import WorkerCommand
from palermo.core.message import Message
from palermo.core.topology import internal
from palermo.errors import NotFound, PalermoError
from tests.contract.recurring import entry, seldom
from tests.contract.tools import until
from tests.contract.workers import Report, consume, nothing_for, take_and_ack
from tests.rabbitmq.conftest import Open, becomes, outbox_on
from tests.rabbitmq.patience import have_patience

HOUR = 3_600.0


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
        task.cancel()
        await asyncio.wait({task})


async def waiting(broker: Broker, queue: str = "jobs") -> int:
    """The number of jobs in the queue, which may be gone."""
    try:
        return (await broker.browse(queue, limit=0)).total
    except NotFound:
        return 0


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
    connection = await open_connection(session, "next leader")
    later = await ticker_on(connection, session, wall)

    assert await last_runs(later) == {due}

    fired = {job.id.partition("@")[0] for job in (await broker.browse("jobs", limit=1_000)).messages}
    assert sorted(fired) == [name for name in names if name != "sweep 007"]
    assert sorted(asked) == [(1, 100), (2, 100)]
    await connection.close()


async def test_entries_are_gone_and_the_leader_ends_when_their_queue_is_deleted(
    broker: RabbitmqBroker, connection: Connection, session: SessionParameters, ticker: RecurringJobs
) -> None:
    await ticker.change(EntryChange.put(entry(every=seldom())))
    async with running(ticker):
        await broker._connection.delete(internal(session.exchange, "recurring"))
        await becomes(lambda: "was deleted" in str(connection.error))
    assert await broker.recurring() == []


async def test_a_recurring_job_too_large_for_the_leader_fails_at_each_tick(
    broker: RabbitmqBroker, session: SessionParameters, small: dict[str, Any], wall: Wall
) -> None:
    leading = replace(session, **small)
    connection = await open_connection(leading, "leader")
    ticker = await ticker_on(connection, leading, wall)
    await ticker.change(EntryChange.put(entry("large", every=HOUR, sent={"extra": {"note": "n" * 20_000}})))
    async with running(ticker):
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
    await connection.close()
