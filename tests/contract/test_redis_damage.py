"""Redis after an outage, wrong clocks, or what another program did to its keys: it mends, and all other jobs go on."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgpack
import pytest
from msgspec.structs import replace

from palermo.brokers.redis.broker import RedisBroker
from palermo.brokers.redis.diagnosis import _ONCE
from palermo.brokers.redis.store import Store
from palermo.brokers.redis.workers import LEASE
from palermo.contract.broker import Broker, SessionParameters, open_broker
from palermo.contract.scheduled import RUN, ScheduledFilter
from palermo.contract.sweep import Keep, Move
from palermo.core.lifecycle import Ack, Fail, Release, Reschedule, fail, requeue
from palermo.errors import BrokerError, BrokerRefused, PalermoError
from tests.contract.damaging import DAY, everything, fill
from tests.contract.limiting import limited
from tests.contract.timing import due, time_kept
from tests.contract.tools import FAILURE, OpenRedis, counts, end_all_leases, ids, message, messages, places, until
from tests.contract.unique_jobs import ask, keyed
from tests.contract.workers import Report, consume, take, take_and_ack
from tests.redis_node import RedisNode


@pytest.fixture
def session(redis_session: SessionParameters) -> SessionParameters:
    return replace(redis_session, keep_events=True)


@pytest.fixture
def broker(redis_broker: RedisBroker) -> RedisBroker:
    return redis_broker


@pytest.fixture
def full(runner: asyncio.Runner, session: SessionParameters, sessions: list[Broker]) -> RedisBroker:
    """A session on an exchange that has two records of each kind."""
    sessions += runner.run(fill(session))
    broker = sessions[-1]
    assert isinstance(broker, RedisBroker)
    return broker


async def dumped(store: Store) -> dict[bytes, bytes]:
    return {key: await store.call("DUMP", key) for key in await store.call("KEYS", store.key("*"))}


async def restore(store: Store, dumps: dict[bytes, bytes]) -> None:
    """Have all keys as they were when they were dumped."""
    for key in await store.call("KEYS", store.key("*")):
        await store.call("DEL", key)
    for key, dump in dumps.items():
        await store.call("RESTORE", key, 0, dump, "REPLACE")


@pytest.mark.slow
@pytest.mark.parametrize("value", [b"{", b"\xff"])
async def test_a_damaged_key_stops_no_other(full: RedisBroker, session: SessionParameters, value: bytes) -> None:
    found: list[str] = []
    store = full._store
    dumps = await dumped(store)
    for key in sorted(dumps):
        kind = (await store.call("TYPE", key)).decode()
        for step in damages(key, kind, value):
            await restore(store, dumps)
            try:
                await store.call(*(await step(store) if callable(step) else step))
            except BrokerError:
                continue
            found += [f"{key!r}: {one}" for one in await everything(session)]

    assert not found, "\n".join(found)


async def test_a_key_of_another_type_is_named_by_the_doctor(full: RedisBroker) -> None:
    store = full._store
    assert [one for one in await full.diagnose() if one.check == "keys"] == []
    for key in await store.call("KEYS", store.key("*")):
        if key.startswith(store.key("sent:").encode()):
            continue  # it expires
        async with overwritten(store, key):
            (problem,) = [one for one in await full.diagnose() if one.check == "keys"]
            assert problem.level == "problem"
            assert problem.text.startswith(f"{key.decode()!r} is a list")

            if key == store.key("jobs").encode():
                with pytest.raises(BrokerRefused, match="palermo doctor"):
                    await full.publish(message("new"))


async def test_the_doctor_does_not_look_through_keys_of_other_programs(node: RedisNode, broker: RedisBroker) -> None:
    """A server may have millions of them: SCAN goes through all."""
    node.ask("CONFIG", "RESETSTAT")

    assert [one for one in await broker.diagnose() if one.check == "keys"] == []

    used = node.ask("INFO", "commandstats")
    assert b"cmdstat_type" in used
    assert b"cmdstat_scan" not in used
    assert b"cmdstat_keys" not in used


@pytest.mark.slow
async def test_no_job_is_lost_while_a_key_is_of_another_type(full: RedisBroker, session: SessionParameters) -> None:
    await full.publish(limited("c-limited", 1, key="a", queue="limited"))
    store = full._store
    dumps = await dumped(store)
    before, found = await places(full), list[str]()
    for key in sorted({*dumps, *(store.key(name).encode() for name in _ONCE)}):
        await restore(store, dumps)
        async with overwritten(store, key):
            await move_all(session)
        after = await places(full)
        found += [f"{key!r}: {after[id]} of {id}" for id in before if after[id] != 1]

    assert not found, "\n".join(found)


async def move_all(session: SessionParameters) -> None:
    """Have jobs claimed and given back, tried again, failed, requeued and due; none ends."""

    async def attempt(work: Awaitable[object]) -> None:
        with suppress(PalermoError, TimeoutError):
            async with asyncio.timeout(2):
                await work

    async def claim(broker: Broker) -> None:
        worker = await consume(broker, "*", slots=4)
        for slot, how in enumerate(("fail", "again", "release", "leave"), start=1):
            held = await take(worker, slot, within=0.3)
            match how:
                case "fail":
                    await worker.settle(held, Fail(fail(held.message, FAILURE, worker="w")))
                case "again":
                    await worker.settle(held, Reschedule(due(held.message.id, DAY)))
                case "release":
                    await worker.settle(held, Release())
        await worker.close()

    broker, other = await open_broker(session), await open_broker(session)
    await attempt(claim(other))
    await attempt(broker.sweep("failed", lambda one: Move(requeue(one))))
    await attempt(broker.alter_scheduled(ScheduledFilter(ids=frozenset({"a-later"})), RUN))
    await attempt(broker._store.run("due", repr(time.time() + 2 * DAY), 500))  # type: ignore[attr-defined]
    await attempt(end_all_leases(broker))
    await other.close()
    await broker.close()


async def test_a_due_job_waits_while_a_queues_key_is_bad(broker: RedisBroker, caplog: pytest.LogCaptureFixture) -> None:
    store = broker._store
    await broker.publish_many([message("first"), due("stays", 0.1, queue="broken"), due("7c9e", 0.1)])

    async with overwritten(store, store.key("queue:broken").encode()), time_kept(broker):
        await until(lambda: ids(broker), ["first", "7c9e"])

    assert "palermo doctor" in caplog.text
    assert [one.id for one in (await broker.scheduled(ScheduledFilter())).messages] == ["stays"]


async def test_a_job_runs_though_a_side_key_has_another_type(broker: RedisBroker) -> None:
    """Where it was claimed before, who died of it, who cancelled it: without that a worker takes and settles it."""
    store = broker._store
    for name in ("claims", "cancels", "deaths", "runs-at", "keyed", "permits", "idle:jobs"):
        async with overwritten(store, store.key(name).encode()):
            await broker.publish_many(messages(2))
            worker = await consume(broker)
            await worker.settle(await take(worker), Release())

            assert [(await take_and_ack(worker)).id for _ in range(2)] == ["jobs-0", "jobs-1"], name

            await until(lambda: counts(broker), (0, 0))
            await worker.close()


async def test_a_dead_worker_whose_job_cannot_go_back_ends_no_other(broker: RedisBroker, open_redis: OpenRedis) -> None:
    dead, store = await open_redis(), broker._store
    await broker.publish_many([message("stays", "broken"), message("7c9e")])
    lost = await consume(dead, "broken,jobs", slots=2, report=Report("broken,jobs", pid=1))
    await take(lost, 1)
    await take(lost, 2)

    async with overwritten(store, store.key("queue:broken").encode()):
        await end_all_leases(broker)
        worker = await consume(broker, report=Report("jobs", pid=2))
        assert (await take(worker)).message.id == "7c9e"

    await until(lambda: ids(broker, "broken"), ["stays"])


async def test_new_jobs_overwrite_none_after_the_counter_was_deleted(broker: RedisBroker) -> None:
    """As `palermo doctor` advises for a key of another type."""
    store = broker._store
    await broker.publish_many([*messages(10), due("later", DAY)])

    await store.call("DEL", store.key("number"))
    await broker.publish_many(messages(10, "other"))

    assert await ids(broker) == [f"jobs-{number}" for number in range(10)]
    assert await ids(broker, "other") == [f"other-{number}" for number in range(10)]
    assert [one.id for one in (await broker.scheduled(ScheduledFilter())).messages] == ["later"]


@asynccontextmanager
async def overwritten(store: Store, key: bytes) -> AsyncIterator[None]:
    """For a while the key is a list of another program; then it is as it was before."""
    dump = await store.call("DUMP", key)
    await store.call("DEL", key)
    await store.call("RPUSH", key, "of another program")
    yield
    await store.call("DEL", key)
    if dump is not None:
        await store.call("RESTORE", key, 0, dump, "REPLACE")


@pytest.mark.parametrize("value", [b"{", b"\xc1", b"\xff"])
async def test_a_job_with_a_damaged_claim_is_settled(broker: RedisBroker, open_redis: OpenRedis, value: bytes) -> None:
    store = broker._store
    await broker.publish_many([message("done"), message("left"), message("good")])
    worker = await consume(await open_redis(), slots=3)
    done, _, _ = [await take(worker, slot) for slot in (1, 2, 3)]
    (claims,) = await store.call("KEYS", store.key("held:*"))
    for number in sorted(await store.call("HKEYS", claims), key=int)[:2]:
        await store.call("HSET", claims, number, value)
    await store.call("HSET", claims, value, value)

    await worker.settle(done, Ack())
    await worker.close()

    assert await ids(broker) == ["good"]
    assert await ids(broker, "failed") == ["left"]
    assert await store.call("HLEN", store.key("jobs")) == 2


def damages(key: bytes, kind: str, value: bytes) -> list[Any]:
    """The commands that put the value into a key of this type; what is no text is a name as well."""
    names = value == b"\xff"
    match kind:
        case "hash":

            async def first_field(store: Any) -> tuple[Any, ...]:
                return "HSET", key, min(await store.call("HKEYS", key)), value

            return [first_field, ("HSET", key, value, value)] if names else [first_field]
        case "zset":
            return [("ZADD", key, 0, value)] if names else []
        case "set":
            return [("SADD", key, value)] if names else []
        case "stream":
            return [("XADD", key, "*", b"blob", value), ("XADD", key, "*", value, value)]
    return [("SET", key, value)]


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


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [2.0, -86_400.0], ids=["after an outage", "with the server's clock set back"])
async def test_jobs_of_a_lost_worker_run_again(broker: RedisBroker, open_redis: OpenRedis, seconds: float) -> None:
    await broker.publish_many(messages(1))
    dead = await open_redis()
    await take(await consume(dead, report=Report("jobs", pid=1)))
    await away(dead, seconds)

    held = await take(await consume(broker, report=Report("jobs", pid=2)))

    assert (held.message.id, held.deaths, held.running_at) == ("jobs-0", ("pid:1@example",), "")


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
    parts = msgpack.unpackb(await store.call("HGET", store.key("jobs"), numbers[0]), raw=True)
    odd_headers = [msgpack.packb([*parts[:3], headers, *parts[4:]]) for headers in (b"{", b"[]")]
    broken = [b"\xc1junk", b"", *odd_headers]
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
