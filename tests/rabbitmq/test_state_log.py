"""The engine of state that outlives its leader: refusals, deletions, lost sessions, and what others write."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest

from palermo.brokers.rabbitmq.amqp import state_log, versions
from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.brokers.rabbitmq.amqp.messages import PERSISTENT_JSON
from palermo.brokers.rabbitmq.amqp.publisher import Publisher, RecordQueue
from palermo.brokers.rabbitmq.amqp.state_log import Record, StateLog
from palermo.brokers.rabbitmq.publishing.name_list import NameList
from palermo.contract.broker import SessionParameters
from palermo.core.address import parse_url
from palermo.core.due_times import Bucket
from palermo.core.topology import CLASSIC, internal
from palermo.errors import BrokerUnavailable, NotFound, PalermoError, PublishRefused
from tests.contract.tools import PATIENT, until
from tests.rabbitmq.conftest import connected
from tests.rabbitmq_node import Node, binary, clear_policy, set_policy, url_of


class Leader:
    """A session that leads, and what it has read."""

    def __init__(self, connection: Connection, queue: str, kind: str) -> None:
        self.connection = connection
        self.log = StateLog(queue, connection, self.publisher, prepare=self._prepare, on_record=self._on_record)
        self.read: list[tuple[Record, Any]] = []
        self._queue = queue
        self._kind = kind
        self._publisher: Publisher | None = None

    @property
    def values(self) -> list[Any]:
        return sorted((value for _, value in self.read), key=str)

    @property
    def records(self) -> list[Record]:
        return [record for record, _ in self.read]

    async def publisher(self) -> Publisher:
        if self._publisher is None or not self._publisher.is_open:
            self._publisher = await Publisher.open(self.connection)
        return self._publisher

    async def _prepare(self) -> None:
        await self.connection.declare(self._queue, versions.arguments(self._kind, self.connection.version))
        await self.connection.persist_queues()
        self.read.clear()

    def _on_record(self, record: Record, value: Any) -> None:
        self.read.append((record, value))


@asynccontextmanager
async def leading(session: SessionParameters, queue: str, kind: str = "classic") -> AsyncIterator[Leader]:
    async with connected(session, "leader") as connection:
        leader = Leader(connection, queue, kind)
        await leader.log.open()
        yield leader


@pytest.fixture
def session(shared_node: Node, exchange: str) -> SessionParameters:
    return SessionParameters(address=parse_url(url_of(shared_node)), exchange=exchange, timeout=PATIENT)


@pytest.fixture
def queue(exchange: str) -> str:
    return internal(exchange, "state")


@pytest.fixture(params=["classic", "quorum"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


Lead = Callable[..., AbstractAsyncContextManager[Leader]]


@pytest.fixture
def lead(session: SessionParameters, queue: str) -> Lead:
    """Leads with queues of this kind, classic ones if none is said."""
    return partial(leading, session, queue)


async def test_the_next_leader_reads_what_was_appended_and_not_what_was_replaced(lead: Lead, kind: str) -> None:
    async with lead(kind) as first:
        one, two, three = await first.log.append({"number": 1}, {"number": 2}, {"number": 3})
        (four,) = await first.log.replace([one, two], {"number": 4})
        first.log.forget(three)
        assert [one.is_held, two.is_held, three.is_held, four.is_held] == [False, False, False, True]
        assert first.values == []
    async with lead(kind) as second:
        assert second.values == [{"number": 4}]


async def test_a_record_that_the_queue_refuses_replaces_none(lead: Lead, shared_node: Node, queue: str) -> None:
    async with lead() as first:
        old = await first.log.append({"number": 1})
        rule = {"max-length": 0, "overflow": "reject-publish"}
        set_policy(shared_node, queue, f"^{re.escape(queue)}$", rule)
        with pytest.raises(PublishRefused):
            await first.log.replace(old, {"number": 2})
        assert first.log.is_open
        assert old[0].is_held
    async with lead() as second:
        assert second.values == [{"number": 1}]
        clear_policy(shared_node, queue)
        await second.log.replace(second.records, {"number": 2})
    async with lead() as third:
        assert third.values == [{"number": 2}]


async def test_a_list_of_names_outlives_its_deleted_queue(session: SessionParameters, lead: Lead, queue: str) -> None:
    await write_names(lead, 60)
    async with leading(session, internal(session.exchange, "other")) as leader:
        names = list_of_names(leader, queue)
        await names.read()
        await leader.connection.delete(queue)

        async def tidied() -> int:
            with suppress(NotFound):  # the notice of the deletion is still on its way
                await names.read()
                await names.tidy()
                await names.reach()
            return len(names._records)

        await until(tidied, 1)
    async with lead() as reader:
        assert reader.values == [{"all": [f"name {number}" for number in range(7)]}]


async def test_a_list_that_is_longer_than_a_leader_may_hold_is_read_to_its_end(
    lead: Lead, session: SessionParameters, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_log, "_MOST", 60)
    monkeypatch.setattr(state_log, "PATIENCE", 0.05)

    async with leading(session, internal(session.exchange, "other")) as leader:
        await write_names(lead, 500)
        names = list_of_names(leader, queue)
        await names.read()

        async def left() -> int:
            await names.tidy()
            await names.reach()
            return (await leader.connection.probe(queue)).messages

        await until(left, 0)
        assert names.names == {f"name {number}" for number in range(7)}
    async with lead() as reader:
        assert len(reader.values) < 60


async def write_names(lead: Lead, count: int) -> None:
    """Write records of seven names."""
    async with lead() as writer:
        await writer.log.store(*({"made": f"name {number % 7}"} for number in range(count)))


def records_of(leader: Leader, queue: str) -> RecordQueue:
    arguments = versions.arguments(CLASSIC, leader.connection.version)
    return RecordQueue(queue, leader.connection, leader.publisher, arguments)


def list_of_names(leader: Leader, queue: str, parse: Callable[[str], str] = str) -> NameList[str]:
    records = records_of(leader, queue)
    return NameList(records, leader.connection, leader.publisher, parse=parse, plain=str, news=len)


async def test_a_name_that_cannot_be_read_hides_no_other_of_its_record(session: SessionParameters, queue: str) -> None:
    def parsed(name: str) -> str:
        return str(Bucket.parse(name))

    async with leading(session, f"{queue}.other") as leader:
        names, records = list_of_names(leader, queue, parsed), records_of(leader, queue)
        await records.write({"all": ["day.5", "x", 7, "day." + "9" * 300, None, "hour.8"]})
        for odd in ({"all": 7}, {"made": None}, {"from": "a later version"}):
            await records.write(odd)
        await names.read()
        assert names.names == {"day.5", "hour.8"}


async def test_a_lost_session_fails_what_is_under_way_and_keeps_all_records(lead: Lead, kind: str) -> None:
    async with lead(kind) as first:
        (one,) = await first.log.append({"number": 1})
        appending = asyncio.ensure_future(first.log.replace([one], {"number": 2}))
        await asyncio.sleep(0)
        first.connection.raw.abort()
        with pytest.raises(PalermoError):
            await appending
        first.log.forget(one)  # it is RabbitMQ's again: nothing happens
        with pytest.raises(PalermoError):
            await first.log.append({"number": 3})
    async with lead(kind) as second:
        assert {"number": 1} in second.values
        assert {"number": 3} not in second.values


async def test_a_leader_does_not_begin_while_another_reads_the_records(
    lead: Lead, session: SessionParameters, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_log, "PATIENCE", 0.2)

    async with lead() as earlier, connected(session) as connection:
        await earlier.log.append({"number": 1})
        later = Leader(connection, queue, "classic")
        with pytest.raises(BrokerUnavailable, match="another program is reading"):
            await later.log.open()
        assert not later.log.is_open
        await earlier.log.append({"number": 2})


async def test_a_quorum_queue_that_is_slow_to_answer_is_not_taken_for_empty(
    lead: Lead, shared_node: Node, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = f"{{binary_to_atom({binary('%2F_' + queue)}), node()}}"
    consume = Channel.consume

    async def consume_and_stop(channel: Channel, *args: Any) -> str:
        tag = await consume(channel, *args)
        shared_node.evaluate(f"sys:suspend({member})")
        asyncio.get_running_loop().call_later(1.0, shared_node.evaluate, f"sys:resume({member})")
        return tag

    async with lead("quorum") as first:
        await first.log.append({"number": 1}, {"number": 2})
        # Until then the first leader holds all records.
        asyncio.get_running_loop().call_later(0.5, first.log.close)
        monkeypatch.setattr(Channel, "consume", consume_and_stop)

        async with lead("quorum") as second:
            assert second.values == [{"number": 1}, {"number": 2}]


async def test_a_log_that_is_read_again_acknowledges_none_of_its_old_records(lead: Lead, kind: str) -> None:
    async with lead(kind) as first:
        old = await first.log.append({"number": 1}, {"number": 2})
        first.log.close()
        with pytest.raises(BrokerUnavailable):
            await first.log.append({"number": 3})
        await first.log.open()
        assert first.values == [{"number": 1}, {"number": 2}]
        await first.log.replace(old, {"number": 4})
    async with lead(kind) as second:
        assert second.values == [{"number": 1}, {"number": 2}, {"number": 4}]


async def test_a_mark_comes_behind_other_records(lead: Lead, session: SessionParameters, queue: str, kind: str) -> None:
    async with lead(kind) as leader, leading(session, queue + ".other") as other:
        publisher, channel = await other.publisher(), await leader.connection.channel()
        await publisher.send("", queue, PERSISTENT_JSON, b"not JSON")
        await leader.log.await_mark()
        assert leader.values == [b"not JSON"]
        for number in range(100):
            channel.publish("", queue, PERSISTENT_JSON, json.dumps({"number": number}).encode())
        await leader.log.await_mark(channel)
        assert len(leader.values) == 101
        if kind == "classic":
            await publisher.send("", queue, PERSISTENT_JSON, b"{}")
            await leader.log.catch_up()
            assert len(leader.values) == 102
