"""The quick way of a plain job through a lane: taken, run and acknowledged without a task in between.

A lane that waits for a job is a task asleep in `Consumer.receive`. A broker that can (palermo.broker.Express)
shows it a plain job in the very turn of the loop in which it came; if the slot is ready the message is written to it
at once, and what it answers is acknowledged in the turn in which that comes. The task sleeps on through both. A job
that ends in any other way than by returning is finished by the lane, as every other one.
"""

import asyncio
import time
from functools import partial
from typing import Protocol

from palermo.broker import Delivery
from palermo.core.lifecycle import RunResult
from palermo.errors import BrokerUnavailable, DeliveryLost
from palermo.worker.keeping import SUCCEEDED
from palermo.worker.pool import Runner
from palermo.worker.session import Live


class Slot(Protocol):
    """The lane, as its quick way sees it."""

    number: int

    def may_take(self, delivery: Delivery) -> bool:
        """Whether it takes this job, as one that is run alone."""

    def begun(self, delivery: Delivery) -> None:
        """It runs this job now."""

    def succeeded(self, delivery: Delivery, ended_at: float) -> None:
        """The job has returned nothing that is kept, and is acknowledged."""

    async def ended(self, live: Live, delivery: Delivery, result: RunResult, ended_at: float) -> None:
        """It has ended with this result, which is still to be settled."""

    def freed(self) -> None:
        """Its slot is free again."""


class Express:
    """The quick way of one lane. It has one job at a time."""

    __slots__ = ("_delivery", "_finishing", "_freed", "_lane", "_live", "_runner")

    def __init__(self, lane: Slot, runner: Runner) -> None:
        self._lane = lane
        self._runner = runner
        self._live: Live
        self._delivery: Delivery | None = None
        self._finishing: asyncio.Task[None] | None = None
        self._freed: asyncio.Future[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether it has a job."""
        return self._delivery is not None

    def open(self, live: Live) -> None:
        """Be shown the jobs of this session from now on, where its broker does so."""
        if live.consumer.express is not None:
            live.consumer.express.offer_to(self._lane.number, partial(self._offered, live))

    async def free(self) -> None:
        """Wait until it has no job."""
        while self._delivery is not None:
            self._freed = asyncio.get_running_loop().create_future()
            await self._freed

    def _offered(self, live: Live, delivery: Delivery) -> bool:
        lane = self._lane
        if self._delivery is not None or not lane.may_take(delivery):
            return False
        if not self._runner.begin(lane.number, delivery.message, self._ended):
            return False
        self._live, self._delivery = live, delivery
        lane.begun(delivery)
        return True

    def _ended(self, result: RunResult) -> None:
        delivery = self._delivery
        assert delivery is not None
        ended_at = time.time()
        if result is SUCCEEDED and not delivery.message.keep_result and self._acknowledged(delivery):
            self._lane.succeeded(delivery, ended_at)
            self._over()
        else:
            self._finishing = asyncio.ensure_future(self._finish(delivery, result, ended_at))

    def _acknowledged(self, delivery: Delivery) -> bool:
        express = self._live.consumer.express
        assert express is not None
        try:
            express.acknowledge(delivery)
        except (BrokerUnavailable, DeliveryLost):
            return False  # which the lane will hear too, and see to
        return True

    async def _finish(self, delivery: Delivery, result: RunResult, ended_at: float) -> None:
        try:
            await self._lane.ended(self._live, delivery, result, ended_at)
        finally:
            self._over()

    def _over(self) -> None:
        self._delivery = None
        self._lane.freed()
        if self._live.consumer.express is not None:
            self._live.consumer.express.next(self._lane.number)
        if self._freed is not None and not self._freed.done():
            self._freed.set_result(None)
