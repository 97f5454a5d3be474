"""Contract: plain jobs are offered to a slot while its `receive` waits, and all others are returned by `receive`."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from palermo.contract.broker import Broker, Consumer, Delivery
from palermo.core.lifecycle import Ack, Release, Settlement
from palermo.core.message import Message
from palermo.errors import DeliveryLost
from tests.contract.limiting import limited
from tests.contract.tools import Open, message, queue, until
from tests.contract.unique_jobs import keyed


class Slots:
    """The slots of a worker, which take each job that they are offered, unless they are told not to."""

    def __init__(self, consumer: Consumer, count: int, *, takes: bool) -> None:
        self.consumer = consumer
        #: What was offered and taken, or returned by `receive`: that may be the very first job.
        self.taken: list[Delivery] = []
        self.offered: list[str] = []
        self.receiving: dict[int, asyncio.Future[Delivery]] = {}
        self._takes = takes
        for slot in range(1, count + 1):
            self._receive(slot)

    def _receive(self, slot: int) -> None:
        self.receiving[slot] = asyncio.ensure_future(self.consumer.receive(slot, self._take))
        self.receiving[slot].add_done_callback(self._returned)

    def _take(self, delivery: Delivery) -> bool:
        self.offered.append(delivery.message.id)
        if self._takes:
            self.taken.append(delivery)
        return self._takes

    def _returned(self, receiving: asyncio.Future[Delivery]) -> None:
        if not receiving.cancelled() and receiving.exception() is None:
            self.taken.append(receiving.result())

    async def end(self, delivery: Delivery, settlement: Settlement = Ack()) -> None:  # noqa: B008 - it is frozen
        """Settle it, at once if that is possible; the slot receives the next."""
        is_returned = self.receiving[delivery.slot].done()
        if isinstance(settlement, Ack) and not is_returned:
            self.consumer.acknowledge(delivery)
        else:
            await self.consumer.settle(delivery, settlement)
        if is_returned:
            self._receive(delivery.slot)

    async def given(self, *expected: str) -> Delivery:
        """The last delivery, once the slots have been given exactly these jobs."""
        await until(lambda: [delivery.message.id for delivery in self.taken], list(expected))
        return self.taken[-1]


async def pending(broker: Broker) -> int:
    found = await queue(broker)
    return -1 if found is None else found.pending


#: Starts slots on a session; see the fixture in conftest.py.
Start = Callable[..., Awaitable[Slots]]


class OfferingContract:
    @pytest.mark.parametrize("queues", ["jobs", "jobs,other"])
    async def test_plain_jobs_come_in_order(self, broker: Broker, another: Open, start: Start, queues: str) -> None:
        sent = [message(f"{number}", body=body) for number, body in enumerate((b"[1]", b"", b"x" * 300_000, b"[2]"))]
        await broker.publish_many(sent)
        slots = await start(await another(), queues)

        for number in range(4):
            delivery = await slots.given(*(f"{each}" for each in range(number + 1)))
            assert delivery.message.body == sent[number].body
            await until(lambda: pending(broker), 3 - number)
            await slots.end(delivery)
            with pytest.raises(DeliveryLost):
                slots.consumer.acknowledge(delivery)

        await broker.publish(message("late"))
        await slots.given("0", "1", "2", "3", "late")
        assert not slots.receiving[1].done()

    @pytest.mark.parametrize("queues", ["jobs", "jobs,other"])
    @pytest.mark.parametrize(
        ("other", "by"), [(keyed("second"), ""), (limited("second"), ""), (message("second"), "anna@desk")]
    )
    async def test_a_job_that_is_not_plain_is_returned_by_receive(
        self, broker: Broker, another: Open, start: Start, other: Message, by: str, queues: str
    ) -> None:
        await broker.publish_many([message("first"), other])
        if by:
            await broker.cancel(["second"], by=by)
        slots = await start(await another(), queues)

        await slots.end(await slots.given("first"))
        second = await slots.given("first", "second")

        assert second.cancelled_by == by
        assert slots.receiving[1].done()
        assert "second" not in slots.offered
        await slots.end(second)

    @pytest.mark.parametrize("queues", ["jobs", "jobs,other"])
    async def test_a_declined_job_is_received(self, broker: Broker, another: Open, start: Start, queues: str) -> None:
        await broker.publish(message("declined"))
        slots = await start(await another(), queues, takes=False)

        delivery = await slots.given("declined")
        await slots.end(delivery, Release())

        again = await slots.given("declined", "declined")
        assert again.redelivered
        assert len(slots.offered) <= 1
        await slots.end(again)
