"""Keys in Redis that another program changed: each is passed over, and all others go on.

Every key that a full exchange has gets values of wrong types, whatever its type is, so new keys are tested too.
"""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from palermo.contract.broker import SessionParameters, open_broker
from palermo.core.address import parse_url
from palermo.core.lifecycle import Ack
from palermo.errors import BrokerError, BrokerRefused
from tests import redis_node
from tests.contract.damaging import everything, fill
from tests.contract.tools import consume, ids, message, take
from tests.redis_node import RedisNode


@pytest.fixture(scope="module")
def node() -> Iterator[RedisNode]:
    with redis_node.running() as node:
        yield node


@pytest.mark.parametrize("value", [b"{", b"\xff"])
async def test_a_damaged_key_raises_nothing_foreign_and_stops_no_other(node: RedisNode, value: bytes) -> None:
    session = SessionParameters(address=parse_url(node.url), exchange=f"test-{uuid.uuid4().hex[:8]}", keep_events=True)
    found: list[str] = []
    opened = await fill(session)
    store = opened[1]._store  # type: ignore[attr-defined]
    keys = sorted(await store.call("KEYS", store.key("*")))
    dumps = {key: await store.call("DUMP", key) for key in keys}
    for key in keys:
        kind = (await store.call("TYPE", key)).decode()
        for step in damages(key, kind, value):
            for name in await store.call("KEYS", store.key("*")):
                await store.call("DEL", name)
            for name, dump in dumps.items():
                await store.call("RESTORE", name, 0, dump, "REPLACE")
            try:
                await store.call(*(await step(store) if callable(step) else step))
            except BrokerError:
                continue
            found += [f"{key!r}: {one}" for one in await everything(session)]
    for broker in opened:
        await broker.close()

    assert not found, "\n".join(found)


async def test_the_doctor_names_a_key_of_another_type_and_errors_lead_to_the_doctor(node: RedisNode) -> None:
    session = SessionParameters(address=parse_url(node.url), exchange=f"test-{uuid.uuid4().hex[:8]}", keep_events=True)
    for broker in await fill(session):
        await broker.close()
    broker = await open_broker(session)
    store = broker._store  # type: ignore[attr-defined]
    assert [one for one in await broker.diagnose() if one.check == "keys"] == []
    for key in await store.call("KEYS", store.key("*")):
        dump = await store.call("DUMP", key)
        await store.call("DEL", key)
        await store.call("RPUSH", key, "of another program")

        (problem,) = [one for one in await broker.diagnose() if one.check == "keys"]
        assert problem.level == "problem"
        assert problem.text.startswith(f"{key.decode()!r} is a list")

        if key == store.key("jobs").encode():
            with pytest.raises(BrokerRefused, match="palermo doctor"):
                await broker.publish(message("new"))
        await store.call("RESTORE", key, 0, dump, "REPLACE")
    await broker.close()


@pytest.mark.parametrize("value", [b"{", b"\xc1", b"\xff"])
async def test_a_job_whose_claim_is_damaged_is_settled_or_given_back(node: RedisNode, value: bytes) -> None:
    session = SessionParameters(address=parse_url(node.url), exchange=f"test-{uuid.uuid4().hex[:8]}")
    broker, other = await open_broker(session), await open_broker(session)
    store = broker._store  # type: ignore[attr-defined]
    await broker.publish_many([message("done"), message("left"), message("good")])
    worker = await consume(other, slots=3)
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
    await other.close()
    await broker.close()


def damages(key: bytes, kind: str, value: bytes) -> list[Any]:
    """The commands that put the value into a key of this type."""
    match kind:
        case "hash":

            async def first_field(store: Any) -> tuple[Any, ...]:
                return "HSET", key, min(await store.call("HKEYS", key)), value

            return [first_field, ("HSET", key, value, value)]
        case "zset":
            return [("ZADD", key, 0, value)]
        case "set":
            return [("SADD", key, value)]
        case "stream":
            return [("XADD", key, "*", b"blob", value), ("XADD", key, "*", value, value)]
    return [("SET", key, value)]
