"""The leader's log of keys is read in any order and written again beside commits; no copy of a job runs beside it."""

import asyncio
import json
from typing import Any

import pika
import pytest

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.state_log import Record, StateLog
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.publishing import ledger, ledger_records
from palermo.brokers.rabbitmq.publishing.ledger import Ledger
from palermo.brokers.rabbitmq.unique import orphaned_keys, unique_keys
from palermo.brokers.rabbitmq.unique.run_ends import key_queue
from palermo.core.instants import Instants
from palermo.core.lifecycle import Ack, Release
from palermo.core.queue_selection import QueueSelection
from palermo.core.unique_keys import Key
from palermo.errors import BrokerUnavailable
from tests.contract.timing import time_kept
from tests.contract.tools import counts, ids, until
from tests.contract.unique_jobs import ask, begun, holders, keyed
from tests.contract.workers import Report, Worker, consume, take
from tests.helpers import HANGS
from tests.rabbitmq.conftest import Open, becomes


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
    monkeypatch.setattr(unique_keys, "_TIDY_EVERY", 0.1)
    async with time_kept(broker):
        for number in range(8):
            await ask(broker, keyed(f"before {number}"), key=f"before {number}")
        monkeypatch.setattr(ledger, "_MOST", 10)
        async with asyncio.timeout(HANGS):
            await writes.wait()
        for number in range(4):
            await ask(broker, keyed(f"beside {number}"), key=f"beside {number}")
        await broker.keys.free(["before 0", "beside 0"])
        monkeypatch.setattr(ledger, "_MOST", 1_000_000)
        go_on.set()
        await becomes(lambda: logs[0]._snapshot is not None and logs[0]._snapshot.done())
    await broker.close()

    left = [f"before {number}" for number in range(1, 8)] + [f"beside {number}" for number in range(1, 4)]
    assert sorted(await holders(await another())) == [(id, "waiting") for id in sorted(left)]


async def test_keys_are_free_after_their_queue_was_deleted(
    broker: RabbitmqBroker, connection: Connection, exchange: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with time_kept(broker):
        await ask(broker, keyed("a"))
        await connection.delete(key_queue(exchange))
        await becomes(lambda: "was deleted" in caplog.text)
        assert (await ask(broker, keyed("b"))).outcome == "stored"
        assert (await ask(broker, keyed("c"))).outcome == "duplicate"


async def test_no_job_is_published_whose_key_was_not_written(broker: RabbitmqBroker, logs: list[Ledger]) -> None:
    async with time_kept(broker):
        await ask(broker, keyed("first"), key="first")
        asyncio.get_running_loop().call_soon(logs[-1].let_go)
        with pytest.raises(BrokerUnavailable):
            await logs[-1].commit({"second": Key(name="second", serial=1)}, [keyed("second")])

        # What was published before this job is in its queue by now.
        await ask(broker, keyed("third"), key="third")
        assert await ids(broker) == ["first", "third"]


# -- jobs that wait in a worker


async def test_a_job_that_was_sent_ahead_to_a_worker_keeps_its_key(
    broker: RabbitmqBroker, another: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches, suspects = list[float](), orphaned_keys.suspects

    async def search(*given: Any, **named: Any) -> orphaned_keys.Suspects:
        searches.append(named["now"])
        return await suspects(*given, **named, patience=0.0)

    monkeypatch.setattr(orphaned_keys, "LOOK_EVERY", 0.1)
    monkeypatch.setattr(orphaned_keys, "suspects", search)
    for id in ("runs", "waits"):
        await ask(broker, keyed(id, key=id), key=id)
    selection = QueueSelection.parse("jobs")
    source = await (await another()).consume(selection, slots=1, tag="w", report=(report := Report("jobs")), prefetch=2)
    worker = Worker(source, report)
    async with time_kept(broker):
        running = await begun(worker)
        searches.clear()
        await becomes(lambda: len(searches) > 3)

        assert sorted(await holders(broker)) == [("runs", "running"), ("waits", "waiting")]
        await worker.settle(running, Ack())
        assert (await begun(worker)).duplicate_of == ""


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

    assert instants.first == 1.0
    assert instants.until(2.0) == ["a", "b"]
    assert instants.until(2.0) == []
    assert instants.until(9.0) == ["c", "moved"]
    assert instants.first is None


def test_a_name_that_moves_very_often_takes_no_more_room() -> None:
    instants = Instants()
    instants.put("still", 7.0)
    for instant in range(20_000):
        instants.put("moving", 100.0 + instant)

    assert len(instants._heap) < 2_000
    assert instants.until(30_000.0) == ["still", "moving"]
