"""Jobs that another worker began, and still runs although the broker gave them to us.

RabbitMQ takes a job back that is not acknowledged in time, or whose connection is cut, while
its worker works on it undisturbed. Whoever gets it next parks it: keeps the delivery, runs
other jobs in its slot, and settles it with the result of that other worker. Only if that
one dies, or does not know, is the job run again.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from palermo.broker import Delivery
from palermo.core.lifecycle import Release, Result, settle
from palermo.crew import Order
from palermo.errors import BrokerUnavailable, DeliveryLost, PalermoError
from palermo.worker.outcomes import mark, read
from palermo.worker.session import Link, Live

log = logging.getLogger("palermo.worker")

#: How many jobs one worker parks. What comes beyond that goes back to its queue, after a pause.
MOST = 100
_PAUSE = 1.0

#: Seconds between two questions, and how long an answer may take.
_EVERY, _ANSWER = 1.0, 1.0

#: Questions without an answer after which the job goes back: whoever gets it then looks who lives.
_SILENT = 3


class Floor(Protocol):
    """What parking needs of the worker."""

    link: Link
    failed_per_queue: bool
    stopping: asyncio.Event


class Parking:
    """The parked jobs of one worker."""

    def __init__(self, floor: Floor, worker: str, tell: Callable[[str], Mapping[str, Any] | None]) -> None:
        """`worker` is this worker's id, and `tell` its own answer to the question what became of a job."""
        self._floor = floor
        self._worker = worker
        self._tell = tell
        self._watching: set[asyncio.Task[None]] = set()

    async def take(self, live: Live, delivery: Delivery) -> bool:
        """See to a job that another worker began; False if it is to be run here after all."""
        try:
            told = await self._ask(live, delivery)
            if told is not None and not _is_same(told, delivery):
                return False
            if len(self._watching) >= MOST:
                log.warning("too many parked jobs, giving one back id=%s parked=%d", delivery.message.id, MOST)
                await self._rest(_PAUSE)
                await live.consumer.settle(delivery, Release())
                return True
            await live.consumer.park(delivery)
        except (BrokerUnavailable, DeliveryLost) as error:
            self._lost(live, delivery, error)
            return True
        log.warning(
            "job parked, another worker has it id=%s job=%s queue=%s worker=%s",
            *self._named(delivery),
            delivery.running_at,
        )
        task = asyncio.ensure_future(self._watch(live, delivery, told))
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)
        return True

    async def clear(self) -> None:
        """Wait until all that is parked has gone back, which it does once the worker stops."""
        if self._watching:
            await asyncio.wait(set(self._watching))

    def close(self) -> None:
        """Watch no longer; the session gives back what is still parked."""
        for task in self._watching:
            task.cancel()

    async def _watch(self, live: Live, delivery: Delivery, told: Mapping[str, Any] | None) -> None:
        silent = 0
        try:
            while silent < _SILENT and (told is None or _is_same(told, delivery)):
                result = None if told is None else read(told)
                if told is not None and result is not None and await self._settled(live, delivery, result, told):
                    return
                await self._rest(_EVERY)
                if live is not self._floor.link.live:
                    return
                if self._floor.stopping.is_set():
                    break
                told = await self._ask(live, delivery)
                silent = silent + 1 if told is None else 0
            log.warning("parked job given back id=%s job=%s queue=%s", *self._named(delivery))
            await live.consumer.settle(delivery, Release())
        except (BrokerUnavailable, DeliveryLost) as error:
            self._lost(live, delivery, error)
        except Exception as error:  # an edge of the worker's loop: the job goes back with the session
            log.exception("cannot watch parked job id=%s", delivery.message.id)
            self._floor.link.lose(live, error)

    async def _ask(self, live: Live, delivery: Delivery) -> Mapping[str, Any] | None:
        """What the other worker says of the job; {} if it knows nothing, None if it does not answer."""
        id, worker = delivery.message.id, delivery.running_at
        if worker == self._worker:
            return self._tell(id) or {}
        order = Order(action="outcome", id=id, workers=(worker,))
        answers = await live.broker.command(order, timeout=_ANSWER)
        return next((answer.values for answer in answers if answer.worker == worker), None)

    async def _settled(self, live: Live, delivery: Delivery, result: Result, told: Mapping[str, Any]) -> bool:
        """Settle it with that result; False if that cannot be stored now."""
        slot = str(told.get("slot") or delivery.running_at)
        per_queue = self._floor.failed_per_queue
        settlement = settle(delivery.message, result, worker=slot, now=time.time(), failed_per_queue=per_queue)
        try:
            await live.consumer.settle(delivery, settlement)
        except (BrokerUnavailable, DeliveryLost):
            raise
        except PalermoError as error:
            log.error("result of a parked job cannot be stored id=%s error=%r", delivery.message.id, str(error))
            return False
        log.info(
            "job settled with the result of another worker id=%s job=%s queue=%s worker=%s result=%s",
            *self._named(delivery),
            slot,
            told["state"],
        )
        return True

    def _lost(self, live: Live, delivery: Delivery, error: BrokerUnavailable | DeliveryLost) -> None:
        if isinstance(error, BrokerUnavailable):
            self._floor.link.lose(live, error)
        else:
            log.warning(
                "parked job went back to its queue id=%s job=%s queue=%s error=%r", *self._named(delivery), str(error)
            )

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._floor.stopping.wait()
        except TimeoutError:
            pass

    def _named(self, delivery: Delivery) -> tuple[str, str, str]:
        return delivery.message.id, delivery.message.job, delivery.message.queue


def _is_same(told: Mapping[str, Any], delivery: Delivery) -> bool:
    """Whether the answer is about this message; an id may have been used again."""
    return told.get("mark") == mark(delivery.message)
