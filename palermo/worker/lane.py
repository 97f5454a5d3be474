"""A lane: the one long-lived task of a slot, which takes a job, has it run and settles it, again and again."""

import asyncio
import logging
import random
import time
from typing import Protocol

from palermo.broker import Delivery, RunningJob
from palermo.core.failure import Failure
from palermo.core.lifecycle import (
    Ack,
    Cancelled,
    Dropped,
    Fail,
    Interrupted,
    Raised,
    Release,
    Result,
    Retry,
    Retrying,
    Succeeded,
    settle,
)
from palermo.core.message import Message
from palermo.errors import BrokerError, BrokerUnavailable, DeliveryLost, PalermoError
from palermo.worker.pool import Runner
from palermo.worker.session import Link, Live, pause

log = logging.getLogger("palermo.worker")

_ACK = Ack()
_RELEASE = Release()


class Floor(Protocol):
    """What the lanes of a worker share."""

    runner: Runner
    link: Link
    #: Whether to take jobs: not while paused, nor once stopping.
    taking: bool
    #: Where failed jobs go: apart for every queue, or all in one.
    failed_per_queue: bool
    #: Set once the worker stops.
    stopping: asyncio.Event

    def began(self) -> None:
        """A lane has taken a job."""

    def ended(self, result: Result) -> None:
        """A lane has settled one."""


class Lane:
    """One slot as the worker's loop sees it."""

    __slots__ = ("_delivery", "_floor", "_refusals", "_started_at", "number", "tag", "waiting")

    def __init__(self, number: int, tag: str, floor: Floor) -> None:
        self.number = number
        #: What the slot is called in consumer tags and failures.
        self.tag = tag
        #: Whether it waits for a job, so that cancelling it interrupts nothing.
        self.waiting = False
        self._floor = floor
        self._delivery: Delivery | None = None
        self._started_at = 0.0
        #: How many results in a row the broker would not store.
        self._refusals = 0

    @property
    def running(self) -> RunningJob | None:
        """The job that it runs now."""
        if self._delivery is None:
            return None
        message = self._delivery.message
        return RunningJob(
            id=message.id, job=message.job, queue=message.queue, slot=self.number, started_at=self._started_at
        )

    async def serve(self) -> None:
        """Take jobs and have them run for as long as the worker takes any; to be cancelled only while waiting."""
        floor = self._floor
        link = floor.link
        await floor.runner.prepare(self.number)
        while floor.taking:
            live = link.live
            self.waiting = True
            try:
                if live is None:
                    await link.available.wait()
                    continue
                delivery = await live.consumer.receive(self.number)
            except BrokerError as error:
                assert live is not None
                link.lose(live, error)
                continue
            except Exception as error:  # the edge of the worker's loop: a broker's bug must not end the slot
                log.exception("cannot receive slot=%d", self.number)
                assert live is not None
                link.lose(live, error)
                continue
            finally:
                self.waiting = False
            try:
                await self._work(live, delivery)
            except Exception as error:  # the edge again: the job goes back with the session
                log.exception("cannot finish job id=%s job=%s", delivery.message.id, delivery.message.job)
                link.lose(live, error)

    async def _work(self, live: Live, delivery: Delivery) -> None:
        floor, message = self._floor, delivery.message
        self._delivery, self._started_at = delivery, time.time()
        floor.began()
        if log.isEnabledFor(logging.INFO):
            log.info("job started id=%s job=%s queue=%s attempt=%d slot=%d", *self._named(message))
        result: Result = Interrupted()
        try:
            result = await floor.runner.run(self.number, message)
            self._tell(message, result)
            await self._settle(live, delivery, result)
        finally:
            self._delivery = None
            floor.ended(result)

    async def _settle(self, live: Live, delivery: Delivery, result: Result) -> None:
        message = delivery.message
        per_queue = self._floor.failed_per_queue
        settlement = settle(message, result, worker=self.tag, now=time.time(), failed_per_queue=per_queue)
        try:
            await live.consumer.settle(delivery, settlement)
            self._refusals = 0
        except (BrokerUnavailable, DeliveryLost) as error:
            log.warning(
                "result dropped, the broker has given the job back and it will run again id=%s job=%s error=%r",
                message.id,
                message.job,
                str(error),
            )
            if isinstance(error, BrokerUnavailable):
                self._floor.link.lose(live, error)
        except PalermoError as error:
            if not isinstance(settlement, Fail | Retry):
                raise
            # It cannot be stored where it belongs, so it may not be acknowledged: back to its queue, not at full speed.
            self._refusals += 1
            wait = pause(self._refusals, random.random())
            log.error(
                "failed job cannot be stored, giving it back id=%s job=%s error=%r in=%.1f",
                message.id,
                message.job,
                str(error),
                wait,
            )
            await self._rest(wait)
            await self._release(live, delivery)

    async def _release(self, live: Live, delivery: Delivery) -> None:
        try:
            await live.consumer.settle(delivery, _RELEASE)
        except BrokerError as error:
            # Then the session gives it back.
            self._floor.link.lose(live, error)

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._floor.stopping.wait()
        except TimeoutError:
            pass

    def _tell(self, message: Message, result: Result) -> None:
        match result:
            case Raised(failure):
                log.error(
                    "job failed id=%s job=%s queue=%s attempt=%d slot=%d duration=%.3f error=%r",
                    *self._named(message),
                    time.time() - self._started_at,
                    _in_short(failure),
                )
            case Retrying(None, delay):
                log.info(
                    "job snoozed id=%s job=%s queue=%s attempt=%d slot=%d delay=%.1f", *self._named(message), delay
                )
            case Retrying(Failure() as failure, delay):
                log.warning(
                    "job failed id=%s job=%s queue=%s attempt=%d slot=%d duration=%.3f error=%r retry_in=%.1f",
                    *self._named(message),
                    time.time() - self._started_at,
                    _in_short(failure),
                    delay,
                )
            case Dropped(reason):
                log.warning(
                    "job discarded id=%s job=%s queue=%s attempt=%d slot=%d reason=%r", *self._named(message), reason
                )
            case Interrupted():
                log.warning(
                    "job interrupted, giving it back id=%s job=%s queue=%s attempt=%d slot=%d", *self._named(message)
                )
            case Cancelled():
                log.warning("job cancelled id=%s job=%s queue=%s attempt=%d slot=%d", *self._named(message))
            case Succeeded() if log.isEnabledFor(logging.INFO):
                log.info(
                    "job %s id=%s job=%s queue=%s attempt=%d slot=%d duration=%.3f",
                    "skipped" if result.skipped else "finished",
                    *self._named(message),
                    time.time() - self._started_at,
                )

    def _named(self, message: Message) -> tuple[str, str, str, int, int]:
        """What every line about a job says of it, in the lines' order."""
        return message.id, message.job, message.queue, message.attempt, self.number


def _in_short(failure: Failure) -> str:
    text = failure.message.partition("\n")[0][:200]
    return f"{failure.exception_class}: {text}"
