"""Keeps how jobs ended in this worker while the broker does not know it: `Outcomes` and `RefusedResults`.

If the broker took a delivery back, the worker that gets the job next asks this one for its outcome (adopted_jobs.py),
so that the job need not run again. Outcomes are kept in memory only, for KEEP_FOR seconds: a worker that has ended
cannot be asked.

If the broker refuses a result, this worker keeps it until the broker takes it. A full queue (overflow reject-publish)
of failed jobs refuses a failure, and a full job queue a retry. If the worker acknowledged such a job, it would be lost.
If the worker gave it back, it would run again, as often as it is refused. So the worker keeps its delivery
unacknowledged, the slot takes the next job, and the worker tries to store the result again, with pauses that grow.

The worker keeps at most MAX_RESULTS such jobs, with at most MAX_BYTES of bodies. The slot of a further one waits with
it and takes no job meanwhile. When the session is lost, these jobs go back to their queues, and this worker tells the
workers that get them how they ended.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from msgspec import Struct, ValidationError, convert, to_builtins

from palermo.contract.broker import Delivery
from palermo.core.lifecycle import (
    Cancelled,
    Dropped,
    Fail,
    Interrupted,
    Raised,
    Release,
    Reschedule,
    Result,
    Retrying,
    Succeeded,
)
from palermo.core.message import Message
from palermo.errors import BrokerError, BrokerUnavailable, DeliveryLost, PalermoError
from palermo.worker.parent.broker_session import BrokerSession, BrokerSessions, backoff

log = logging.getLogger("palermo.worker")

#: Seconds for which an outcome is kept, and the most outcomes that are kept.
KEEP_FOR = 600.0
MAX_OUTCOMES = 1_000


def fingerprint(message: Message) -> str:
    """A hash that differs for another message with the same id: one requeued, or enqueued again with the user's id."""
    import hashlib

    fields = (message.id, message.job, message.attempt, message.created_at, message.run_at, message.body)
    return hashlib.sha256(repr(fields).encode()).hexdigest()[:32]


class Outcome(Struct, frozen=True, kw_only=True):
    """How one job ended."""

    message: Message
    result: Result
    #: The tag of the slot that ran it.
    slot: str
    #: When the run began and ended, in Unix seconds.
    began_at: float
    ended_at: float
    #: Whether the journal has the end already, as for a job that keeps its result.
    written: bool = False


class Outcomes:
    """The outcomes that one worker remembers."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        #: By job, each with when it was kept.
        self._kept: dict[str, tuple[float, Outcome]] = {}

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the jobs whose outcome is known."""
        self._forget_old()
        return tuple(self._kept)

    def keep(self, outcome: Outcome) -> None:
        """Remember a job that has ended, and whose delivery the broker had taken back. Ignores Interrupted."""
        if isinstance(outcome.result, Interrupted):
            return
        self.forget(outcome.message.id)
        self._kept[outcome.message.id] = self._now(), outcome
        if len(self._kept) > MAX_OUTCOMES:
            del self._kept[next(iter(self._kept))]

    def find(self, id: str) -> Outcome | None:
        """The job's outcome; None if it is not known."""
        self._forget_old()
        return self._kept.get(id, (0.0, None))[1]

    def forget(self, id: str) -> None:
        """Drop the outcome of a job that has run again and was settled."""
        self._kept.pop(id, None)

    def _forget_old(self) -> None:
        while self._kept and self._now() - next(iter(self._kept.values()))[0] > KEEP_FOR:
            del self._kept[next(iter(self._kept))]


def outcome_to_plain(result: Result) -> Mapping[str, Any]:
    """A result as values for JSON."""
    match result:
        case Succeeded():
            return {"state": "done"}
        case Cancelled():
            return {"state": "cancelled"}
        case Interrupted():
            return {"state": "interrupted"}
        case Retrying():
            return {"state": "retrying", **to_builtins(result)}
        case Dropped():
            return {"state": "discarded", **to_builtins(result)}
        case Raised():
            return {"state": "failed", **to_builtins(result)}


def outcome_from_plain(answer: Mapping[str, Any]) -> Result | None:
    """The result that `outcome_to_plain` wrote; None if the job still runs or was interrupted, or if it has none."""
    match answer:
        case {"state": "done"}:
            return Succeeded()
        case {"state": "cancelled"}:
            return Cancelled()
        case {"state": "retrying" | "discarded" | "failed"}:
            with suppress(ValidationError):
                return convert(answer, Retrying | Dropped | Raised)
    return None


#: The most jobs that one worker keeps, and the most bytes of their bodies together.
MAX_RESULTS, MAX_BYTES = 100, 64 * 1024 * 1024

#: Seconds between two log lines about one queue that goes on refusing.
_LOG_EVERY = 60.0


class RefusedResult(Struct, frozen=True, eq=False):
    """A job that has ended, and whose result the broker refused."""

    session: BrokerSession
    delivery: Delivery
    outcome: Outcome
    #: The settlement that the broker refused.
    settlement: Fail | Reschedule
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
            self.result_lost(one.session, one.outcome, error)
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

    def result_lost(self, session: BrokerSession, outcome: Outcome, error: BrokerUnavailable | DeliveryLost) -> None:
        """The broker has taken the job back: remember the result for the worker that gets the job next."""
        self._outcomes.keep(outcome)
        log.warning(
            "result dropped, the broker has given the job back and it may run again id=%s job=%s error=%r",
            outcome.message.id,
            outcome.message.job,
            str(error),
        )
        if isinstance(error, BrokerUnavailable):
            self._sessions.lose(session, error)

    async def _pause(self, seconds: float) -> None:
        """Wait so many seconds, or until `try_all_now` is called. Does not wait once the worker stops."""
        if self._stopping.is_set():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._try_now.wait()
