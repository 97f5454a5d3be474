"""The quick ways of the embedded broker: into the file by the thread that enqueues, out of it without a task."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from palermo.brokers.sqlite import SqliteBroker
from palermo.brokers.sqlite.file import store
from palermo.core.message import Message
from palermo.errors import BrokerUnavailable, PalermoError, PublishRefused
from tests.contract.files import locked
from tests.contract.offering import Start
from tests.contract.tools import counts, ids, message, messages, until
from tests.contract.workers import consume, take


async def test_a_turns_ends_share_a_commit(broker: SqliteBroker, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "RENEW_EVERY", 600.0)  # it is a transaction as well
    await broker.publish_many(messages(4))
    slots = await start(broker, count=2)
    await slots.given("jobs-0", "jobs-1")
    committed: list[str] = []
    broker._store._connection.set_trace_callback(committed.append)

    for delivery in slots.taken[:2]:
        slots.consumer.acknowledge(delivery)
    await slots.given("jobs-0", "jobs-1", "jobs-2", "jobs-3")

    broker._store._connection.set_trace_callback(None)
    assert committed.count("commit") == 1
    assert {delivery.slot for delivery in slots.taken[2:]} == {1, 2}


async def test_a_slot_that_stops_gets_no_job_for_the_one_it_ends(broker: SqliteBroker, start: Start) -> None:
    await broker.publish_many(messages(2))
    slots = await start(broker)

    slots.consumer.acknowledge(await slots.given("jobs-0"))
    slots.receiving[1].cancel()

    await until(lambda: counts(broker), (1, 0))
    await slots.given("jobs-0")
    assert not (await take(await consume(broker))).redelivered


async def test_the_ordinary_way_waits_for_the_writer(broker: SqliteBroker, start: Start, path: Path) -> None:
    await broker.publish_many(messages(2))
    slots = await start(broker)
    first = await slots.given("jobs-0")

    with locked(path):
        slots.consumer.acknowledge(first)
        await asyncio.sleep(0)

    await slots.given("jobs-0", "jobs-1")


def stores(broker: SqliteBroker, one: Message) -> bool:
    """Whether the calling thread stores the message itself, and is told so before the call returns."""
    told: list[PalermoError | None] = []
    begun = broker.try_publish(one, told.append)
    assert told == ([None] if begun else [])
    return begun


async def thread_stores(broker: SqliteBroker, one: Message) -> bool:
    return await asyncio.to_thread(stores, broker, one)


async def test_a_thread_stores_plain_jobs_by_itself_and_no_others(broker: SqliteBroker, path: Path) -> None:
    assert not await thread_stores(broker, message("first")), "its queue is to be made"
    await broker.publish(message("first"))

    assert await thread_stores(broker, message("second"))

    assert not await thread_stores(broker, message("delayed", run_at=2.0**32))
    assert not await thread_stores(broker, message("of a tenant", tenant="acme"))
    with locked(path):
        assert not await thread_stores(broker, message("for a busy file"))
    assert await ids(broker) == ["first", "second"]


async def test_threads_store_side_by_side(broker: SqliteBroker) -> None:
    await broker.publish(message("first"))
    stored: list[str] = []

    def store(thread: int) -> None:
        for number in range(20):
            one = message(f"{thread}-{number}")
            if stores(broker, one):
                stored.append(one.id)

    await asyncio.gather(*(asyncio.to_thread(store, number) for number in range(4)))

    found = await ids(broker)
    assert sorted(found) == sorted(["first", *stored])
    for number in range(4):
        own = [id for id in found if id.startswith(f"{number}-")]
        assert own == sorted(own, key=lambda id: int(id.partition("-")[2]))


async def test_coroutines_share_a_transaction_in_order(broker: SqliteBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "RENEW_EVERY", 600.0)  # it is a transaction as well
    await broker.publish(message("first"))
    assert not stores(broker, message("alone")), "the session's own thread stores none by itself"
    committed: list[str] = []
    broker._store._connection.set_trace_callback(committed.append)

    await asyncio.gather(*(broker.publish(one) for one in messages(20)))

    broker._store._connection.set_trace_callback(None)
    assert committed.count("commit") == 1
    assert await ids(broker) == ["first", *(one.id for one in messages(20))]


async def test_a_job_that_the_file_refuses_is_refused_alone(broker: SqliteBroker) -> None:
    jobs = [message("first"), message("bad \udc80"), message("last")]

    errors = await asyncio.gather(*(broker.publish(one) for one in jobs), return_exceptions=True)

    assert [type(error) for error in errors] == [type(None), PublishRefused, type(None)]
    assert await ids(broker) == ["first", "last"]


async def test_a_coroutine_that_is_cancelled_before_its_turn_stores_no_job(broker: SqliteBroker) -> None:
    enqueuing = [asyncio.ensure_future(broker.publish(one)) for one in messages(3)]
    await asyncio.sleep(0)
    enqueuing[0].cancel()
    enqueuing[1].cancel()

    found = await asyncio.gather(*enqueuing, return_exceptions=True)

    assert [type(one) for one in found] == [asyncio.CancelledError, asyncio.CancelledError, type(None)]
    assert await ids(broker) == ["jobs-2"]


async def test_who_enqueues_on_a_closed_session_hears_of_it(broker: SqliteBroker) -> None:
    await broker.publish(message("first"))
    await broker.close()

    assert not await thread_stores(broker, message("second"))

    errors = await asyncio.gather(*(broker.publish(one) for one in messages(3)), return_exceptions=True)

    assert [type(error) for error in errors] == 3 * [BrokerUnavailable]
    assert len({id(error) for error in errors}) == 3, "tracebacks of all would add up in one"


def replace_by_text(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        if file.is_file():
            file.unlink()
    path.write_text("my diary" * 1_000)


def is_open(path: Path) -> bool:
    """Whether this process has the file open."""
    return str(path) in [os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]


@pytest.mark.skipif(sys.platform != "linux", reason="it looks into Linux's /proc")
async def test_a_file_that_is_no_database_any_more_is_not_left_open(broker: SqliteBroker, path: Path) -> None:
    await broker.publish(message("first"))
    assert is_open(path)
    replace_by_text(path)

    assert not await thread_stores(broker, message("second"))

    assert not is_open(path)
