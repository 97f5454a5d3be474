"""Redis behind Sentinels: a session finds the primary server, and the next one follows it; wrong addresses are told."""

import asyncio
from collections.abc import Iterator

import pytest

from palermo.brokers.redis.broker import RedisBroker
from palermo.contract.broker import SessionParameters, open_broker
from palermo.core.address import parse_url
from palermo.errors import BrokerRefused, BrokerUnavailable, PalermoError, UrlInvalid
from tests import redis_node
from tests.contract.tools import PATIENT, consume, ids, message, take_and_ack, until
from tests.redis_node import Watched


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with redis_node.watched(sentinel="requirepass watching\n") as watched:
        yield watched


async def opened(url: str) -> RedisBroker:
    broker = await open_broker(SessionParameters(address=parse_url(url), timeout=PATIENT))
    assert isinstance(broker, RedisBroker)
    return broker


async def test_a_session_follows_the_primary_server_to_another_machine(watched: Watched) -> None:
    url = f"{watched.url}/0?sentinel_password=watching&wait_replicas=1"
    before = await until_opened(url)
    await before.publish(message("7c9e"))
    lost = asyncio.ensure_future(before.lost())

    await fail_over(watched)

    assert isinstance(await lost, BrokerUnavailable)
    await before.close()
    after = await until_opened(url)
    assert after.describe() != before.describe()
    assert await ids(after) == ["7c9e"]
    assert (await take_and_ack(await consume(after))).id == "7c9e"
    assert {one.check: one.level for one in await after.diagnose()}["replicas"] == "ok"
    await after.close()


async def fail_over(watched: Watched) -> None:
    """Have the Sentinels choose another primary server."""
    reader, writer = await asyncio.open_unix_connection(next(iter(watched.sentinels.values())).socket)

    async def begun() -> bool:
        writer.write(b"AUTH watching\r\nSENTINEL FAILOVER shop\r\n")
        assert await reader.readline() == b"+OK\r\n"
        return await reader.readline() == b"+OK\r\n"  # not before it knows a good replica

    await until(begun, True)
    writer.close()


async def until_opened(url: str) -> RedisBroker:
    """A session, once there is a primary server with a replica."""
    found: list[RedisBroker] = []

    async def attempt() -> bool:
        try:
            broker = await opened(url)
        except BrokerUnavailable:
            return False
        try:
            await broker.pause("none")
        except BrokerUnavailable:
            await broker.close()
            return False
        found.append(broker)
        return True

    await until(attempt, True)
    return found[0]


async def refused(url: str, error: type[PalermoError]) -> str:
    with pytest.raises(error) as caught:
        await opened(url)
    assert "watching" not in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_an_address_of_sentinels_that_is_wrong_is_told_in_one_line(watched: Watched) -> None:
    good, port = "?sentinel_password=watching", next(iter(watched.sentinels))

    assert "It knows: shop" in await refused(watched.url.replace("/shop", f"/other{good}"), BrokerRefused)
    assert "password" in await refused(f"{watched.url}{good}2", BrokerRefused)
    assert "Authentication" in await refused(watched.url, BrokerRefused)
    assert "redis+sentinel://" in await refused(f"redis://:watching@127.0.0.1:{port}", BrokerRefused)
    assert "sentinel_pass" in await refused(f"{watched.url}{good}&sentinel_pass=1", UrlInvalid)
