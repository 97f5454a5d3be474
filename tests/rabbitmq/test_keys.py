"""The ledger of keys: leaders killed at any step of its work lose no state, and no copy of a job runs beside it."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pika
import pytest

from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.state_log import Record, StateLog
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.consuming.push import Slot
from palermo.brokers.rabbitmq.leadership import key_client, leader_client
from palermo.brokers.rabbitmq.publishing import ledger as ledgers
from palermo.brokers.rabbitmq.publishing import ledger_records
from palermo.brokers.rabbitmq.publishing.ledger import Ledger, Table
from palermo.brokers.rabbitmq.publishing.ledger_records import FORMAT, EndRecord
from palermo.brokers.rabbitmq.unique import orphaned_keys, unique_keys
from palermo.brokers.rabbitmq.unique.known_keys import KeyChanges, in_turns
from palermo.brokers.rabbitmq.unique.run_ends import key_queue
from palermo.brokers.rabbitmq.unique.unique_keys import UniqueKeys
from palermo.contract.broker import SessionParameters
from palermo.contract.sweep import Move
from palermo.core.instants import Instants
from palermo.core.job_edit import JobEdit
from palermo.core.lifecycle import Ack, Release
from palermo.core.message import Message
from palermo.core.plain import Plain
from palermo.core.queue_selection import PausedQueues, QueueSelection
from palermo.core.topology import amqp_queue, internal
from palermo.core.unique_keys import Key
from palermo.errors import BrokerUnavailable, LeaderUnavailable, PalermoError
from tests.contract.timing import time_kept
from tests.contract.tools import counts, ids, message, stopped, until
from tests.contract.unique_jobs import WAITS, ask, begun, holder_place, holders, keyed
from tests.contract.workers import Report, consume, take
from tests.rabbitmq.conftest import Open, connected, ids_in, outbox_on


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> list[Ledger]:
    """The logs that leaders of this process open."""
    found, begun = list[Ledger](), Ledger.__init__

    def begin(log: Ledger, *given: Any, **named: Any) -> None:
        begun(log, *given, **named)
        found.append(log)

    monkeypatch.setattr(Ledger, "__init__", begin)
    return found


async def test_jobs_with_keys_are_enqueued_while_the_leader_writes_all_keys_anew(
    broker: RabbitmqBroker, another: Open, logs: list[Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    writes, go_on, append = asyncio.Event(), asyncio.Event(), StateLog.append

    async def slow(log: StateLog, *records: Any) -> list[Record]:
        if any("refused" not in record for record in records):
            writes.set()
            await go_on.wait()
        return await append(log, *records)

    monkeypatch.setattr(StateLog, "append", slow)
    monkeypatch.setattr(ledger_records, "_PART", 3)
    monkeypatch.setattr(unique_keys, "TIDY_EVERY", 0.1)
    async with time_kept(broker):
        for number in range(8):
            await ask(broker, keyed(f"before {number}"), key=f"before {number}")
        monkeypatch.setattr(ledgers, "_MOST", 10)
        await until(writes.is_set)
        for number in range(4):
            await ask(broker, keyed(f"beside {number}"), key=f"beside {number}")
        await broker.keys.free(["before 0", "beside 0"])
        monkeypatch.setattr(ledgers, "_MOST", 1_000_000)
        go_on.set()
        await until(lambda: logs[0]._snapshot is not None and logs[0]._snapshot.done())
    await broker.close()

    left = [f"before {number}" for number in range(1, 8)] + [f"beside {number}" for number in range(1, 4)]
    assert sorted(await holders(await another())) == [(id, "waiting") for id in sorted(left)]


async def test_keys_are_free_after_their_queue_was_deleted(
    broker: RabbitmqBroker, connection: Connection, exchange: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with time_kept(broker):
        await ask(broker, keyed("a"))
        await connection.delete(key_queue(exchange))
        await until(lambda: "was deleted" in caplog.text)
        assert (await ask(broker, keyed("b"))).outcome == "stored"
        assert (await ask(broker, keyed("c"))).outcome == "duplicate"


async def test_no_job_is_published_whose_key_was_not_written(broker: RabbitmqBroker, logs: list[Ledger]) -> None:
    async with time_kept(broker):
        await ask(broker, keyed("first"), key="first")
        asyncio.get_running_loop().call_soon(logs[-1].drop_states)
        with pytest.raises(BrokerUnavailable):
            await logs[-1].commit({"second": Key(name="second", serial=1)}, [keyed("second")])

        # What was published before this job is in its queue by now.
        await ask(broker, keyed("third"), key="third")
        assert await ids(broker) == ["first", "third"]


async def test_the_log_is_shortened_while_requests_come_all_the_time(
    broker: RabbitmqBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader can hold 65,535 records: beyond that RabbitMQ sends none, and no request was answered."""
    forgotten, store = asyncio.Event(), UniqueKeys._store

    async def store_and_ask(keys: UniqueKeys, batch: Any) -> None:
        keys._ask(lambda _: None)
        await asyncio.sleep(0)
        await store(keys, batch)

    monkeypatch.setattr(UniqueKeys, "_store", store_and_ask)
    monkeypatch.setattr(KeyChanges, "forget", lambda _: forgotten.set())
    monkeypatch.setattr(unique_keys, "TIDY_EVERY", 0.1)
    async with time_kept(broker):
        await ask(broker, keyed("first"))
        await until(forgotten.is_set)


async def test_a_listing_looks_at_each_key_once(
    broker: RabbitmqBroker, another: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, current, shown = Counter[str](), UniqueKeys._current, [f"key {number}" for number in range(8)]

    def look(keys: UniqueKeys, name: str) -> Key:
        looks[name] += 1
        return current(keys, name)

    async with time_kept(broker):
        for name in reversed(shown):
            await ask(broker, keyed(name), key=name)
        await ask(broker, keyed("other"), key="other")
        monkeypatch.setattr(unique_keys, "in_turns", partial(in_turns, at_once=2))
        monkeypatch.setattr(key_client, "_PAGE", 2)
        monkeypatch.setattr(UniqueKeys, "_current", look)
        page = await (await another()).keys.page("key", offset=1, limit=100)

    assert [key.name for key in page.keys] == shown[1:]
    assert page.total == 8
    assert max(looks.values()) <= 2  # once for the number of all, and once for its page


# -- jobs that wait in a worker


async def test_a_queue_that_is_paused_while_a_slot_asks_for_its_next_job_is_left_alone(
    broker: RabbitmqBroker, another: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, find = asyncio.Event(), Slot._ask

    async def pause_and_ask(slot: Slot) -> Any:
        slot._source.pause(PausedQueues(names=frozenset({"jobs"})))
        await asyncio.sleep(0.05)
        found = await find(slot)
        asked.set()
        return found

    monkeypatch.setattr(Slot, "_ask", pause_and_ask)
    async with time_kept(broker):
        await ask(broker, keyed("first"))
        worker = await consume(await another())
        await worker.settle(await begun(worker), Ack())
        waiting = asyncio.ensure_future(take(worker))
        await until(asked.is_set)
        await broker.publish(message("stays"))
        await asyncio.sleep(0.2)

        assert await ids(broker) == ["stays"]
        assert await counts(broker) == (1, 0)
        await stopped(waiting)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When leaders of this process looked for orphaned keys, which they do without patience."""
    searches, suspects = list[float](), orphaned_keys.suspects

    async def search(*given: Any, **named: Any) -> orphaned_keys.Suspects:
        searches.append(named["now"])
        return await suspects(*given, **named, patience=0.0)

    monkeypatch.setattr(orphaned_keys, "LOOK_EVERY", 0.1)
    monkeypatch.setattr(orphaned_keys, "suspects", search)
    return searches


@pytest.mark.slow
async def test_a_running_workflow_keeps_its_key(
    broker: RabbitmqBroker, another: Open, channel: Any, searches: list[float]
) -> None:
    for id in ("flow", "lost"):
        await ask(broker, keyed(id, key=id), key=id)
    worker = await consume(await another())
    async with time_kept(broker):
        await worker.settle(await begun(worker), Ack(adds=WAITS))
        await worker.close()
        channel.queue_purge(amqp_queue(broker._exchange, "jobs"))

        await until(lambda: holders(broker), [("flow", "running")])
        searches.clear()
        await until(lambda: len(searches) > 3)
        assert await holders(broker) == [("flow", "running")]


@pytest.mark.slow
async def test_a_job_that_was_sent_ahead_to_a_worker_keeps_its_key(
    broker: RabbitmqBroker, another: Open, searches: list[float]
) -> None:
    for id in ("runs", "waits"):
        await ask(broker, keyed(id, key=id), key=id)
    worker = await consume(await another(), prefetch=2)
    async with time_kept(broker):
        running = await begun(worker)
        searches.clear()
        await until(lambda: len(searches) > 3)

        assert sorted(await holders(broker)) == [("runs", "running"), ("waits", "waiting")]
        await worker.settle(running, Ack())
        assert (await begun(worker)).duplicate_of == ""


@pytest.mark.slow
@pytest.mark.parametrize("scheduled", [False, True], ids=["waiting", "scheduled"])
async def test_a_job_that_its_new_queue_refuses_keeps_its_key_where_it_is(
    broker: RabbitmqBroker, exchange: str, channel: Any, *, scheduled: bool
) -> None:
    full = {"x-max-length": 0, "x-overflow": "reject-publish"}
    channel.queue_declare(f"{exchange}.full", durable=True, arguments=full)
    later = time.time() + 600
    await ask(broker, keyed("a", run_at=later if scheduled else None))
    edit = JobEdit(queue="full", run_at=time.time())

    def applied(one: Message) -> Move:
        return Move(edit.applied_to(one))

    async with time_kept(broker):
        move = partial(broker.edit_scheduled, "a", edit) if scheduled else partial(broker.sweep, "jobs", applied)
        with pytest.raises(PalermoError, match="the queue is full"):
            await move()

    assert await holder_place(broker) == ("jobs", pytest.approx(later, abs=0.01) if scheduled else None)


# -- copies of one job


def unsay(url: str, exchange: str) -> None:
    """Leave `~unique` as a leader does that is killed before it can say that its jobs are stored."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        kept = []
        while (got := channel.basic_get(key_queue(exchange)))[0] is not None:
            record = json.loads(got[2])
            if record.get("jobs"):
                kept.append((got[1], json.dumps({**record, "refused": None}).encode()))
            channel.basic_ack(got[0].delivery_tag)
        for properties, body in kept:
            channel.basic_publish("", key_queue(exchange), body, properties)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["queue", "worker"])
async def test_a_new_leader_doubles_none(broker: RabbitmqBroker, another: Open, rabbitmq_url: str, place: str) -> None:
    await ask(broker, keyed("a"))
    await broker.close()
    unsay(rabbitmq_url, broker._exchange)
    worker = await consume(await another())
    delivery = await take(worker) if place == "worker" else None

    others = await another()
    assert await holders(others) == [("a", "waiting")]

    if delivery is None:
        # A leader that looks for what it has handed over holds the job for that time.
        await until(lambda: ids(others), ["a"])
        delivery = await take(worker)
    else:
        assert await ids(others) == []
    started = await worker.admit(delivery)
    assert started is not None
    await worker.settle(started, Ack())
    await until(lambda: counts(others), (0, 0))


async def test_a_copy_waits_for_the_run(broker: RabbitmqBroker, another: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker that gets the copy asked the others before the run began, and so knows nothing of it."""
    monkeypatch.setattr(unique_keys, "_YOUNG", 3_600.0)
    async with time_kept(broker):
        await ask(broker, keyed("a"))
        shows_nothing = Report("jobs")
        session, jobs = await another(), QueueSelection.parse("jobs")
        first = await session.consume(jobs, slots=1, tag="first", report=shows_nothing)
        run = await first.admit(await take(first))
        assert run is not None
        await broker.publish(keyed("a"))
        second = await consume(await another(), report=Report("jobs", pid=4712))
        await second.settle(await take(second), Release())
        copy = await take(second)
        assert (copy.redelivered, copy.running_at) == (True, "")

        assert await second.admit(copy) is None

        await first.settle(run, Ack())
        assert await second.admit(await take(second)) is None
        await until(lambda: counts(broker), (0, 0))


@pytest.mark.parametrize("copy", [False, True])
async def test_a_job_that_came_back_starts_again_unless_its_worker_runs_a_copy(
    broker: RabbitmqBroker, another: Open, monkeypatch: pytest.MonkeyPatch, copy: bool
) -> None:
    monkeypatch.setattr(unique_keys, "_YOUNG", 0.0)
    async with time_kept(broker):
        await ask(broker, keyed("a"))
        first = await consume(await another())
        run = await first.admit(await take(first))
        assert run is not None
        run.token[0].raw.close()  # as RabbitMQ does to a job that takes too long
        second = await consume(await another(), report=Report("jobs", pid=4712))
        again = await take(second)
        assert again.running_at

        started = await second.admit(again, copy=copy)

        assert (started is None) is copy


# -- instants


def test_names_come_at_their_instants_and_in_their_order() -> None:
    instants = Instants()
    for name, instant in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("gone", 1.5), ("moved", 1.0)):
        instants.put(name, instant)
    instants.put("gone", None)
    instants.put("moved", 5.0)

    assert [instants.until(now) for now in (2.0, 2.0, 9.0)] == [["a", "b"], [], ["c", "moved"]]
    assert instants.first is None


def test_a_name_that_moves_very_often_takes_no_more_room() -> None:
    instants = Instants()
    instants.put("still", 7.0)
    for instant in range(20_000):
        instants.put("moving", 100.0 + instant)

    assert len(instants._heap) < 2_000
    assert instants.until(30_000.0) == ["still", "moving"]


# -- the ledger


class Number(Plain, frozen=True):
    """A state."""

    number: int


@asynccontextmanager
async def leading(session: SessionParameters, *, drops_copies: bool = True) -> AsyncIterator[Ledger[Number]]:
    """A ledger as a leader has it, which is not open yet."""
    async with connected(session, "leader") as connection:
        queue, arguments = internal(session.exchange, "ledger"), versions.arguments("classic", connection.version)
        table = Table(session.exchange, queue, arguments, Number.from_plain, drops_copies=drops_copies)
        yield Ledger(table, connection, outbox_on(connection, session))


#: What a commit and a snapshot store, in this order.
STORED = ("the batch", "the jobs", "the note that they are stored", "a part of a snapshot", "the end of a snapshot")


def stored_by(records: Sequence[Any]) -> str:
    """What these records are."""
    first = records[0]
    if "floor" in first:
        return STORED[4]
    if "refused" not in first:
        return STORED[3]
    return STORED[0] if "set" in first else STORED[2]


@pytest.mark.parametrize("drops_copies", [True, False], ids=["keys", "ticks"])
@pytest.mark.parametrize("step", [f"{when} {what}" for what in STORED for when in ("before", "after")])
async def test_a_leader_killed_at_any_step_leaves_its_states_and_each_job_once(
    broker: RabbitmqBroker, session: SessionParameters, monkeypatch: pytest.MonkeyPatch, step: str, drops_copies: bool
) -> None:
    append, publish, killed = StateLog.append, Ledger._publish, asyncio.Event()

    async def kill_at(here: str, ledger: Ledger[Number]) -> None:
        if here == step:
            ledger._connection.raw.abort()
            killed.set()
            raise BrokerUnavailable("killed")

    async with leading(session, drops_copies=drops_copies) as first:

        async def appending(log: StateLog, *records: Any) -> list[Record]:
            await kill_at(f"before {stored_by(records)}", first)
            found = await append(log, *records)
            await kill_at(f"after {stored_by(records)}", first)
            return found

        async def publishing(ledger: Ledger[Number], jobs: Sequence[Message]) -> dict[str, PalermoError]:
            await kill_at(f"before {STORED[1]}", first)
            refused = await publish(ledger, jobs)
            await kill_at(f"after {STORED[1]}", first)
            return refused

        async def lead() -> None:
            await first.commit({"new": Number(3), "gone": None}, [message("job")])
            monkeypatch.setattr(ledgers, "_MOST", 1)
            await first.tidy({"kept": Number(1), "new": Number(3)})

        await first.open()
        await first.commit({"kept": Number(1), "gone": Number(2)})
        with monkeypatch.context() as patch:
            patch.setattr(StateLog, "append", appending)
            patch.setattr(Ledger, "_publish", publishing)
            work = asyncio.ensure_future(lead())
            await killed.wait()
            await asyncio.wait({work})
            work.exception()

    async with leading(session, drops_copies=drops_copies) as second:
        states, _ = await second.open()
        old, new = {"kept": Number(1), "gone": Number(2)}, {"kept": Number(1), "new": Number(3)}
        assert states == new or step in ("before the batch", "before the jobs")
        assert states in (old, new)
        await until(lambda: ids_in(broker), ["job"] if states == new else [])


async def test_a_state_that_a_leader_cannot_read_outlives_its_snapshot(
    session: SessionParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with leading(session) as first:
        await first.open()
        await first.commit({"odd": Odd(1), "even": Number(2)})
    async with leading(session) as second:
        states, _ = await second.open()
        assert states == {"even": Number(2)}
        monkeypatch.setattr(ledgers, "_MOST", 1)
        await second.tidy(states)
        await until(lambda: second._snapshot is not None and second._snapshot.done())
    async with leading(session) as third:
        await third.open()
        assert third._unread == {"odd": {"odd": 1}}


class Odd(Plain, frozen=True):
    """A state that this version does not know."""

    odd: int


def in_next_format(end: EndRecord) -> bytes:
    return json.dumps({"format": FORMAT + 1, "end": end.to_plain()}).encode()


@pytest.mark.slow
async def test_an_old_leader_hands_over_to_one_that_knows_the_next_format(
    broker: RabbitmqBroker, another: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leader_client, "_PATIENCE", 3.0)
    async with time_kept(broker):
        await ask(broker, keyed("a"))
        monkeypatch.setattr(EndRecord, "encode", in_next_format)  # a worker of the next version
        worker = await consume(await another())
        await worker.settle(await begun(worker), Ack())
        await until(lambda: f"a record has format {FORMAT + 1}" in caplog.text)

        with pytest.raises(LeaderUnavailable, match="Start a worker of the version that wrote it"):
            await ask(await another(timeout=1.0), keyed("b"))

        monkeypatch.setattr(ledger_records, "FORMAT", FORMAT + 1)  # a leader of the next version
        assert (await ask(broker, keyed("c"))).outcome == "stored"
        assert await holders(broker) == [("c", "waiting")]
