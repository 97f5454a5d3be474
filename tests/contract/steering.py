"""Contract: orders to workers."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from palermo.broker import Broker
from palermo.crew import Answer, Order
from tests.contract.kit import Open, Report, consume


class Obeying:
    """Remembers its orders, and answers with what it is given."""

    def __init__(self, values: Mapping[str, Any] | None) -> None:
        self.orders: list[Order] = []
        self._values = values

    async def __call__(self, order: Order) -> Mapping[str, Any] | None:
        self.orders.append(order)
        return self._values


class SteeringContract:
    async def test_an_order_reaches_every_worker_and_each_answers(self, broker: Broker, another: Open) -> None:
        obeying = {"pid:1@example": Obeying({"text": "ü"}), "pid:2@example": Obeying({"state": "quiet", "jobs": 2})}
        await consume(await another(), report=Report("jobs", pid=1), obey=obeying["pid:1@example"])
        await consume(await another(), "a,b", report=Report("a,b", pid=2), obey=obeying["pid:2@example"])
        order = Order(action="stack", id="7c9e", by="anna@desk")

        answers = await broker.command(order)

        assert answers == [
            Answer(worker="pid:1@example", values={"text": "ü"}),
            Answer(worker="pid:2@example", values={"state": "quiet", "jobs": 2}),
        ]
        assert [one.orders for one in obeying.values()] == [[order], [order]]

    async def test_an_order_to_one_worker_is_not_for_the_others(self, broker: Broker, another: Open) -> None:
        meant, other = Obeying({"state": "stopping"}), Obeying({})
        await consume(await another(), report=Report("jobs", pid=1), obey=meant)
        await consume(await another(), report=Report("jobs", pid=2), obey=other)

        answers = await broker.command(Order(action="stop", workers=("pid:1@example",)))

        assert [answer.worker for answer in answers] == ["pid:1@example"]
        assert (len(meant.orders), other.orders) == (1, [])

    async def test_nobody_waits_for_workers_that_have_nothing_to_say(self, broker: Broker, another: Open) -> None:
        await consume(await another(), report=Report("jobs", pid=1))
        await consume(await another(), report=Report("jobs", pid=2), obey=Obeying({"state": "cancelled"}))
        begun = time.monotonic()

        answers = await broker.command(Order(action="cancel", id="7c9e"), timeout=20)
        nobody = await broker.command(Order(action="quiet", workers=("pid:9@example",)), timeout=20)

        assert [answer.worker for answer in answers] == ["pid:2@example"]
        assert nobody == []
        assert time.monotonic() - begun < 10

    async def test_an_order_waits_only_so_long_for_an_answer(self, broker: Broker, another: Open) -> None:
        async def never(order: Order) -> None:
            await asyncio.Event().wait()

        await consume(await another(), report=Report("jobs", pid=1), obey=never)

        assert await broker.command(Order(action="stack"), timeout=0.3) == []

    async def test_an_order_without_workers_is_answered_by_none(self, broker: Broker) -> None:
        assert await broker.command(Order(action="quiet")) == []

    async def test_workers_of_another_exchange_are_not_told(self, broker: Broker, elsewhere: Open) -> None:
        obeying = Obeying({})
        await consume(await elsewhere(), obey=obeying)

        assert await broker.command(Order(action="quiet")) == []
        assert obeying.orders == []

    async def test_a_worker_that_ends_by_an_order_still_answers(self, broker: Broker, another: Open) -> None:
        ending: list[asyncio.Task[None]] = []

        async def leave(order: Order) -> Mapping[str, Any]:
            ending.append(asyncio.ensure_future(consumer.close()))
            return {"state": "stopping"}

        consumer = await consume(await another(), report=Report("jobs", pid=1), obey=leave)

        (answer,) = await broker.command(Order(action="stop"))

        assert answer.values == {"state": "stopping"}
        await ending[0]
