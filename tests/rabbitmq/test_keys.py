"""The leader's log of keys is read in any order and written again beside commits; no copy of a job runs beside it."""

import asyncio
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pika
import pytest

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.unique import key_log, unique_keys
from palermo.brokers.rabbitmq.unique.key_log import KeyLog, LogContent, key_log_queue
from palermo.core.instants import Instants
from palermo.core.lifecycle import Ack, Release
from palermo.core.message import Message
from palermo.core.queue_selection import QueueSelection
from palermo.core.unique_keys import Cooldown, Key, message_to_plain
from palermo.errors import BrokerUnavailable
from tests.contract.timing import time_kept
from tests.contract.tools import Report, consume, counts, ids, take, until
from tests.contract.unique_jobs import ask, holders, keyed
from tests.helpers import HANGS
from tests.rabbitmq.conftest import Open, becomes


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> list[KeyLog]:
    """The logs that leaders of this process open."""
    found, begun = list[KeyLog](), KeyLog.__init__

    def begin(log: KeyLog, *given: Any, **named: Any) -> None:
        begun(log, *given, **named)
        found.append(log)

    monkeypatch.setattr(KeyLog, "__init__", begin)
    return found


async def test_jobs_with_keys_are_enqueued_while_the_leader_writes_all_keys_anew(
    broker: RabbitmqBroker, another: Open, logs: list[KeyLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    writes, go_on, divided = asyncio.Event(), asyncio.Event(), key_log.parts

    async def parts(keys: Sequence[Key]) -> list[list[Key]]:
        found = await divided(keys)
        writes.set()
        await go_on.wait()
        return found

    monkeypatch.setattr(key_log, "parts", parts)
    monkeypatch.setattr(key_log, "CODED_AT_ONCE", 3)
    monkeypatch.setattr(unique_keys, "_TIDY_EVERY", 0.1)
    async with time_kept(broker):
        for number in range(8):
            await ask(broker, keyed(f"before {number}"), key=f"before {number}")
        monkeypatch.setattr(key_log, "_MOST", 10)
        async with asyncio.timeout(HANGS):
            await writes.wait()
        for number in range(4):
            await ask(broker, keyed(f"beside {number}"), key=f"beside {number}")
        await broker.keys.free(["before 0", "beside 0"])
        monkeypatch.setattr(key_log, "_MOST", 1_000_000)
        go_on.set()
        await becomes(lambda: logs[0]._rewriting is None)
    await broker.close()

    left = [f"before {number}" for number in range(1, 8)] + [f"beside {number}" for number in range(1, 4)]
    assert sorted(await holders(await another())) == [(id, "waiting") for id in sorted(left)]


def batch(number: int, names: str, **more: Any) -> Mapping[str, Any]:
    keys = {name: Key(name=name, serial=number, closed=Cooldown(until=1.0, id="x")).to_plain() for name in names}
    return {"n": number, "sure": number - 1, "keys": keys, "jobs": [], **more}


def read(batches: Iterable[Mapping[str, Any]]) -> LogContent:
    content = LogContent()
    for one in batches:
        content.take(one)
    return content


def serials(*contents: LogContent) -> list[Mapping[str, int]]:
    """The keys of each, with the number of the batch that they are from."""

    async def read() -> list[Mapping[str, int]]:
        return [{key.name: key.serial for key in await content.keys()} for content in contents]

    return asyncio.run(read())


@pytest.mark.parametrize(
    ("anew", "keys"),
    [
        ([batch(2, "b", all=[0, 2]), batch(4, "", keys={"a": None})], {"b": 1, "c": 3, "z": 1}),
        ([batch(2, "b", all=[1, 2]), batch(2, "ac", all=[0, 2])], {"a": 2, "b": 2, "c": 3}),
    ],
    ids=["in part", "whole"],
)
def test_a_rewriting_counts_once_it_is_complete(anew: Sequence[Mapping[str, Any]], keys: Mapping[str, int]) -> None:
    assert serials(read([batch(1, "abz"), batch(3, "c"), *anew])) == [keys]


def test_the_records_of_a_log_may_come_in_any_order() -> None:
    found = [
        batch(1, "az"),
        batch(2, "abd", all=[0, 2]),
        batch(2, "c", all=[1, 2]),
        batch(3, "b"),
        batch(4, "", keys={"b": None, "d": None}),
        batch(5, "d"),
        batch(6, "a", all=[0, 2]),
    ]

    everywhere = serials(*map(read, itertools.permutations(found)))

    assert [one for one in everywhere if one != {"a": 2, "c": 2, "d": 5}] == []


def test_jobs_that_are_stored_are_not_kept_while_a_long_log_is_read() -> None:
    content = LogContent()
    for number in range(1, 1_001, 2):
        content.take(batch(number, "a", owed=["job 5"] if number > 5 else [], jobs=[stored(f"job {number}")]))
        content.take(batch(number + 1, "", sure=number, owed=["job 5"] if number >= 5 else []))
    content.take(batch(1_001, "a", owed=["job 5"], jobs=[stored("job 1001")]))

    assert len(content._jobs) <= 3
    assert {id: job.id for id, job in content.jobs().items()} == {"job 5": "job 5", "job 1001": "job 1001"}


def test_an_owed_job_is_published_again_in_whatever_order_the_log_is_read() -> None:
    found = [
        batch(1, "a", owed=[], jobs=[stored("a")]),
        batch(2, "", sure=1, owed=["a"]),
        batch(3, "b", sure=2),
        batch(4, "b", sure=2, owed=["a"], jobs=[stored("b")]),
        batch(5, "", sure=4, owed=["a"]),
    ]

    for some in itertools.permutations(found):
        assert list(read(some).jobs()) == ["a"]


def stored(id: str) -> Mapping[str, Any]:
    return message_to_plain(Message(id=id, job="shop.mail", queue="mail", body=b"[]"))


async def test_keys_whose_queue_was_deleted_are_written_again(
    broker: RabbitmqBroker, another: Open, connection: Connection, exchange: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with time_kept(broker):
        for number in range(3):
            await ask(broker, keyed(f"{number}"), key=f"key {number}")
        await connection.delete(key_log.key_log_queue(exchange))
        await becomes(lambda: "was deleted" in caplog.text)
        assert (await ask(broker, keyed("again"), key="key 0")).outcome == "duplicate"
    await broker.close()

    assert await holders(await another()) == [(f"{number}", "waiting") for number in range(3)]


async def test_no_job_is_published_whose_key_was_not_written(broker: RabbitmqBroker, logs: list[KeyLog]) -> None:
    async with time_kept(broker):
        await ask(broker, keyed("first"), key="first")
        asyncio.get_running_loop().call_soon(logs[-1].let_go)
        with pytest.raises(BrokerUnavailable):
            await logs[-1].commit({"second": Key(name="second", serial=1)}, [keyed("second")])

        # What was published before this job is in its queue by now.
        await ask(broker, keyed("third"), key="third")
        assert await ids(broker) == ["first", "third"]


# -- copies of one job


def unsay(url: str, exchange: str) -> None:
    """Leave `~unique` as a leader does that is killed before it can say that its jobs are stored."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        kept = []
        while (got := channel.basic_get(key_log_queue(exchange)))[0] is not None:
            record = json.loads(got[2])
            if record.get("jobs"):
                kept.append((got[1], json.dumps({**record, "sure": 0, "owed": []}).encode()))
            channel.basic_ack(got[0].delivery_tag)
        for properties, body in kept:
            channel.basic_publish("", key_log_queue(exchange), body, properties)


@pytest.mark.parametrize("place", ["queue", "worker"])
async def test_a_new_leader_publishes_no_job_again_that_it_finds(
    broker: RabbitmqBroker, another: Open, rabbitmq_url: str, exchange: str, place: str
) -> None:
    await ask(broker, keyed("a"))
    await broker.close()
    unsay(rabbitmq_url, exchange)
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


async def test_a_redelivered_copy_waits_until_the_new_run_can_be_seen(
    broker: RabbitmqBroker, another: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker that gets the copy asked the others before the run began, and so knows nothing of it."""
    monkeypatch.setattr(unique_keys, "_YOUNG", 3_600.0)
    async with time_kept(broker):
        await ask(broker, keyed("a"))
        shows_nothing = Report("jobs")
        first = await (await another()).consume(
            QueueSelection.parse("jobs"), slots=1, tag="first", report=shows_nothing
        )
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
