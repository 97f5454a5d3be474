"""The quick ways of the embedded broker: into the file by the thread that enqueues, out of it without a task."""

import asyncio
import contextlib
import os
import sqlite3
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from palermo.brokers.sqlite import SqliteBroker
from palermo.brokers.sqlite.consumer import SqliteConsumer
from palermo.brokers.sqlite.file import store
from palermo.contract.broker import Broker, Delivery, SessionParameters, open_broker
from palermo.core.address import parse_url
from palermo.core.lifecycle import Ack, Fail, fail
from palermo.core.message import Message
from palermo.core.queue_selection import QueueSelection
from palermo.errors import BrokerUnavailable, DeliveryLost, PalermoError, PublishRefused
from tests.contract.limiting import limited
from tests.contract.tools import FAILURE, Report, consume, counts, ids, message, messages, take, until
from tests.contract.unique_jobs import keyed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def broker(runner: asyncio.Runner, path: Path) -> Iterator[Broker]:
    opened = runner.run(open_broker(SessionParameters(address=parse_url(f"sqlite:///{path}"))))
    yield opened
    runner.run(opened.close())


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

    async def close(self) -> None:
        for call in self.receiving.values():
            call.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await call


async def quick(broker: Broker, queues: str = "jobs", count: int = 1) -> Slots:
    selection = QueueSelection(tuple(queues.split(",")))
    consumer = await broker.consume(selection, slots=count, tag="pid:7@example", report=Report(queues))
    assert isinstance(consumer, SqliteConsumer)
    return Slots(consumer, count)


async def given(slots: Slots, *expected: str) -> None:
    async def seen() -> list[str]:
        return slots.ids

    await until(seen, list(expected))


async def test_plain_jobs_come_one_by_one_in_their_order_while_receive_waits(broker: Broker) -> None:
    await broker.publish_many(messages(3))
    slots = await quick(broker)

    for number in range(3):
        await given(slots, *(f"jobs-{each}" for each in range(number + 1)))
        assert await counts(broker) == (2 - number, 1)
        slots.consumer.acknowledge(slots.taken[-1])

    await until(lambda: counts(broker), (0, 0))
    assert not slots.receiving[1].done()
    await broker.publish(message("late"))
    await given(slots, "jobs-0", "jobs-1", "jobs-2", "late")
    await slots.close()


async def test_what_ends_in_one_turn_is_removed_and_followed_in_one_transaction(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RENEW_EVERY", 600.0)  # it is a transaction as well
    await broker.publish_many(messages(4))
    slots = await quick(broker, count=2)
    await given(slots, "jobs-0", "jobs-1")
    committed: list[str] = []
    assert isinstance(broker, SqliteBroker)
    broker._store._connection.set_trace_callback(committed.append)

    for delivery in slots.taken[:2]:
        slots.consumer.acknowledge(delivery)
    await given(slots, "jobs-0", "jobs-1", "jobs-2", "jobs-3")

    broker._store._connection.set_trace_callback(None)
    assert committed.count("commit") == 1
    assert {delivery.slot for delivery in slots.taken[2:]} == {1, 2}
    await slots.close()


async def test_the_higher_queue_goes_first_on_the_quick_way_too(broker: Broker) -> None:
    await broker.publish(message("low-1", "low"))
    await broker.publish(message("low-2", "low"))
    slots = await quick(broker, "high,low")
    await given(slots, "low-1")
    await broker.publish(message("high-1", "high"))

    slots.consumer.acknowledge(slots.taken[-1])

    await given(slots, "low-1", "high-1")
    await slots.close()


@pytest.mark.parametrize(
    "other",
    [
        keyed("second"),
        limited("second"),
    ],
    ids=["keyed", "limited"],
)
async def test_a_job_that_needs_a_question_is_returned_by_receive(broker: Broker, other: Message) -> None:
    await broker.publish(message("first", other.queue))
    await broker.publish(other)
    slots = await quick(broker, other.queue)
    await given(slots, "first")

    slots.consumer.acknowledge(slots.taken[0])
    delivery = await slots.receiving[1]

    assert delivery.message.id == other.id
    await slots.consumer.settle(delivery, Ack())


async def test_a_job_that_was_cancelled_meanwhile_is_returned_by_receive(broker: Broker) -> None:
    await broker.publish_many(messages(2))
    slots = await quick(broker)
    await given(slots, "jobs-0")
    await broker.cancel(["jobs-1"], by="me")

    slots.consumer.acknowledge(slots.taken[0])
    delivery = await slots.receiving[1]

    assert (delivery.message.id, delivery.cancelled_by) == ("jobs-1", "me")


async def test_a_job_taken_the_quick_way_may_fail(broker: Broker) -> None:
    await broker.publish_many(messages(2))
    slots = await quick(broker)
    await given(slots, "jobs-0")
    failed = fail(slots.taken[0].message, FAILURE, worker="w")

    await slots.consumer.settle(slots.taken[0], Fail(failed, "failed"))

    await given(slots, "jobs-0", "jobs-1")
    assert await ids(broker, "failed") == ["jobs-0"]
    await slots.close()


async def test_acknowledging_twice_takes_nobody_elses_job(broker: Broker) -> None:
    await broker.publish_many(messages(2))
    slots = await quick(broker)
    await given(slots, "jobs-0")
    slots.consumer.acknowledge(slots.taken[0])

    with pytest.raises(DeliveryLost):
        slots.consumer.acknowledge(slots.taken[0])

    await given(slots, "jobs-0", "jobs-1")
    await slots.close()


async def test_what_was_taken_and_not_acknowledged_goes_back_with_its_worker(broker: Broker) -> None:
    await broker.publish_many(messages(2))
    slots = await quick(broker)
    await given(slots, "jobs-0")

    await slots.close()
    await slots.consumer.close()

    delivery = await take(await consume(broker))
    assert (delivery.message.id, delivery.redelivered) == ("jobs-0", True)


async def test_a_slot_that_stops_receiving_gets_no_job_for_the_one_it_ends(broker: Broker) -> None:
    await broker.publish_many(messages(2))
    slots = await quick(broker)
    await given(slots, "jobs-0")

    slots.consumer.acknowledge(slots.taken[0])
    slots.receiving[1].cancel()

    await until(lambda: counts(broker), (1, 0))
    assert slots.ids == ["jobs-0"]
    assert not (await take(await consume(broker))).redelivered


async def test_while_another_process_writes_the_ordinary_way_waits_for_it(broker: Broker, path: Path) -> None:
    await broker.publish_many(messages(2))
    slots = await quick(broker)
    await given(slots, "jobs-0")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("begin immediate")

    slots.consumer.acknowledge(slots.taken[0])
    await asyncio.sleep(0)
    other.execute("rollback")

    await given(slots, "jobs-0", "jobs-1")
    other.close()
    await slots.close()


def stores(broker: Broker, one: Message) -> bool:
    """Whether the calling thread stores the message itself, and is told so before the call returns."""
    told: list[PalermoError | None] = []
    begun = broker.try_publish(one, told.append)
    assert told == ([None] if begun else [])
    return begun


async def thread_stores(broker: Broker, one: Message) -> bool:
    return await asyncio.to_thread(stores, broker, one)


async def test_a_thread_stores_a_plain_job_by_itself(broker: Broker) -> None:
    assert not await thread_stores(broker, message("first")), "its queue is to be made"
    await broker.publish(message("first"))

    assert await thread_stores(broker, message("second"))

    assert await ids(broker) == ["first", "second"]


@pytest.mark.parametrize("more", [{"run_at": 2.0**32}, {"tenant": "acme"}], ids=["delayed", "tenant"])
async def test_a_job_that_is_not_plain_is_left_to_the_session(broker: Broker, more: dict[str, object]) -> None:
    await broker.publish(message("first"))

    assert not await thread_stores(broker, message("second", **more))

    assert await ids(broker) == ["first"]


async def test_a_job_for_a_busy_file_is_left_to_the_session(broker: Broker, path: Path) -> None:
    await broker.publish(message("first"))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("begin immediate")

    assert not await thread_stores(broker, message("second"))

    other.close()
    assert await ids(broker) == ["first"]


async def test_threads_store_side_by_side(broker: Broker) -> None:
    await broker.publish(message("first"))
    stored: list[str] = []

    def store(thread: int) -> None:
        for number in range(20):
            one = message(f"{thread}-{number}")
            if stores(broker, one):
                stored.append(one.id)

    threads = [threading.Thread(target=store, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)

    found = await ids(broker)
    assert sorted(found) == sorted(["first", *stored])
    for number in range(4):
        own = [id for id in found if id.startswith(f"{number}-")]
        assert own == sorted(own, key=lambda id: int(id.partition("-")[2]))


async def test_a_session_that_is_closed_stores_nothing_more(broker: Broker) -> None:
    await broker.publish(message("first"))
    await broker.close()

    assert not await thread_stores(broker, message("second"))


async def test_jobs_of_coroutines_share_a_transaction_in_order(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "RENEW_EVERY", 600.0)  # it is a transaction as well
    await broker.publish(message("first"))
    assert not stores(broker, message("alone")), "the session's own thread stores none by itself"
    committed: list[str] = []
    assert isinstance(broker, SqliteBroker)
    broker._store._connection.set_trace_callback(committed.append)

    await asyncio.gather(*(broker.publish(one) for one in messages(20)))

    broker._store._connection.set_trace_callback(None)
    assert committed.count("commit") == 1
    assert await ids(broker) == ["first", *(one.id for one in messages(20))]


async def test_a_job_that_the_file_refuses_is_refused_alone(broker: Broker) -> None:
    jobs = [message("first"), message("bad \udc80"), message("last")]

    errors = await asyncio.gather(*(broker.publish(one) for one in jobs), return_exceptions=True)

    assert [type(error) for error in errors] == [type(None), PublishRefused, type(None)]
    assert await ids(broker) == ["first", "last"]


async def test_a_coroutine_that_is_cancelled_before_its_turn_stores_no_job(broker: Broker) -> None:
    enqueuing = [asyncio.ensure_future(broker.publish(one)) for one in messages(3)]
    await asyncio.sleep(0)
    enqueuing[0].cancel()
    enqueuing[1].cancel()

    found = await asyncio.gather(*enqueuing, return_exceptions=True)

    assert [type(one) for one in found] == [asyncio.CancelledError, asyncio.CancelledError, type(None)]
    assert await ids(broker) == ["jobs-2"]


async def test_all_coroutines_hear_that_the_session_is_closed(broker: Broker) -> None:
    await broker.close()

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
async def test_a_file_that_is_no_database_any_more_is_not_left_open(broker: Broker, path: Path) -> None:
    await broker.publish(message("first"))
    assert is_open(path)
    replace_by_text(path)

    assert not await thread_stores(broker, message("second"))

    assert not is_open(path)
