"""Contract: deliveries that are set aside."""

import pytest

from palermo.contract.broker import Broker
from palermo.core.lifecycle import Ack, Fail, Release, fail
from palermo.errors import DeliveryLost
from tests.contract.tools import FAILURE, Open, consume, counts, ids, messages, nothing_for, take, take_and_ack, until


class ParkingContract:
    @pytest.mark.parametrize("queues", ["jobs", "jobs,other", "*"])
    async def test_a_slot_goes_on_beside_a_parked_job_which_is_settled_later(self, broker: Broker, queues: str) -> None:
        await broker.publish_many(messages(4))
        consumer = await consume(broker, queues)
        first = await take(consumer)

        await consumer.free_slot(first)

        second = await take(consumer)
        assert second.message.id == "jobs-1"
        await consumer.free_slot(second)
        third = await take(consumer)
        await consumer.settle(first, Ack())
        await consumer.settle(second, Fail(fail(second.message, FAILURE, worker="w")))
        await consumer.settle(third, Ack())
        assert (await take_and_ack(consumer)).id == "jobs-3"
        assert await ids(broker, "failed") == ["jobs-1"]
        await consumer.close()
        await until(lambda: counts(broker), (0, 0))

    async def test_a_parked_job_returns_when_released_or_its_consumer_closes(
        self, broker: Broker, another: Open
    ) -> None:
        await broker.publish_many(messages(2))
        consumer = await consume(await another())
        parked = [await take(consumer)]
        await consumer.free_slot(parked[0])
        parked.append(await take(consumer))
        await consumer.free_slot(parked[1])

        await consumer.settle(parked[0], Release())

        assert (await take_and_ack(consumer)).id == "jobs-0"
        await consumer.close()
        assert (await take_and_ack(await consume(broker))).id == "jobs-1"

    @pytest.mark.parametrize("queues", ["jobs", "*"])
    async def test_what_was_parked_is_settled_once(self, broker: Broker, queues: str) -> None:
        await broker.publish_many(messages(1))
        consumer = await consume(broker, queues)
        delivery = await take(consumer)
        await consumer.free_slot(delivery)
        await consumer.settle(delivery, Ack())

        with pytest.raises(DeliveryLost):
            await consumer.settle(delivery, Ack())
        with pytest.raises(DeliveryLost):
            await consumer.free_slot(delivery)

        await nothing_for(consumer)
