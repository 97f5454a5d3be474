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
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from msgspec import Struct, ValidationError, convert, to_builtins
from msgspec.structs import replace

from palermo.contract.broker import Delivery
from palermo.contract.tasks import wait_for_any
from palermo.core.latest import remember
from palermo.core.lifecycle import Fail, Interrupted, Release, Reschedule, Result, without_step
from palermo.core.message import Message
from palermo.errors import BrokerError, BrokerUnavailable, DeliveryLost, PalermoError
from palermo.worker.parent.broker_session import BrokerSession, BrokerSessions, backoff

log = logging.getLogger("palermo.worker")

#: Seconds for which an outcome is kept that the broker does not know, and the most outcomes of each kind.
KEEP_FOR = 600.0
MAX_OUTCOMES = 1_000


def fingerprint(message: Message) -> str:
    """A hash that differs for another message with the same id: one requeued, or enqueued again with the user's id."""
    import hashlib

    fields = (message.id, message.job, message.attempt, message.created_at, message.run_at, message.body)
    return hashlib.sha256(repr(fields).encode()).hexdigest()[:32]


class Outcome(Struct, frozen=True, kw_only=True):
    """How one job ended."""

    job: str
    queue: str
    result: Result
    #: Whether the broker took its result; if not, it has given the job back.
    settled: bool = False
    #: The fingerprint of its message, the tag of the slot that ran it, and when the run began and ended, in Unix
    #: seconds. Only known while the result isn't settled.
    mark: str = ""
    slot: str = ""
    began_at: float = 0.0
    ended_at: float = 0.0
    #: Whether the journal has the end already, as for a job that keeps its result.
    written: bool = False
    #: What the run has saved, if it has.
    saved: str | None = None

    def answer(self) -> dict[str, Any]:
        """The values of the answer to the order `outcome`; `result_in` reads the result in it."""
        plain: dict[str, Any] = to_builtins(self)
        if self.settled or not self.mark:
            plain = {name: plain[name] for name in ("job", "queue", "result", "settled")}
        return {**plain.pop("result"), **plain}


def result_in(answer: Mapping[str, Any]) -> Result | None:
    """The result in another worker's answer; None if the job still runs or was interrupted, or if there is none."""
    with suppress(ValidationError):
        result = convert(answer, Result)
        return None if isinstance(result, Interrupted) else result
    return None


class Outcomes:
    """The outcomes that one worker remembers."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        #: How the last jobs ended, by id.
        self._ended: dict[str, Outcome] = {}
        #: The outcomes that the broker does not know, by job, each with when it was kept.
        self._lost: dict[str, tuple[float, Outcome]] = {}
        #: Who had a running job cancelled, by its id.
        self.cancelled_by: dict[str, str] = {}
        #: Set when a job ends.
        self.change = asyncio.Event()

    @property
    def lost(self) -> tuple[str, ...]:
        """The ids of the jobs whose deliveries the broker took back, and whose outcome is known."""
        while self._lost and self._now() - next(iter(self._lost.values()))[0] > KEEP_FOR:
            del self._lost[next(iter(self._lost))]
        return tuple(self._lost)

    def ended(self, message: Message, result: Result, *, settled: bool) -> None:
        """Remember how a job ended. If it is settled now, an earlier outcome of it is of no use any more."""
        if settled:
            self._lost.pop(message.id, None)
        result = without_step(result) if settled else result
        outcome = Outcome(job=message.job, queue=message.queue, result=result, settled=settled)
        remember(self._ended, message.id, outcome, most=MAX_OUTCOMES)
        self.cancelled_by.pop(message.id, None)
        self.change.set()

    def keep(self, id: str, outcome: Outcome) -> None:
        """Remember a job that has ended, and whose delivery the broker had taken back. Ignores Interrupted."""
        if not isinstance(outcome.result, Interrupted):
            remember(self._lost, id, (self._now(), outcome), most=MAX_OUTCOMES)

    def last(self, id: str) -> Outcome | None:
        """How the last run of the job ended; None if it is not known."""
        return self._ended.get(id)

    def find(self, id: str) -> Outcome | None:
        """The outcome that another worker may use, else how the last run ended; None if neither is known."""
        return self._lost[id][1] if id in self.lost else self._ended.get(id)

    def known(self, ids: Iterable[str]) -> set[str]:
        """Those of the jobs of which an outcome is known."""
        return {*ids} & {*self.lost, *self._ended}


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
        self.sessions = sessions
        self.stopping = stopping
        self._outcomes = outcomes
        self._kept: dict[RefusedResult, asyncio.Task[None]] = {}
        self._bytes = 0
        self._logged_at: dict[str, float] = {}
        #: Set, and then replaced by a new event, when all results are to be tried at once.
        self._try_now = asyncio.Event()

    async def keep(self, one: RefusedResult, error: PalermoError, *, companion: bool) -> None:
        """Keep a result and try to store it, and call its `ended` then. Returns when the slot may take the next job.

        `companion` is for all but the first of a batch: such a delivery does not occupy the slot.
        """
        self.log_refusal(one.queue, error)
        size = len(one.delivery.message.body)
        if len(self._kept) >= MAX_RESULTS or self._bytes + size > MAX_BYTES:
            await self._store(one)
            return
        try:
            if not companion:
                await one.session.consumer.free_slot(one.delivery)
        except (BrokerUnavailable, DeliveryLost) as lost:
            self.result_lost(one.session, one.delivery.message, one.outcome, lost)
            one.ended(False)
            return
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
            self.result_lost(one.session, one.delivery.message, one.outcome, error)
        except Exception as error:  # an edge of the worker's loop: the job goes back with the session
            log.exception("cannot store the result of a job id=%s", one.delivery.message.id)
            self.sessions.lose(one.session, error)
        finally:
            one.ended(settled)

    async def _try_to_store(self, one: RefusedResult) -> bool:
        """Try until the result is stored; False if the job was given back because the worker stops."""
        attempt, stopping = 0, False
        while not stopping:
            attempt += 1
            if not self.stopping.is_set():
                await wait_for_any(self._try_now, timeout=backoff(attempt, random.random()))
            stopping = self.stopping.is_set()
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

    def result_lost(
        self, session: BrokerSession, message: Message, outcome: Outcome, error: BrokerUnavailable | DeliveryLost
    ) -> None:
        """The broker has taken the job back: remember the result for the worker that gets the job next."""
        self._outcomes.keep(message.id, replace(outcome, mark=fingerprint(message)))
        log.warning(
            "result dropped, the broker has given the job back and it may run again id=%s job=%s error=%r",
            message.id,
            message.job,
            str(error),
        )
        if isinstance(error, BrokerUnavailable):
            self.sessions.lose(session, error)
