"""The log of keys: it is written anew beside the commits, and read in portions."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pika
import pytest

from palermo.brokers.rabbitmq.unique import key_log, unique_keys
from palermo.brokers.rabbitmq.unique.key_log import KeyLog
from palermo.contract.broker import SessionParameters, open_broker
from palermo.core.address import parse_url
from palermo.core.unique_keys import Cooldown, Key
from tests.contract.timing import time_kept
from tests.contract.tools import PATIENT, until
from tests.contract.unique_jobs import ask, holders, keyed
from tests.helpers import HANGS, eventually


@pytest.fixture
def session(rabbitmq_url: str, exchange: str) -> SessionParameters:
    return SessionParameters(address=parse_url(rabbitmq_url), exchange=exchange, timeout=PATIENT)


def test_jobs_with_keys_are_enqueued_while_the_leader_writes_all_keys_anew(
    session: SessionParameters, rabbitmq_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes, go_on = asyncio.Event(), asyncio.Event()
    logs = list[KeyLog]()
    divided, begun = key_log.parts, KeyLog.__init__

    def begin(log: KeyLog, *given: Any, **named: Any) -> None:
        begun(log, *given, **named)
        logs.append(log)

    async def parts(keys: Sequence[Key]) -> list[list[Key]]:
        found = await divided(keys)
        writes.set()
        await go_on.wait()
        return found

    monkeypatch.setattr(KeyLog, "__init__", begin)
    monkeypatch.setattr(key_log, "parts", parts)
    monkeypatch.setattr(key_log, "CODED_AT_ONCE", 3)
    monkeypatch.setattr(unique_keys, "_TIDY_EVERY", 0.1)

    async def lead() -> None:
        broker = await open_broker(session)
        try:
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
                await until(written, True)
        finally:
            await broker.close()

    async def written() -> bool:
        (log,) = logs
        return log._rewriting is None

    async def read() -> list[tuple[str, str]]:
        broker = await open_broker(session)
        try:
            return await holders(broker)
        finally:
            await broker.close()

    asyncio.run(lead())

    found = records(rabbitmq_url, session.exchange)
    (anew,) = {record["n"] for record in found if "all" in record}
    assert min(record["n"] for record in found) == anew
    there = sorted([f"before {number}" for number in range(1, 8)] + [f"beside {number}" for number in range(1, 4)])
    assert sorted(asyncio.run(read())) == [(id, "waiting") for id in there]


def records(url: str, exchange: str) -> list[Mapping[str, Any]]:
    """The records of the log, oldest first; they stay there."""
    found = list[Mapping[str, Any]]()

    def read() -> bool:
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            channel = connection.channel()
            got = iter(lambda: channel.basic_get(key_log.key_log_queue(exchange))[2], None)
            found[:] = [record for body in got if "n" in (record := json.loads(body))]
        return sum("all" in record for record in found) == 3

    eventually(read)  # RabbitMQ takes a moment to take back what the last leader held
    return found


def batch(number: int, names: str, **more: Any) -> Mapping[str, Any]:
    keys = {name: Key(name=name, serial=number, closed=Cooldown(until=1.0, id="x")).to_plain() for name in names}
    return {"n": number, "keys": keys, **more}


def test_keys_that_were_written_anew_in_part_only_do_not_count() -> None:
    found = [batch(1, "ab"), batch(3, "c"), batch(2, "b", all=[0, 2]), batch(4, "", keys={"a": None})]

    assert list(asyncio.run(key_log.fold(found))) == ["b", "c"]


def test_what_was_stored_while_the_keys_were_written_anew_counts() -> None:
    found = [batch(3, "c"), batch(1, "z"), batch(2, "b", all=[1, 2]), batch(2, "a", all=[0, 2])]

    assert sorted(asyncio.run(key_log.fold(found))) == ["a", "b", "c"]


def test_others_have_their_turns_while_the_keys_are_read() -> None:
    turns = [0]

    async def other() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    async def main() -> None:
        beside = asyncio.ensure_future(other())
        names = [f"key {number}" for number in range(1_000)]
        assert len(await key_log.fold([{"n": 1, "keys": {name: Key(name=name).to_plain() for name in names}}])) == 1_000
        beside.cancel()

    asyncio.run(main())

    assert turns[0] >= 5


def test_keys_whose_queue_was_deleted_are_written_anew_for_the_next_leader_too(
    session: SessionParameters, rabbitmq_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def lead() -> None:
        broker = await open_broker(session)
        async with time_kept(broker):
            for number in range(3):
                await ask(broker, keyed(f"{number}"), key=f"key {number}")
            delete(rabbitmq_url, key_log.key_log_queue(session.exchange))
            await until(lambda: asyncio.sleep(0, "was deleted" in caplog.text), True)
            assert (await ask(broker, keyed("again"), key="key 0")).outcome == "duplicate"
        await broker.close()

    async def read() -> list[tuple[str, str]]:
        broker = await open_broker(session)
        try:
            return await holders(broker)
        finally:
            await broker.close()

    asyncio.run(lead())

    assert asyncio.run(read()) == [(f"{number}", "waiting") for number in range(3)]


def delete(url: str, queue: str) -> None:
    """Delete a queue, as an operator does."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    connection.channel().queue_delete(queue)
    connection.close()
