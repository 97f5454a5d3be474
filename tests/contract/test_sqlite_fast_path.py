"""The quick ways of the embedded broker: into the file by the thread that enqueues, out of it without a task."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from palermo.brokers.sqlite import SqliteBroker
from palermo.brokers.sqlite.consumer import SqliteConsumer
from palermo.brokers.sqlite.file import store
from palermo.contract.broker import Delivery
from palermo.core.lifecycle import Ack, Fail, fail
from palermo.core.message import Message
from palermo.core.queue_selection import QueueSelection
from palermo.errors import BrokerUnavailable, DeliveryLost, PalermoError, PublishRefused
from tests.contract.files import locked
from tests.contract.limiting import limited
from tests.contract.tools import FAILURE, Report, consume, counts, ids, message, messages, take, until
from tests.contract.unique_jobs import keyed


class Slots:
    """Slots of a worker that take all plain jobs they are shown, and write down which."""

    def __init__(self, consumer: SqliteConsumer, count: int = 1) -> None:
        self.consumer = consumer
        self.taken: list[Delivery] = []
        self.receiving = {
            slot: asyncio.ensure_future(consumer.receive(slot, self._take)) for slot in range(1, count + 1)
        }

    def _take(self, delivery: Delivery) -> bool:
        self.taken.append(delivery)
        return True

    @property
    def ids(self) -> list[str]:
        return [delivery.message.id for delivery in self.taken]


Quick = Callable[..., Awaitable[Slots]]


@pytest.fixture
def quick(runner: asyncio.Runner, broker: SqliteBroker) -> Iterator[Quick]:
    """Starts a worker whose slots take jobs the quick way, and ends them after the test."""
    calls: list[asyncio.Future[Delivery]] = []

    async def quick(queues: str = "jobs", count: int = 1) -> Slots:
        selection = QueueSelection(tuple(queues.split(",")))
        consumer = await broker.consume(selection, slots=count, tag="pid:7@example", report=Report(queues))
        assert isinstance(consumer, SqliteConsumer)
        slots = Slots(consumer, count)
        calls.extend(slots.receiving.values())
        return slots

    yield quick

    async def end() -> None:
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    runner.run(end())


@pytest.fixture
def slots(runner: asyncio.Runner, broker: SqliteBroker, quick: Quick) -> Slots:
    """One slot that has taken the first of two jobs."""

    async def begun() -> Slots:
        await broker.publish_many(messages(2))
        slots = await quick()
        await given(slots, "jobs-0")
        return slots

    return runner.run(begun())


async def given(slots: Slots, *expected: str) -> None:
    await until(lambda: slots.ids, list(expected))


async def test_plain_jobs_come_one_by_one_in_order_while_receive_waits(broker: SqliteBroker, quick: Quick) -> None:
    await broker.publish_many(messages(3))
    slots = await quick()

    for number in range(3):
        await given(slots, *(f"jobs-{each}" for each in range(number + 1)))
        assert await counts(broker) == (2 - number, 1)
        slots.consumer.acknowledge(slots.taken[-1])

    await until(lambda: counts(broker), (0, 0))
    assert not slots.receiving[1].done()
    await broker.publish(message("late"))
    await given(slots, "jobs-0", "jobs-1", "jobs-2", "late")


async def test_ends_of_a_turn_share_a_commit(
    broker: SqliteBroker, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RENEW_EVERY", 600.0)  # it is a transaction as well
    await broker.publish_many(messages(4))
    slots = await quick(count=2)
    await given(slots, "jobs-0", "jobs-1")
    committed: list[str] = []
    broker._store._connection.set_trace_callback(committed.append)

    for delivery in slots.taken[:2]:
        slots.consumer.acknowledge(delivery)
    await given(slots, "jobs-0", "jobs-1", "jobs-2", "jobs-3")

    broker._store._connection.set_trace_callback(None)
    assert committed.count("commit") == 1
    assert {delivery.slot for delivery in slots.taken[2:]} == {1, 2}


async def test_the_higher_queue_goes_first_on_the_quick_way_too(broker: SqliteBroker, quick: Quick) -> None:
    await broker.publish(message("low-1", "low"))
    await broker.publish(message("low-2", "low"))
    slots = await quick("high,low")
    await given(slots, "low-1")
    await broker.publish(message("high-1", "high"))

    slots.consumer.acknowledge(slots.taken[-1])

    await given(slots, "low-1", "high-1")


@pytest.mark.parametrize(
    "other", [keyed("second"), limited("second"), message("second")], ids=["keyed", "limited", "cancelled"]
)
async def test_a_job_that_needs_a_question_is_returned_by_receive(
    request: pytest.FixtureRequest, broker: SqliteBroker, quick: Quick, other: Message
) -> None:
    await broker.publish_many([message("first"), other])
    slots = await quick()
    await given(slots, "first")
    by = "me" if "cancelled" in request.node.name else ""
    if by:
        await broker.cancel(["second"], by=by)

    slots.consumer.acknowledge(slots.taken[0])
    delivery = await slots.receiving[1]

    assert (delivery.message.id, delivery.cancelled_by) == ("second", by)
    await slots.consumer.settle(delivery, Ack())


async def test_a_job_taken_the_quick_way_may_fail(broker: SqliteBroker, slots: Slots) -> None:
    failed = fail(slots.taken[0].message, FAILURE, worker="w")

    await slots.consumer.settle(slots.taken[0], Fail(failed, "failed"))

    await given(slots, "jobs-0", "jobs-1")
    assert await ids(broker, "failed") == ["jobs-0"]


async def test_acknowledging_twice_takes_nobody_elses_job(slots: Slots) -> None:
    slots.consumer.acknowledge(slots.taken[0])

    with pytest.raises(DeliveryLost):
        slots.consumer.acknowledge(slots.taken[0])

    await given(slots, "jobs-0", "jobs-1")


async def test_what_was_taken_and_not_acknowledged_goes_back(broker: SqliteBroker, slots: Slots) -> None:
    await slots.consumer.close()

    delivery = await take(await consume(broker))
    assert (delivery.message.id, delivery.redelivered) == ("jobs-0", True)


async def test_a_slot_that_stops_receiving_gets_no_job_for_the_one_it_ends(broker: SqliteBroker, slots: Slots) -> None:
    slots.consumer.acknowledge(slots.taken[0])
    slots.receiving[1].cancel()

    await until(lambda: counts(broker), (1, 0))
    assert slots.ids == ["jobs-0"]
    assert not (await take(await consume(broker))).redelivered


async def test_while_another_process_writes_the_ordinary_way_waits_for_it(slots: Slots, path: Path) -> None:
    with locked(path):
        slots.consumer.acknowledge(slots.taken[0])
        await asyncio.sleep(0)

    await given(slots, "jobs-0", "jobs-1")


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
