"""RabbitMQ keeps the contract."""

import asyncio
import json
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.browsing import failed_log
from palermo.contract.broker import Broker, SessionParameters
from palermo.contract.rows import job_row
from palermo.contract.serialization import Serializers
from palermo.contract.sweep import Keep, Move, Remove, Stop, SweepDecision
from palermo.core.address import parse_url
from palermo.core.lifecycle import Fail, JobState, fail, requeue
from palermo.core.message import Message
from palermo.core.topology import amqp_queue
from palermo.errors import NotBrowsable
from tests.contract.broker_contract import BrokerContract
from tests.contract.limiting import LimitingContract
from tests.contract.prioritizing import InOrder, PrioritizingContract, strictly, two_of_three
from tests.contract.publishing import ConsumingContract, PublishingContract
from tests.contract.tenants import known
from tests.contract.timing import time_kept
from tests.contract.tools import FAILURE, PATIENT, Open, counts, ids, look, message, messages, put_into_failed, until
from tests.contract.workers import at_work, consume, take, take_and_ack
from tests.rabbitmq.patience import have_patience
from tests.rabbitmq_node import version_of
from tests.rabbitmq_tidy import Tidy


class Foreign:
    """Another program that uses the broker's queues."""

    def __init__(self, channel: BlockingChannel, exchange: str) -> None:
        self.channel = channel
        self.failed, self.log = f"{exchange}.failed", f"{exchange}.~failed-log"

    def get(self, *, auto_ack: bool = False) -> tuple[Any, Any, bytes]:
        return self.channel.basic_get(self.failed, auto_ack=auto_ack)

    def publish(self, id: str, **headers: object) -> None:
        self.channel.basic_publish("", self.failed, b"[]", pika.BasicProperties(message_id=id, headers=headers))


class TestRabbitmq(BrokerContract):
    queue_type = "classic"

    @pytest.fixture
    def session(self, rabbitmq_url: str, tidy: Tidy, monkeypatch: pytest.MonkeyPatch) -> Iterator[SessionParameters]:
        have_patience(monkeypatch)
        address, exchange = parse_url(rabbitmq_url), f"test-{uuid.uuid4().hex[:8]}"
        session = SessionParameters(address=address, exchange=exchange, queue_type=self.queue_type, timeout=PATIENT)
        yield session
        for exchange in (session.exchange, f"{session.exchange}-2"):
            tidy(rabbitmq_url, exchange)

    #: Three for each slot.
    had_their_turn = 6

    async def tenants_had_their_turn(self, broker: Broker) -> None:
        assert isinstance(broker, RabbitmqBroker)
        declarer = broker._outbox.declarer

        async def waits() -> bool:
            counted = await declarer.count("jobs")
            return counted is not None and counted[0] >= 3

        await until(waits, True)

    async def take_away_behind_our_back(self, broker: Broker) -> None:
        assert isinstance(broker, RabbitmqBroker)
        channel = await broker._connection.channel()
        await channel.call(channel.raw.queue_purge, amqp_queue(broker._exchange, "jobs"))


class TestRabbitmqWithQuorumQueues(TestRabbitmq):
    """What publishers and workers are promised; a quorum queue is not read in order to be shown."""

    queue_type = "quorum"

    @pytest.fixture
    def in_order(self, rabbitmq_url: str) -> InOrder:
        version = version_of(rabbitmq_url)
        return strictly if version >= (4, 3) else two_of_three if version >= (4,) else list

    @pytest.fixture
    def foreign(self, session: SessionParameters, rabbitmq_url: str) -> Iterator[Foreign]:
        with pika.BlockingConnection(pika.URLParameters(rabbitmq_url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            yield Foreign(channel, session.exchange)

    async def test_a_queue_is_not_browsed(self, broker: Broker) -> None:
        await broker.publish(message())

        with pytest.raises(NotBrowsable, match="quorum"):
            await broker.browse("jobs")

    async def test_jobs_of_tenants_are_dealt_in_turn(self, broker: Broker, another: Open) -> None:
        # While there are enough jobs of nobody's none is dealt, before both tenants are known.
        await broker.publish_many(messages(3))
        await broker.publish_many([message(tenant=tenant) for tenant in "ab" for _ in range(5)])
        async with time_kept(broker):
            await known(broker, "a", "b")
            consumer = await consume(await another())
            order = [(await take_and_ack(consumer)).tenant for _ in range(13)]

        assert order[:3] == [""] * 3
        order = order[3:]
        assert order in (["a", "b"] * 5, ["b", "a"] * 5)

    async def test_failed_jobs_are_shown_in_pages(self, broker: Broker, another: Open) -> None:
        await put_into_failed(broker, [message(f"jobs-{n}", extra={"region": "eu"}) for n in range(5)])
        onlooker = await another()

        page = await onlooker.browse("failed", offset=1, limit=2)
        newest = await onlooker.browse("failed", limit=2, newest=True)

        assert ([one.id for one in page.messages], page.total, page.unseen) == (["jobs-1", "jobs-2"], 5, 0)
        assert [one.id for one in newest.messages] == ["jobs-4", "jobs-3"]
        (found,) = (await onlooker.browse("failed", limit=1)).messages
        assert (found.failure, found.queue, found.extra["region"], found.body) == (FAILURE, "jobs", "eu", b"[1]")
        assert (await onlooker.browse("failed", offset=9)).messages == ()

    async def test_failed_jobs_are_looked_at_without_being_handed_out(self, broker: Broker, foreign: Foreign) -> None:
        await put_into_failed(broker, messages(3))

        for _ in range(3):
            assert await ids(broker, "failed") == ["jobs-0", "jobs-1", "jobs-2"]
            swept = await broker.sweep("failed", lambda _: Keep(), only_look=True)
            assert (swept.seen, swept.total, swept.unseen) == (3, 3, 0)

        swept = await broker.sweep("failed", lambda one: Stop() if one.id == "jobs-1" else Keep(), only_look=True)
        assert (swept.seen, swept.total) == (1, 3)
        looked: list[str] = []
        for id in ("jobs-1", "jobs-9"):
            await broker.sweep("failed", lambda one: looked.append(one.id) or Keep(), only_look=True, ids=[id])
        assert looked == ["jobs-1"]

        method, properties, _ = foreign.get()
        assert (method.redelivered, properties.headers.get("x-delivery-count", 0)) == (False, 0)

    async def test_a_large_body_stays_in_the_queue_and_is_not_taken_for_none(self, broker: Broker) -> None:
        await put_into_failed(broker, [message("large", body=json.dumps("x" * failed_log.MAX_BODY).encode())])

        (shown,) = (await broker.browse("failed")).messages

        assert (shown.body, shown.content_encoding) == (b"-", "omitted")
        assert job_row(shown, JobState.FAILED, Serializers.default())["args"] is None
        await broker.sweep("failed", lambda one: Move(requeue(one)))
        (kept,) = await look(broker)
        assert len(kept.body) == failed_log.MAX_BODY + 2

    async def test_what_leaves_the_failed_is_shown_no_more(self, broker: Broker, another: Open) -> None:
        await put_into_failed(broker, messages(4))
        onlooker = await another()
        assert len(await ids(onlooker, "failed")) == 4

        await broker.sweep("failed", lambda one: Remove() if one.id == "jobs-1" else Keep())
        await broker.sweep("failed", lambda one: Move(requeue(one)) if one.id == "jobs-2" else Keep())
        await until(lambda: ids(onlooker, "failed"), ["jobs-0", "jobs-3"])
        assert await ids(await another(), "failed") == ["jobs-0", "jobs-3"]
        await until(lambda: unseen(onlooker), 0)

        await until(lambda: counts(broker, "failed"), (2, 0))
        assert await broker.purge("failed") == 2
        assert await ids(onlooker, "failed") == []

        # One that fails again is shown as it failed last.
        await put_into_failed(broker, [message("again", "other")])
        consumer = await consume(broker, "other")
        for _ in range(2):
            await broker.sweep("failed", lambda one: Move(requeue(one)))
            delivery = await take(consumer)
            await consumer.settle(delivery, Fail(fail(delivery.message, FAILURE, worker="pid:2@h/worker-1")))
        (found,) = (await onlooker.browse("failed")).messages
        assert (found.id, found.worker, found.retries) == ("again", "pid:2@h/worker-1", 2)

    async def test_each_queue_of_failed_jobs_is_shown_by_itself(self, broker: Broker) -> None:
        for number, there in enumerate(["failed", "failed:mail", "failed"]):
            consumer, delivery = await at_work(broker, message(f"jobs-{number}"))
            await consumer.settle(delivery, Fail(fail(delivery.message, FAILURE, worker="w"), queue=there))
            await consumer.close()

        assert await ids(broker, "failed") == ["jobs-0", "jobs-2"]
        assert await ids(broker, "failed:mail") == ["jobs-1"]

        await broker.delete("failed")
        assert await ids(broker, "failed:mail") == ["jobs-1"]

    async def test_what_others_did_to_the_failed_jobs_is_said(self, broker: Broker, foreign: Foreign) -> None:
        await put_into_failed(broker, messages(3))
        for _ in range(2):
            foreign.publish("x")
        await until(lambda: unseen(broker), 2)
        assert (await broker.browse("failed")).total == 5
        foreign.channel.queue_purge(foreign.failed)
        await until(lambda: unseen(broker), -3)
        await broker.purge("failed")
        assert (await ids(broker, "failed"), await unseen(broker)) == ([], 0)

        await put_into_failed(broker, messages(2, "other"))
        assert await ids(broker, "failed") == ["other-0", "other-1"]
        foreign.channel.queue_delete(foreign.log)
        assert ((await broker.browse("failed")).messages, await unseen(broker)) == ((), 2)
        await put_into_failed(broker, [message("new", "other")])
        assert (await ids(broker, "failed"), await unseen(broker)) == (["new"], 2)

    async def test_jobs_that_a_new_log_hides_are_counted(self, broker: Broker, another: Open, foreign: Foreign) -> None:
        onlooker = await another()
        await put_into_failed(broker, messages(2))
        assert len(await ids(onlooker, "failed")) == 2
        await broker.sweep("failed", lambda _: Remove())
        assert await ids(onlooker, "failed") == []
        foreign.channel.queue_delete(foreign.log)

        await put_into_failed(broker, messages(9, "other"))

        page = await onlooker.browse("failed")
        assert len(page.messages) + page.unseen == page.total == 9
        assert page.unseen <= 3

    async def test_a_sweep_puts_the_log_right(self, broker: Broker, another: Open, foreign: Foreign) -> None:
        await put_into_failed(broker, messages(3))
        onlooker, mender = await another(), await another()
        assert foreign.get(auto_ack=True)[1].message_id == "jobs-0"
        for id, failed_at in (("old", 1_700_000_000), ("just now", int(time.time()))):
            foreign.publish(id, **{"exception-class": "ValueError", "failed-at": failed_at})
        await until(lambda: unseen(onlooker), 1)
        assert await ids(onlooker, "failed") == ["jobs-0", "jobs-1", "jobs-2"]

        await mender.sweep("failed", lambda one: Stop() if one.id == "jobs-2" else Keep())
        assert await ids(onlooker, "failed") == ["jobs-0", "jobs-1", "jobs-2"]
        await until(lambda: counts(broker, "failed"), (4, 0))
        await mender.sweep("failed", lambda _: Keep())

        # What failed just now may be on its way into the log.
        assert await ids(onlooker, "failed") == ["jobs-1", "jobs-2", "old"]
        await until(lambda: unseen(onlooker), 1)
        assert (await mender.sweep("failed", lambda _: Remove())).removed == 4
        assert (await ids(onlooker, "failed"), await unseen(onlooker)) == ([], 0)

    async def test_sweeps_of_the_failed_take_turns(self, broker: Broker, another: Open) -> None:
        await put_into_failed(broker, messages(45))
        met: list[str] = []

        def keep(one: Message) -> SweepDecision:
            met.append(one.id)
            return Keep()

        sessions = [broker, await another(), await another()]
        swept = await asyncio.gather(*(each.sweep("failed", keep) for each in [*sessions, broker]))

        assert [one.seen for one in swept] == [45] * 4
        assert set(Counter(met).values()) == {4}

    async def test_few_jobs_far_apart_are_found(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(failed_log, "_GAP", 1)
        await put_into_failed(broker, messages(9))

        await broker.sweep("failed", lambda one: Keep() if one.id in {"jobs-1", "jobs-5", "jobs-6"} else Remove())

        assert await ids(broker, "failed") == ["jobs-1", "jobs-5", "jobs-6"]

    async def test_a_log_that_cannot_be_written_keeps_no_job_from_being_stored(
        self, broker: Broker, foreign: Foreign, caplog: pytest.LogCaptureFixture
    ) -> None:
        full = {"x-max-length": 0, "x-overflow": "reject-publish"}
        foreign.channel.queue_declare(foreign.log, durable=True, arguments=full)

        await put_into_failed(broker, messages(2))

        await until(lambda: counts(broker, "failed"), (2, 0))
        assert caplog.text.count("cannot write the log of failed jobs") == 1
        assert (await broker.sweep("failed", lambda one: Remove())).removed == 2
        foreign.channel.queue_delete(foreign.log)


async def unseen(broker: Broker) -> int:
    return (await broker.browse("failed")).unseen


#: What is tested of quorum queues too.
_OF_QUORUM = (PublishingContract, ConsumingContract, PrioritizingContract, LimitingContract)

for _name in dir(BrokerContract):
    if _name.startswith("test_") and not any(hasattr(contract, _name) for contract in _OF_QUORUM):
        setattr(TestRabbitmqWithQuorumQueues, _name, None)
