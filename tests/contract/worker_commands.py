"""Contract: orders to workers."""

import asyncio
from collections.abc import Mapping
from typing import Any

from palermo.contract.broker import Broker
from palermo.contract.worker_info import WorkerCommand
from tests.contract.tools import PATIENT, Open
from tests.contract.workers import Report, consume
from tests.helpers import Stopwatch


class Obeying:
    """Remembers its orders, and answers with what it is given."""

    def __init__(self, values: Mapping[str, Any] | None) -> None:
        self.orders: list[WorkerCommand] = []
        self._values = values

    async def __call__(self, order: WorkerCommand) -> Mapping[str, Any] | None:
        self.orders.append(order)
        return self._values


class SteeringContract:
    async def test_an_order_reaches_every_worker_and_each_answers(self, broker: Broker, another: Open) -> None:
        obeying = {"pid:1@example": Obeying({"text": "ü"}), "pid:2@example": Obeying({"state": "quiet", "jobs": 2})}
        await consume(await another(), report=Report("jobs", pid=1), on_command=obeying["pid:1@example"])
        await consume(await another(), "a,b", report=Report("a,b", pid=2), on_command=obeying["pid:2@example"])
        order = WorkerCommand(action="stack", id="7c9e", ids=("8d", "9ü"), by="anna@desk")

        answers = await broker.command(order, timeout=PATIENT)

        told = {reply.worker: reply.values for reply in answers}
        assert told == {"pid:1@example": {"text": "ü"}, "pid:2@example": {"state": "quiet", "jobs": 2}}
        assert [one.orders for one in obeying.values()] == [[order], [order]]

        stop = WorkerCommand(action="stop", workers=("pid:1@example",))
        answers = await broker.command(stop, timeout=PATIENT)
        assert [answer.worker for answer in answers] == ["pid:1@example"]
        assert [one.orders for one in obeying.values()] == [[order, stop], [order]]

    async def test_nobody_waits_for_workers_that_have_nothing_to_say(self, broker: Broker, another: Open) -> None:
        await consume(await another(), report=Report("jobs", pid=1))
        await consume(await another(), report=Report("jobs", pid=2), on_command=Obeying({"state": "cancelled"}))
        watch = Stopwatch()

        answers = await broker.command(WorkerCommand(action="cancel", id="7c9e"), timeout=40)
        nobody = await broker.command(WorkerCommand(action="quiet", workers=("pid:9@example",)), timeout=40)

        assert [answer.worker for answer in answers] == ["pid:2@example"]
        assert nobody == []
        assert watch.seconds() < 20

    async def test_an_order_waits_only_so_long_for_an_answer(self, broker: Broker, another: Open) -> None:
        async def never(order: WorkerCommand) -> None:
            await asyncio.Event().wait()

        await consume(await another(), report=Report("jobs", pid=1), on_command=never)

        assert await broker.command(WorkerCommand(action="stack"), timeout=0.3) == []

    async def test_a_worker_that_ends_by_an_order_still_answers(self, broker: Broker, another: Open) -> None:
        ending: list[asyncio.Task[None]] = []

        async def leave(order: WorkerCommand) -> Mapping[str, Any]:
            ending.append(asyncio.ensure_future(consumer.close()))
            return {"state": "stopping"}

        consumer = await consume(await another(), report=Report("jobs", pid=1), on_command=leave)

        (answer,) = await broker.command(WorkerCommand(action="stop"), timeout=PATIENT)

        assert answer.values == {"state": "stopping"}
        await ending[0]
