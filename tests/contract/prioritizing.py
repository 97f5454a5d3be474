"""Contract: what goes first within a queue."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from palermo.contract.broker import Broker
from palermo.core.lifecycle import Ack, Fail, Reschedule, fail, requeue
from palermo.core.message import Message
from palermo.core.unique_keys import KeyRequest
from palermo.core.unique_rules import DEBOUNCE
from tests.contract.timing import time_kept
from tests.contract.tools import FAILURE, Open, ids, look, message, until
from tests.contract.workers import at_work, consume, take, take_and_ack


def urgent(id: str, priority: int, queue: str = "jobs") -> Message:
    return message(id, queue, properties={"priority": priority})


#: The order in which a broker hands out these jobs.
InOrder = Callable[[list[Message]], list[Message]]


def strictly(sent: list[Message]) -> list[Message]:
    """The highest priority first, and within it the oldest."""
    return sorted(sent, key=lambda one: -one.priority)


def two_of_three(sent: list[Message]) -> list[Message]:
    """Of three jobs two with a priority of 5 or more, as long as both kinds wait: quorum queues of 4.0 to 4.2."""
    high, low = [one for one in sent if one.priority >= 5], [one for one in sent if one.priority < 5]
    order: list[Message] = []
    while high or low:
        order += [*high[:2], *low[:1]]
        high, low = high[2:], low[1:]
    return order


class PrioritizingContract:
    @pytest.fixture
    def in_order(self) -> InOrder:
        """The order in which this broker hands out jobs that wait, given in the order in which they were published."""
        return strictly

    @pytest.mark.parametrize("queues", ["jobs", "jobs,other"])
    async def test_the_highest_and_oldest_goes_first(self, broker: Broker, in_order: InOrder, queues: str) -> None:
        sent = [urgent("5-a", 5), message("0-a"), urgent("9-a", 9), urgent("5-b", 5), message("0-b"), urgent("9-b", 9)]
        await broker.publish_many(sent)
        consumer = await consume(broker, queues)

        order = [(await take_and_ack(consumer)).id for _ in sent]

        assert order == [one.id for one in in_order(sent)]

    async def test_a_listing_shows_them_in_that_order(self, broker: Broker, in_order: InOrder) -> None:
        sent = [urgent("5", 5), message("0"), urgent("9", 9)]
        await broker.publish_many(sent)

        await until(lambda: ids(broker), [one.id for one in in_order(sent)])

    async def test_a_priority_outlives_failure_requeue_and_retry(self, broker: Broker) -> None:
        consumer, delivery = await at_work(broker, urgent("7c9e", 7))
        await consumer.settle(delivery, Fail(fail(delivery.message, FAILURE, worker="w")))
        (failed,) = await look(broker, "failed")

        await broker.publish(requeue(failed))
        delivery = await take(consumer)
        await consumer.settle(delivery, Reschedule(replace(delivery.message, run_at=1.0)))

        again = await take(consumer)
        assert [failed.priority, delivery.message.priority, again.message.priority] == [7, 7, 7]
        await consumer.settle(again, Ack())

    async def test_a_debounced_job_keeps_its_priority(self, broker: Broker, another: Open) -> None:
        async with time_kept(await another()):
            worker = await consume(await another())
            request = KeyRequest(key="k", message=urgent("7", 7), call="1", spread=DEBOUNCE, seconds=0.1)
            await broker.keys.enqueue([request])

            assert (await take(worker)).message.priority == 7

    async def test_a_worker_makes_prioritized_queues(self, broker: Broker, another: Open, in_order: InOrder) -> None:
        consumer = await consume(await another(prioritized=frozenset({"declared"})), "declared")
        await broker.publish(message("first", "declared"))
        blocked = await take(consumer)  # so that the next ones wait

        sent = [message("0", "declared"), urgent("9", 9, "declared")]
        await broker.publish_many(sent)
        await consumer.settle(blocked, Ack())

        assert [(await take_and_ack(consumer)).id for _ in range(2)] == [one.id for one in in_order(sent)]
