"""What leads holds the recurring jobs on RabbitMQ, by clocks that jump and through states that were left behind."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from palermo.broker import Broker, Session, open_broker
from palermo.brokers.rabbitmq import versions
from palermo.brokers.rabbitmq.declarer import Declarer
from palermo.brokers.rabbitmq.link import Link, open_link
from palermo.brokers.rabbitmq.publisher import Publisher
from palermo.brokers.rabbitmq.seats import Seats
from palermo.brokers.rabbitmq.ticker import Ticker
from palermo.core.address import parse_url
from palermo.core.topology import internal
from palermo.entries import PUT, Change, Entry
from palermo.timetable import nobody
from tests.contract.kit import consume, ids, message, nothing_for, take_and_ack, until
from tests.contract.recurring import entry
from tests.contract.timing import time_kept

HOUR = 3_600.0


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def session(rabbitmq_url: str, exchange: str) -> Session:
    return Session(address=parse_url(rabbitmq_url), exchange=exchange)


class Wall:
    """A clock that can be set."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@asynccontextmanager
async def opened(session: Session) -> AsyncIterator[tuple[Broker, Link]]:
    broker, link = await open_broker(session), await open_link(session, "test")
    try:
        yield broker, link
    finally:
        await link.close()
        await broker.close()


async def ticker_on(link: Link, session: Session, wall: Wall) -> Ticker:
    async def register(queue: str) -> None:
        pass

    declarer = Declarer(link, session.exchange, kind="classic", register=register, adopt=lambda queue: None)
    states = versions.arguments("classic", link.version)
    publisher = await Publisher.open(link)

    async def ours() -> Publisher:
        return publisher

    seats = Seats(session.exchange, link, ours)
    return Ticker(session.exchange, link, publisher, declarer, seats, states, now=wall, fired=nobody)


@asynccontextmanager
async def running(ticker: Ticker) -> AsyncIterator[None]:
    task = asyncio.ensure_future(ticker.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


def put(made: Entry) -> Change:
    return Change(name=made.name, action=PUT, entry=made)


@pytest.mark.parametrize("policy", ["skip", "once", "all"])
def test_a_clock_that_jumps_makes_nothing_early_and_the_rest_go_by_policy(
    runner: asyncio.Runner, session: Session, policy: str
) -> None:
    async def go() -> None:
        wall = Wall()
        async with opened(session) as (broker, link):
            consumer = await consume(broker)
            ticker = await ticker_on(link, session, wall)
            async with running(ticker):
                await ticker.change(put(entry(every=HOUR, missed=policy)))
                (first,) = await ticker.entries()
                due = first.next or 0.0
                wall.ahead = due - time.time() - 1.5
                await nothing_for(consumer)
                got = await take_and_ack(consumer)
                assert (got.extra["tick"], wall() >= due) == (due, True)

                # Back by two hours: the tick has fired, and none is early.
                wall.ahead -= 2 * HOUR
                await nothing_for(consumer)

                # Three and a half hours on: two ticks were missed, and one passed half an hour ago.
                wall.ahead = due + 3.5 * HOUR - time.time()
                wanted = {"skip": [], "once": [3], "all": [1, 2, 3]}[policy]
                assert [(await take_and_ack(consumer)).extra["tick"] for _ in wanted] == [
                    due + n * HOUR for n in wanted
                ]
                await nothing_for(consumer)

    runner.run(go())


def test_of_two_states_of_one_entry_the_newer_counts(runner: asyncio.Runner, session: Session) -> None:
    async def go() -> None:
        async with opened(session) as (broker, link):
            await broker.put_recurring(entry(every=HOUR))
            (found,) = await broker.recurring()
            channel = await link.channel()
            older = replace(found, version=found.version - 1, message=message("sweep", body=b"[0]"))
            newer = replace(found, version=found.version + 5, message=message("sweep", job="shop.sweep", body=b"[9]"))
            for state in (older, newer, newer):
                body = json.dumps(state.to_plain()).encode()
                channel.raw.basic_publish("", internal(session.exchange, "recurring"), body)
            await until(lambda: states(link, session), 4)

            async with opened(session) as (keeper, _), time_kept(keeper):
                assert await broker.recurring() == [newer]
                await broker.fire_recurring("sweep")
            assert (await take_and_ack(await consume(broker))).body == b"[9]"
            await until(lambda: states(link, session), 1)

    runner.run(go())


def test_a_state_that_cannot_be_read_is_kept_and_keeps_nobody(
    runner: asyncio.Runner, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        async with opened(session) as (broker, link):
            await broker.put_recurring(entry(every=HOUR))
            channel = await link.channel()
            for body in (b"not JSON", b'{"from": "a later version"}'):
                channel.raw.basic_publish("", internal(session.exchange, "recurring"), body)
            await until(lambda: states(link, session), 3)

            assert [found.name for found in await broker.recurring()] == ["sweep"]
            id = await broker.fire_recurring("sweep")

            await until(lambda: ids(broker), [id])
            await until(lambda: states(link, session), 3)
            assert "cannot be read" in caplog.text

    runner.run(go())


async def states(link: Link, session: Session) -> int:
    """How many states lie in their queue, which nobody holds."""
    channel = await link.channel()
    frame = await channel.call(channel.raw.queue_declare, internal(session.exchange, "recurring"), passive=True)
    await channel.close()
    return int(frame.method.message_count)
