"""The leader's recurring jobs on RabbitMQ, with clocks that jump and states that were left behind."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.connection import Connection, open_connection
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.scheduling.recurring_jobs import RecurringJobs
from palermo.contract.broker import Broker, SessionParameters
from palermo.contract.recurring_entries import EntryChange
from palermo.contract.scheduled import ignore_jobs
from palermo.contract.worker_info import WorkerCommand
from palermo.core.topology import internal
from palermo.errors import NotFound
from tests.contract.recurring import entry, fire, seldom
from tests.contract.timing import time_kept
from tests.contract.tools import message, until
from tests.contract.workers import Report, consume, nothing_for, take_and_ack
from tests.rabbitmq.conftest import Open, outbox_on
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
    destinations = outbox_on(connection, session).destinations
    publisher = await Publisher.open(connection)
    return RecurringJobs(session.exchange, connection, publisher, destinations, states, now=wall, fired=ignore_jobs)


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


async def waiting(broker: Broker) -> int:
    """The number of jobs in the queue, which may be gone."""
    try:
        return (await broker.browse("jobs", limit=0)).total
    except NotFound:
        return 0


async def ready(ticker: RecurringJobs) -> int:
    """The number of entries whose next jobs are ready to be sent."""
    return sum(held.ready is not None for held in ticker._held.values())


async def next_tick(ticker: RecurringJobs) -> float:
    return (await ticker.entries())[0].next or 0.0


async def last_runs(ticker: RecurringJobs) -> set[float | None]:
    return {found.last_run for found in await ticker.entries()}


async def states(connection: Connection, exchange: str) -> int:
    """The number of states in their queue that no leader holds."""
    return (await connection.probe(internal(exchange, "recurring"))).messages


async def test_a_clock_that_jumps_skips_no_tick(broker: RabbitmqBroker, ticker: RecurringJobs, wall: Wall) -> None:
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


async def test_ready_jobs_survive_channel_and_queue(broker: RabbitmqBroker, ticker: RecurringJobs, wall: Wall) -> None:
    async with running(ticker):
        # More than a megabyte together: they leave in several writes.
        for number in range(30):
            await ticker.change(EntryChange.put(entry(f"sweep {number}", every=HOUR, sent={"body": b"1" * 100_000})))
        for is_cut in (False, False, True):
            due = await next_tick(ticker)
            wall.set(due - 1.0)
            await until(lambda: ready(ticker), 30)
            if is_cut:
                (await ticker._destinations.publisher()).channel.abandon()
            await until(lambda: waiting(broker), 30)
            fired = (await broker.browse("jobs", limit=40)).messages
            assert {one.extra["tick"] for one in fired} == {due}
            assert len({one.id for one in fired}) == 30
            await until(lambda: ready(ticker), 0)
            await broker.delete("jobs")


async def test_a_tick_asks_workers_once_and_no_job_runs_beside_itself(
    broker: RabbitmqBroker, another: Open, ticker: RecurringJobs, wall: Wall, monkeypatch: pytest.MonkeyPatch
) -> None:
    have_patience(monkeypatch)
    names = [f"sweep {number:03}" for number in range(300)]
    for name in names:
        await ticker.change(EntryChange.put(entry(name, every=HOUR)))
    due = await next_tick(ticker)
    runs = [found.fired(due)[0][0].id for found in await ticker.entries()][7]
    asked = list[tuple[int, int]]()

    def worker(number: int, *jobs: str) -> Callable[[WorkerCommand], Any]:
        async def answer(order: WorkerCommand) -> Mapping[str, Any]:
            asked.append((number, len(order.ids)))
            return {"known": [id for id in order.ids if id in jobs]}

        return answer

    for number, jobs in ((1, ()), (2, (runs,))):
        report = Report("others", pid=number)
        await consume(await another(), "others", report=report, on_command=worker(number, *jobs))
    wall.set(due + 0.5)
    async with running(ticker):
        await until(lambda: last_runs(ticker), {due})

    fired = {job.id.partition("@")[0] for job in (await broker.browse("jobs", limit=1_000)).messages}
    assert sorted(fired) == [name for name in names if name != "sweep 007"]
    assert sorted(asked) == [(1, 300), (2, 300)]


async def test_an_entry_removed_or_disabled_just_before_its_tick_does_not_fire(
    broker: RabbitmqBroker, connection: Connection, session: SessionParameters
) -> None:
    instant = time.time()
    ticker = await ticker_on(connection, session, lambda: instant)
    async with running(ticker):
        for name in ("fires", "removed", "disabled"):
            await ticker.change(EntryChange.put(entry(name, every=HOUR)))
        due = await next_tick(ticker)
        instant = due - 1.0
        await until(lambda: ready(ticker), 3)
        await ticker.change(EntryChange.remove("removed"))
        await ticker.change(EntryChange.switch("disabled", on=False))
        instant = due + 0.1
        assert (await take_and_ack(await consume(broker))).extra["recurring"] == "fires"
        assert {one.name: one.last_run for one in await ticker.entries()} == {"fires": due, "disabled": None}


async def test_entries_whose_queue_was_deleted_are_stored_again(
    broker: RabbitmqBroker, session: SessionParameters, caplog: pytest.LogCaptureFixture
) -> None:
    first = await open_connection(session, "first")
    ticker = await ticker_on(first, session, time.time)
    for name in ("a", "b"):
        await ticker.change(EntryChange.put(entry(name, every=seldom())))
    before = await ticker.entries()
    await first.delete(internal(session.exchange, "recurring"))

    async def is_made_anew() -> bool:
        return await ticker.entries() == before and "was deleted" in caplog.text

    await until(is_made_anew, True)
    await first.close()
    assert await broker.recurring() == before


async def test_the_newer_of_two_states_counts_and_what_is_none_is_kept(
    broker: RabbitmqBroker, another: Open, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    await broker.change_recurring(EntryChange.put(entry(every=seldom())))
    (found,) = await broker.recurring()
    older = replace(found, version=found.version - 1, message=message("sweep", body=b"[0]"))
    newer = replace(found, version=found.version + 5, message=message("sweep", job="shop.sweep", body=b"[9]"))
    bodies = [json.dumps(state.to_plain()).encode() for state in (older, newer, newer)]
    channel = await connection.channel()
    for body in (*bodies, b"not JSON", b'{"from": "a later version"}'):
        channel.raw.basic_publish("", internal(broker._exchange, "recurring"), body)
    await until(lambda: states(connection, broker._exchange), 6)

    async with time_kept(await another()):
        assert await broker.recurring() == [newer]
        await fire(broker, "sweep")
    assert (await take_and_ack(await consume(broker))).body == b"[9]"
    await until(lambda: states(connection, broker._exchange), 3)
    assert "cannot be read" in caplog.text


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
            failed = (await broker.browse("failed")).messages
            assert len(failed) == number
            assert failed[-1].extra == {"recurring": "large", "tick": due, "dropped-headers": "note"}
            assert failed[-1].failure is not None
            assert failed[-1].failure.exception_class == "palermo.errors.HeadersTooLarge"
        assert await waiting(broker) == 0
    await connection.close()
