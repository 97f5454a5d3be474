"""Streams that RabbitMQ never opens again, because it was killed within a second after it made its first one."""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from msgspec.structs import replace

from palermo.contract.broker import Broker, Page, SessionParameters, open_broker
from palermo.contract.events import Subscription
from palermo.contract.recurring_entries import EntryChange
from palermo.contract.scheduled import ScheduledFilter
from palermo.core.address import parse_url
from palermo.core.message import Message
from palermo.core.topics import Event, group_queue
from palermo.errors import BrokerUnavailable, PalermoError
from tests import rabbitmq_found
from tests.contract.recurring import entry
from tests.contract.tools import PATIENT
from tests.contract.workers import consume
from tests.helpers import Stopwatch
from tests.rabbitmq_node import Node, url_of
from tests.scale import chosen, scaled

#: Seconds within which a job can be enqueued after the broker's return, and within which all can be listed.
ENQUEUED_WITHIN, LISTED_WITHIN = 5.0, 15.0

#: How many times the broker is killed at each instant. PALERMO_KILLS=3 asks for fewer than 20.
TIMES = scaled(1, int(os.environ.get("PALERMO_KILLS") or 20))


@pytest.fixture(params=chosen((0.1,), 0.3, 0.9))
def killed_after(request: pytest.FixtureRequest) -> float:
    return float(request.param)


@pytest.fixture
def node() -> Iterator[Node]:
    """A node that has never had a stream: it has not written to the disk yet that it serves any."""
    with rabbitmq_found.find()() as node:
        yield node


@pytest.fixture
def session(node: Node) -> SessionParameters:
    return SessionParameters(address=parse_url(url_of(node)), exchange="shop", timeout=PATIENT)


@asynccontextmanager
async def opened(session: SessionParameters) -> Any:
    broker = await open_broker(session)
    try:
        yield broker
    finally:
        with suppress(PalermoError):
            await broker.close()


async def again(session: SessionParameters, act: Callable[[Broker], Any], *, within: float) -> Any:
    """What it returns, tried again by a new session each time the broker takes the last one away."""
    watch = Stopwatch()
    while True:
        try:
            async with opened(session) as broker:
                return await act(broker)
        except BrokerUnavailable:
            assert not watch.is_over(within)


async def all_of_mail(broker: Broker) -> Page:
    """All jobs of the queue. RabbitMQ takes back what a session held a moment after the session has ended."""
    page = await broker.browse("mail")
    missing = {"first", "second", "of a tenant"} - {one.id for one in page.messages}
    if missing:
        raise BrokerUnavailable(f"{missing} may be on their way back.")
    return page


def job(id: str, **more: Any) -> Message:
    return Message(id=id, job="shop.send", body=b"[]", **{"queue": "mail", **more})


def event(id: str) -> Event:
    now = {"created_at": time.time(), "queued_at": time.time()}
    return Event("order.new", Message(id=id, queue="", job="", body=b"{}", **now))


async def use(broker: Broker) -> None:
    """All that writes to streams and to new queues."""
    leading = asyncio.ensure_future(broker.run_scheduler())
    try:
        await broker.change_recurring(EntryChange.put(entry("nightly", every=3_600)))
        await broker.publish(job("first"))
        await broker.publish(job("of a tenant", tenant="acme"))
        await broker.publish(job("later", run_at=time.time() + 3_600))
        await broker.publish(job("other", queue="images"))
        await broker.cancel(["other"])
        await broker.pause("mail")
    finally:
        leading.cancel()
        await asyncio.wait({leading})


async def kill(node: Node, broker: Broker) -> None:
    """Kill RabbitMQ under a session, and start it again."""
    await asyncio.to_thread(node.kill9)
    with suppress(PalermoError):
        await broker.close()
    await asyncio.to_thread(node.start)


@pytest.mark.parametrize("turn", range(TIMES))
async def test_after_a_kill_soon_after_first_use_queues_are_listed_without_a_worker(
    node: Node, session: SessionParameters, killed_after: float, turn: int
) -> None:
    broker = await open_broker(session)
    await use(broker)
    await asyncio.sleep(killed_after)
    await kill(node, broker)

    watch = Stopwatch()
    await again(session, lambda broker: broker.publish(job("second")), within=ENQUEUED_WITHIN)
    assert not watch.is_over(ENQUEUED_WITHIN)
    watch = Stopwatch()
    queues = await again(session, lambda broker: broker.queues(), within=LISTED_WITHIN)
    assert not watch.is_over(LISTED_WITHIN)

    assert "mail" in {queue.name for queue in queues}
    page = await again(session, all_of_mail, within=LISTED_WITHIN)
    found = [one.id for one in page.messages]
    # Once the leader has moved it out of its tenant's queue, it may be there twice, like the one below.
    assert set(found) - {"first", "second"} == {"of a tenant"}
    assert sorted(id for id in found if id != "of a tenant") == ["first", "second"]
    images = await again(session, lambda broker: broker.browse("images"), within=LISTED_WITHIN)
    assert [one.id for one in images.messages] == ["other"]
    async with opened(session) as broker:
        leading = asyncio.ensure_future(broker.run_scheduler())
        assert [entry.name for entry in await broker.recurring()] == ["nightly"]
        # It may be there twice: RabbitMQ forgets acknowledgements of its last moment.
        assert {one.id for one in (await broker.scheduled(ScheduledFilter())).messages} == {"later"}
        leading.cancel()
        await asyncio.wait({leading})


async def test_a_pause_after_such_a_kill_holds_for_the_next_session(node: Node, session: SessionParameters) -> None:
    broker = await open_broker(session)
    await use(broker)
    await kill(node, broker)

    await again(session, lambda broker: broker.pause("images"), within=2 * LISTED_WITHIN)

    queues = await again(session, lambda broker: broker.queues(), within=LISTED_WITHIN)
    # What was paused before is paused still, if RabbitMQ wrote it in time.
    assert "images" in [queue.name for queue in queues if queue.paused]


async def test_a_worker_goes_on_when_all_streams_are_broken(node: Node, session: SessionParameters) -> None:
    broker = await open_broker(session)
    await use(broker)
    await kill(node, broker)

    async def run_all(broker: Broker) -> str:
        consumer = await consume(broker, "*")
        async with asyncio.timeout(LISTED_WITHIN):
            delivery = await consumer.receive(1)
        return delivery.message.id

    await again(session, lambda broker: broker.publish(job("second")), within=ENQUEUED_WITHIN)
    await again(session, run_all, within=2 * LISTED_WITHIN)


async def test_groups_get_events_while_the_event_stream_is_broken(node: Node, session: SessionParameters) -> None:
    session = replace(session, keep_events=True)
    group = Subscription(group="mail", queue=group_queue(session.exchange, session.prefix, "mail"), topics=("order.*",))
    broker = await open_broker(session)
    await broker.events.subscribe(group)
    await broker.events.publish(event("before"))
    assert await broker.events.kept() == 1
    await kill(node, broker)

    await again(session, lambda broker: broker.events.publish(event("after")), within=2 * ENQUEUED_WITHIN)

    # As its worker does when it starts.
    await again(session, lambda broker: broker.events.subscribe(group), within=2 * LISTED_WITHIN)
    queues = await again(session, lambda broker: broker.queues(), within=LISTED_WITHIN)
    assert [one.pending for one in queues if one.name == group.queue] == [2]
    groups = await again(session, lambda broker: broker.events.subscriptions(), within=LISTED_WITHIN)
    assert [one.group for one in groups] == ["mail"]

    async def keep(broker: Broker) -> None:
        await broker.events.publish(event("kept"))
        if not await broker.events.kept():
            raise BrokerUnavailable("The events are not kept yet.")

    await again(session, keep, within=2 * LISTED_WITHIN)
