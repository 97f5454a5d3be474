"""Redis mends by itself: after a time without Redis, wrong clocks, values that nobody can read, keys without use."""

import asyncio
import json
import time

import msgpack
import pytest
from msgspec.structs import replace

from palermo.brokers.redis.broker import RedisBroker
from palermo.brokers.redis.workers import LEASE
from palermo.contract.recurring_entries import EntryChange
from palermo.contract.sweep import Keep
from palermo.core.lifecycle import Fail, fail
from tests.contract.limiting import forget_what_is_over
from tests.contract.recurring import entry, fires
from tests.contract.timing import due, time_kept
from tests.contract.tools import (
    FAILURE,
    OpenRedis,
    Report,
    consume,
    counts,
    message,
    messages,
    take,
    take_and_ack,
    until,
)
from tests.contract.unique_jobs import ask, keyed
from tests.redis_node import RedisNode


@pytest.fixture
def broker(redis_broker: RedisBroker) -> RedisBroker:
    return redis_broker


async def test_after_an_outage_workers_may_return_for_their_jobs(broker: RedisBroker, open_redis: OpenRedis) -> None:
    await broker.publish_many(messages(1))
    cut_off = await open_redis()
    await take(await consume(cut_off, report=Report("jobs", pid=1)))
    await away(cut_off, 20.0)

    first_back = await consume(broker, report=Report("jobs", pid=2))

    assert await counts(broker) == (0, 1)
    await consume(await open_redis(cut_off.after_failure()), "other", report=Report("other", pid=1))
    held = await take(first_back)
    assert (held.message.id, held.deaths, held.running_at) == ("jobs-0", (), "pid:1@example")


async def test_after_an_outage_jobs_of_a_lost_worker_run_again(broker: RedisBroker, open_redis: OpenRedis) -> None:
    await broker.publish_many(messages(1))
    dead = await open_redis()
    await take(await consume(dead, report=Report("jobs", pid=1)))
    await away(dead, 2.0)

    first_back = await consume(broker, report=Report("jobs", pid=2))

    held = await take(first_back)
    assert (held.message.id, held.deaths, held.running_at) == ("jobs-0", ("pid:1@example",), "")


async def test_a_lease_ends_though_the_servers_clock_is_set_back(broker: RedisBroker, open_redis: OpenRedis) -> None:
    await broker.publish_many(messages(1))
    dead = await open_redis()
    await take(await consume(dead, report=Report("jobs", pid=1)))
    await away(dead, -86_400.0)

    held = await take(await consume(broker, report=Report("jobs", pid=2)))

    assert (held.message.id, held.deaths) == ("jobs-0", ("pid:1@example",))


async def away(broker: RedisBroker, seconds: float) -> None:
    """What so many seconds without Redis do to all workers. The broker's own renew no lease from now on."""
    store = broker._store
    for consumer in broker._consumers:
        assert consumer._beating is not None
        consumer._beating.cancel()
        await asyncio.wait({consumer._beating})
    now = float((await store.call("TIME"))[0])
    for worker in await store.call("ZRANGE", store.key("leases"), 0, -1):
        await store.call("ZADD", store.key("leases"), now - seconds + LEASE, worker)
    await store.call("HSET", store.key("renewals"), "last", now - seconds)


async def test_messages_changed_by_another_program_fail_alone(broker: RedisBroker) -> None:
    await broker.publish_many(messages(5))
    store = broker._store
    numbers = await store.call("ZRANGE", store.key("queue:jobs"), 0, -1)
    parts = msgpack.unpackb((await store.call("HGET", store.key("jobs"), numbers[0]))[1:], raw=True)
    broken = [
        b"L\xc1junk",
        b"",
        *(b"-" + msgpack.packb([*parts[:3], headers, *parts[4:]]) for headers in (b"{", b"[]")),
    ]
    for number, blob in zip(numbers, broken, strict=False):
        await store.call("HSET", store.key("jobs"), number, blob)

    shown = [(one.id, bool(one.defect)) for one in (await broker.browse("jobs", max_body=1)).messages]
    swept: list[tuple[str, bool]] = []
    await broker.sweep("jobs", lambda one: swept.append((one.id, bool(one.defect))) or Keep())
    assert shown == swept
    assert [defect for _, defect in shown] == [True, True, True, True, False]

    worker = await consume(broker)
    for id, _ in shown[:4]:
        held = await take(worker)
        assert (held.message.id, held.redelivered) == (id, False)
        await worker.settle(held, Fail(fail(held.message, FAILURE, worker="w")))
    assert (await take_and_ack(worker)).id == "jobs-4"
    assert [one.failure for one in (await broker.browse("failed")).messages] == [FAILURE] * 4
    await until(lambda: counts(broker), (0, 0))


async def test_keys_of_limits_that_say_nothing_are_forgotten(broker: RedisBroker, open_redis: OpenRedis) -> None:

    async def known() -> set[str]:
        return {key.decode() for key in await broker._store.fields("limits")}

    await forget_what_is_over(broker, await open_redis(), known)


async def test_a_recurring_job_fired_by_a_clock_far_ahead_is_mended(broker: RedisBroker) -> None:
    await broker.change_recurring(EntryChange.put(entry()))
    (stored,) = await broker.recurring()
    ahead = json.dumps(replace(stored, since=time.time() + 86_400).to_plain())
    await broker._store.change((), [("entry", "sweep", ahead, time.time() + 86_400)])

    async with time_kept(broker):
        await until(lambda: fires(broker), True)


async def test_an_unreadable_unique_key_is_free(broker: RedisBroker) -> None:
    store = broker._store
    await store.call("HSET", store.key("keys"), "broken", "{")
    await store.call("ZADD", store.key("keys-due"), 1, "broken")

    async with time_kept(broker):
        await broker.publish(due("7c9e", 0.1))
        await until(lambda: counts(broker), (1, 0))

    assert await broker.keys.known() == []
    assert (await ask(broker, keyed("1", key="broken"), key="broken")).outcome == "stored"


async def test_a_look_for_orphaned_keys_reads_only_the_jobs_with_keys(node: RedisNode, broker: RedisBroker) -> None:
    large = b"x" * 5_000_000
    await broker.publish_many([message("large", body=large), due("large later", 60.0, body=large)])
    for id in ("waits", "lost"):
        await ask(broker, keyed(id, key=id), key=id)
    (number, *_) = await broker._store.call("ZREVRANGE", broker._store.key("queue:jobs"), 0, 0)
    await broker._store.call("HDEL", broker._store.key("jobs"), number)

    def told() -> int:
        return int(node.ask("INFO", "stats").partition(b"total_net_output_bytes:")[2].split()[0])

    before = told()
    assert [one.id for one in await broker.keys.orphaned()] == ["lost"]
    assert told() - before < 1_000_000
