"""Keeps the results that the broker refuses to store, until it takes them.

A full queue (overflow reject-publish) of failed jobs refuses a failure, and a full job queue a retry. If the worker
acknowledged such a job, it would be lost. If the worker gave it back, it would run again, as often as it is refused.
So the worker keeps its delivery unacknowledged, the slot takes the next job, and the worker tries to store the result
again, with pauses that grow.

The worker keeps at most MAX_RESULTS such jobs, with at most MAX_BYTES of bodies. The slot of a further one waits with
it and takes no job meanwhile. When the session is lost, these jobs go back to their queues, and this worker tells the
workers that get them how they ended.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from palermo.contract.broker import Delivery
from palermo.core.lifecycle import Fail, Release, Reschedule, Result
from palermo.errors import BrokerError, BrokerUnavailable, DeliveryLost, PalermoError
from palermo.worker.parent.broker_session import BrokerSession, BrokerSessions, backoff
from palermo.worker.parent.outcomes import Outcomes

log = logging.getLogger("palermo.worker")

#: The most jobs that one worker keeps, and the most bytes of their bodies together.
MAX_RESULTS, MAX_BYTES = 100, 64 * 1024 * 1024

#: Seconds between two log lines about one queue that goes on refusing.
_LOG_EVERY = 60.0


@dataclass(frozen=True, slots=True, eq=False)
class RefusedResult:
    """A job that has ended, and whose result the broker refused."""

    session: BrokerSession
    delivery: Delivery
    result: Result
    #: The settlement that the broker refused.
    settlement: Fail | Reschedule
    #: The tag of the slot that ran it.
    slot: str
    #: Called with True once the result is stored, or with False once it cannot be any more.
    ended: Callable[[bool], None]

    @property
    def queue(self) -> str:
        """The queue that refuses the result."""
        return self.settlement.queue if isinstance(self.settlement, Fail) else self.settlement.message.queue


class RefusedResults:
    """The refused results that one worker keeps and tries to store."""

    def __init__(self, sessions: BrokerSessions, outcomes: Outcomes, stopping: asyncio.Event) -> None:
        self._sessions = sessions
        self._outcomes = outcomes
        self._stopping = stopping
        self._kept: dict[RefusedResult, asyncio.Task[None]] = {}
        self._bytes = 0
        self._logged_at: dict[str, float] = {}
        #: Set, and then replaced by a new event, when all results are to be tried at once.
        self._try_now = asyncio.Event()

    async def keep(self, one: RefusedResult, error: PalermoError, *, companion: bool) -> None:
        """Keep a result and try to store it. Returns when the slot may go on. Raises what `Consumer.free_slot` raises.

        `companion` is for all but the first of a batch: such a delivery does not occupy the slot.
        """
        self.log_refusal(one.queue, error)
        size = len(one.delivery.message.body)
        if len(self._kept) >= MAX_RESULTS or self._bytes + size > MAX_BYTES:
            await self._store(one)
            return
        if not companion:
            await one.session.consumer.free_slot(one.delivery)
        self._bytes += size
        task = self._kept[one] = asyncio.ensure_future(self._store(one))
        task.add_done_callback(lambda _: self._remove(one))

    def log_refusal(self, queue: str, error: PalermoError) -> None:
        """Log that a queue refuses results: at once, and then once a minute."""
        now = time.monotonic()
        if now - self._logged_at.get(queue, -_LOG_EVERY) >= _LOG_EVERY:
            self._logged_at[queue] = now
            log.error(
                "results of jobs cannot be stored, they wait in this worker until the queue takes them: make room"
                " queue=%s waiting=%d error=%r",
                queue,
                len(self._kept) + 1,
                str(error),
            )

    def try_all_now(self) -> None:
        """Try to store all results now: a queue has taken one, the session is lost, or the worker stops."""
        self._try_now.set()
        self._try_now = asyncio.Event()

    async def wait(self) -> None:
        """Wait until none is kept. Once the worker stops, each is tried a last time, and then given back."""
        self.try_all_now()
        if self._kept:
            await asyncio.wait(set(self._kept.values()))

    def close(self) -> None:
        """Stop trying. The broker takes the jobs back when the session ends."""
        for task in self._kept.values():
            task.cancel()

    def _remove(self, one: RefusedResult) -> None:
        del self._kept[one]
        self._bytes -= len(one.delivery.message.body)
        if not self._kept and self._logged_at:
            self._logged_at.clear()
            log.info("no more results of jobs wait to be stored")

    async def _store(self, one: RefusedResult) -> None:
        settled = False
        try:
            settled = await self._try_to_store(one)
        except (BrokerUnavailable, DeliveryLost) as error:
            self._delivery_lost(one, error)
        except Exception as error:  # an edge of the worker's loop: the job goes back with the session
            log.exception("cannot store the result of a job id=%s", one.delivery.message.id)
            self._sessions.lose(one.session, error)
        finally:
            one.ended(settled)

    async def _try_to_store(self, one: RefusedResult) -> bool:
        """Try until the result is stored; False if the job was given back because the worker stops."""
        attempt, stopping = 0, False
        while not stopping:
            attempt += 1
            await self._pause(backoff(attempt, random.random()))
            stopping = self._stopping.is_set()
            try:
                await one.session.consumer.settle(one.delivery, one.settlement)
            except (BrokerUnavailable, DeliveryLost):
                raise
            except PalermoError as error:
                self.log_refusal(one.queue, error)
            else:
                self.try_all_now()
                return True
        log.warning(
            "the worker stops and the result of a job is not stored, giving it back, it runs again id=%s job=%s",
            one.delivery.message.id,
            one.delivery.message.job,
        )
        with suppress(BrokerError):  # then the job goes back with the session
            await one.session.consumer.settle(one.delivery, Release())
        return False

    def _delivery_lost(self, one: RefusedResult, error: BrokerUnavailable | DeliveryLost) -> None:
        message = one.delivery.message
        self._outcomes.keep(message, one.result, slot=one.slot)
        log.warning(
            "result dropped, the broker has given the job back and it may run again id=%s job=%s error=%r",
            message.id,
            message.job,
            str(error),
        )
        if isinstance(error, BrokerUnavailable):
            self._sessions.lose(one.session, error)

    async def _pause(self, seconds: float) -> None:
        """Wait so many seconds, or until `try_all_now` is called. Does not wait once the worker stops."""
        if self._stopping.is_set():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._try_now.wait()
