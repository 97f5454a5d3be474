"""Keys in Redis that another program changed: each is passed over, and all others go on.

Every key that a full exchange has gets values of wrong types, whatever its type is, so new keys are tested too.
"""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from palermo.contract.broker import SessionParameters
from palermo.core.address import parse_url
from palermo.errors import BrokerError
from tests import redis_node
from tests.contract.damaging import everything, fill
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
