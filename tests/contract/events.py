"""Contract: events, told to every group that subscribes to their topics."""

import asyncio
import time
from typing import Any

import pytest
from msgspec.structs import replace

from palermo.contract.broker import Broker, SessionParameters
from palermo.contract.events import ReplayFilter, Subscription
from palermo.contract.sweep import SweepProgress
from palermo.core.lifecycle import Fail, Reschedule, fail, requeue, retry
from palermo.core.topics import Event, group_queue
from palermo.errors import BrokerRefused, NoSubscriber, NotFound
from tests.contract.tools import FAILURE, Open, counts, ids, look, message, until
from tests.contract.workers import consume, nothing_for, take, take_and_ack


def event(topic: str = "order.paid", id: str = "e1", body: bytes = b'{"a": 1}', **more: Any) -> Event:
    """Something that happened just now."""
    now = {"queued_at": time.time(), "created_at": int(time.time())}
    return Event(topic, message(id, queue="", job="", body=body, **(now | more)))


async def subscribed(broker: Broker, *groups: Subscription) -> tuple[Subscription, ...]:
    for group in groups:
        await broker.events.subscribe(group)
    return groups


class EventsContract:
    @pytest.fixture
    def group(self, session: SessionParameters) -> Any:
        """A subscription of a group, by its name and topics."""

        def make(name: str, *topics: str) -> Subscription:
            queue = group_queue(session.exchange, session.prefix, name)
            return Subscription(group=name, queue=queue, topics=tuple(sorted(topics)), function=f"shop.{name}")

        return make

    async def test_each_group_gets_each_event_once(self, broker: Broker, another: Open, group: Any) -> None:
        mail, audit = await subscribed(broker, group("mail", "order.*"), group("audit", "#", "order.#"))
        workers = [await consume(await another(), mail.queue) for _ in range(2)]
        auditor = await consume(await another(), audit.queue)

        for number in range(4):
            await broker.events.publish(event(id=f"e{number}", extra={"shop": "ü"}))
        found = [await take(workers[0]), await take(workers[1])]
        first = found[0].message
        for worker, delivery in zip(workers, found, strict=True):
            await worker.settle(delivery, fail_of(delivery))
        await workers[0].pause_slot(1)
        got = [one.message.id for one in found] + [(await take_and_ack(workers[1])).id for _ in range(2)]
        audited = [(await take_and_ack(auditor)).id for _ in range(4)]

        assert sorted(got) == [f"e{number}@mail" for number in range(4)]
        assert audited == [f"e{number}@audit" for number in range(4)]
        assert (first.job, first.queue, first.topic, first.body) == ("mail", mail.queue, "order.paid", b'{"a": 1}')
        assert first.extra["shop"] == "ü"
        for worker in (workers[1], auditor):
            await nothing_for(worker)

    async def test_topics_are_matched_word_by_word(self, broker: Broker, group: Any) -> None:
        wanted = {
            "order.paid": ["order.paid"],
            "order.*": ["order.paid", "order.sent"],
            "*.paid": ["order.paid", "bill.paid"],
            "order.#": ["order", "order.paid", "order.sent", "order.paid.twice"],
            "#.twice": ["order.paid.twice"],
            "#": ["order", "order.paid", "order.sent", "bill.paid", "order.paid.twice"],
        }
        for number, pattern in enumerate(wanted):
            await broker.events.subscribe(group(f"g{number}", pattern))

        for topic in wanted["#"]:
            await broker.events.publish(event(topic, id=topic))

        for number, topics in enumerate(wanted.values()):
            queue = group(f"g{number}", "#").queue
            await until(lambda queue=queue: ids(broker, queue), [f"{topic}@g{number}" for topic in topics])  # type: ignore[misc]

    async def test_events_wait_while_the_group_is_down(self, broker: Broker, another: Open, group: Any) -> None:
        await broker.events.publish(event(id="nobody-was-there"))
        mail = group("mail", "order.*")
        subscriber = await another()
        await subscriber.events.subscribe(mail)
        await subscriber.close()

        await broker.events.publish(event(id="down"))

        worker = await consume(await another(), mail.queue)
        assert (await take_and_ack(worker)).id == "down@mail"
        await nothing_for(worker)

    async def test_a_failed_event_is_run_again_for_its_group(self, broker: Broker, another: Open, group: Any) -> None:
        mail, audit = await subscribed(broker, group("mail", "order.*"), group("audit", "order.*"))
        await broker.events.publish(event())
        worker = await consume(await another(), mail.queue)

        first = await take(worker)
        again = retry(first.message, FAILURE, worker="pid:1@h/worker-1", now=time.time() - 1, delay=0.5)
        await worker.settle(first, Reschedule(again))
        second = await take(worker)
        await worker.settle(second, fail_of(second))
        (failed,) = await look(broker, "failed")
        await broker.publish(requeue(failed))
        third = await take(worker)

        assert (second.message.id, second.message.retries) == ("e1@mail", 1)
        assert (failed.id, failed.queue, failed.job, failed.topic) == ("e1@mail", mail.queue, "mail", "order.paid")
        assert (third.message.id, third.message.topic, third.message.body) == ("e1@mail", "order.paid", b'{"a": 1}')
        assert await ids(broker, audit.queue) == ["e1@audit"]

    async def test_subscriptions_are_changed_and_taken_back(self, broker: Broker, another: Open, group: Any) -> None:
        assert await broker.events.subscriptions() == []
        mail, audit = group("mail", "order.*", "bill.*"), group("audit", "#")
        began = time.time()
        for one in (mail, audit, mail):
            await broker.events.subscribe(one)
        ended = time.time()
        listed = await (await another()).events.subscriptions()
        assert [replace(one, since=0.0) for one in listed] == [audit, mail]
        assert began - 1 <= listed[1].since <= ended + 1

        changed = group("mail", "order.*")
        await (await another()).events.subscribe(changed)
        await broker.events.unsubscribe("audit")
        await broker.events.publish(event("bill.paid", id="unwanted"))
        await broker.events.publish(event())

        (left,) = await broker.events.subscriptions()
        assert (left.topics, left.since) == (("order.*",), listed[1].since)
        await until(lambda: ids(broker, mail.queue), ["e1@mail"])
        assert await ids(broker, audit.queue) == []
        with pytest.raises(NotFound, match="'audit'"):
            await broker.events.unsubscribe("audit")

    async def test_a_group_without_its_queue_subscribes_again(self, broker: Broker, another: Open, group: Any) -> None:
        mail = group("mail", "#")
        subscriber = await another()
        await subscriber.events.subscribe(mail)
        await broker.events.publish(event())
        await until(lambda: counts(broker, mail.queue), (1, 0))

        assert await broker.delete(mail.queue) == 1

        assert await broker.events.subscriptions() == []
        await broker.events.publish(event())
        assert await counts(broker, mail.queue) is None

        await subscriber.events.subscribe(mail)
        await broker.events.publish(event(id="e2"))
        assert (await take_and_ack(await consume(subscriber, mail.queue))).id == "e2@mail"

    async def test_events_from_before_are_told_to_a_group(self, broker: Broker, another: Open, group: Any) -> None:
        for number in range(3):
            await broker.events.publish(event(id=f"e{number}"))
        await broker.events.publish(event("bill.paid"))
        mail, late = group("mail", "order.*"), await another()

        told = await late.events.subscribe(mail, from_start=True)
        await broker.events.publish(event(id="e3"))
        again = await late.events.subscribe(mail, from_start=True)

        assert (told, again) == (3, 0)
        await until(lambda: ids(broker, mail.queue), [f"e{number}@mail" for number in range(4)])
        (first, *_) = await look(broker, mail.queue)
        assert (first.job, first.queue, first.topic, first.body) == ("mail", mail.queue, "order.paid", b'{"a": 1}')
        assert first.queued_at is None

    async def test_events_published_meanwhile_come_once(self, broker: Broker, another: Open, group: Any) -> None:
        mail, late = group("mail", "order.*"), await another()
        sent: list[str] = []
        enough: list[bool] = []

        async def publish() -> None:
            while not enough:
                id = f"e{len(sent)}"
                await broker.events.publish(event(id=id))
                sent.append(id)
                await asyncio.sleep(0)

        async def more() -> None:
            wanted = len(sent) + 20
            await until(lambda: len(sent) >= wanted, True)

        publishing = asyncio.ensure_future(publish())
        await more()
        told = await late.events.subscribe(mail, from_start=True)
        await more()
        enough.append(True)
        await publishing

        assert told >= 20
        await until(lambda: counts(broker, mail.queue), (len(sent), 0))
        assert set(await ids(broker, mail.queue)) == {f"{id}@mail" for id in sent}

    async def test_kept_events_are_told_again_to_one_group(self, broker: Broker, group: Any) -> None:
        mail, audit = await subscribed(broker, group("mail", "order.*"), group("audit", "#"))
        for number in range(3):
            await broker.events.publish(event(id=f"e{number}"))
        await broker.events.publish(event("bill.paid", id="bill"))
        await until(lambda: counts(broker, mail.queue), (3, 0))
        await broker.purge(mail.queue)
        seen: list[SweepProgress] = []

        told = await broker.events.replay("mail", progress=seen.append)
        one = await broker.events.replay("mail", ReplayFilter(topic="bill.#"))
        none = await broker.events.replay("mail", ReplayFilter(until=time.time() - 60))
        since = await broker.events.replay("mail", ReplayFilter(since=time.time() - 60, topic="order.paid"))

        assert (told, one, none, since) == (3, 1, 0, 3)
        assert seen[-1].moved == 3
        found = await look(broker, mail.queue)
        assert [each.id.partition("~")[0] for each in found[:4]] == ["e0@mail", "e1@mail", "e2@mail", "bill@mail"]
        assert len({each.id for each in found}) == 7
        assert {each.topic for each in found} == {"order.paid", "bill.paid"}
        assert len(await ids(broker, audit.queue)) == 4
        with pytest.raises(NotFound, match="'nobody'"):
            await broker.events.replay("nobody")

    async def test_what_none_wants_is_refused(self, another: Open, group: Any) -> None:
        strict = await another(keep_events=False)
        mail = group("mail", "order.*")

        for _ in range(2):
            with pytest.raises(NoSubscriber, match=r"'bill\.paid'"):
                await strict.events.publish(event("bill.paid"))
        await strict.events.subscribe(mail, from_start=True)
        await strict.events.publish(event())

        await until(lambda: ids(strict, mail.queue), ["e1@mail"])
        assert await strict.events.kept() is None
        with pytest.raises(BrokerRefused, match="not kept"):
            await strict.events.replay("mail")

    async def test_kept_events_are_counted_and_forgotten(self, broker: Broker, another: Open, group: Any) -> None:
        await broker.events.publish(event(queued_at=time.time() - 100))
        await until(broker.events.kept, 1)

        forgetful = await another(events_age=50.0)

        assert await forgetful.events.subscribe(group("mail", "#"), from_start=True) == 0


def fail_of(delivery: Any) -> Fail:
    return Fail(fail(delivery.message, FAILURE, worker="pid:1@h/worker-1"))
