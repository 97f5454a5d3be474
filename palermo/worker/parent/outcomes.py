"""The outcomes of jobs whose deliveries the broker took back. `Outcomes` stores them, and `AdoptedJobs` requests them.

RabbitMQ takes a job back if it isn't acknowledged in time, or if its worker's connection is cut, even though that
worker still runs it. The worker that receives the job next adopts it: it keeps the delivery, runs other jobs in the
slot, asks the first worker for the outcome, and settles the delivery with that. The job runs again only if the first
worker dies or doesn't know the outcome.

Outcomes are kept only in memory, for KEEP_FOR seconds, so a worker that has ended can't be asked.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import Enum, auto
from typing import Any

from msgspec import Struct, ValidationError, convert, to_builtins

from palermo.contract import clock
from palermo.contract.broker import Delivery
from palermo.contract.tasks import spawn, wait_for_any
from palermo.contract.worker_info import WorkerCommand
from palermo.core.latest import remember
from palermo.core.lifecycle import Fail, Interrupted, Release, Reschedule, Result, Succeeded, settle, without_step
from palermo.core.message import Message
from palermo.errors import BrokerUnavailable, DeliveryLost, PalermoError
from palermo.worker.parent.broker_session import BrokerSession, BrokerSessions
from palermo.worker.parent.job_events import JobEvents

log = logging.getLogger("palermo.worker")

#: Seconds for which an unsettled outcome is kept, and the maximum number of outcomes of each kind.
KEEP_FOR = 600.0
MAX_OUTCOMES = 1_000


def fingerprint(message: Message) -> str:
    """Return a hash that distinguishes messages with the same id, after a requeue or another enqueue with the user's
    id.
    """
    import hashlib

    fields = (message.id, message.job, message.attempt, message.created_at, message.run_at, message.body)
    return hashlib.sha256(repr(fields).encode()).hexdigest()[:32]


class Outcome(Struct, frozen=True, kw_only=True):
    job: str
    queue: str
    result: Result
    #: Whether the broker accepted the result. If not, it has requeued the job.
    settled: bool = False
    #: Whether the run added steps, so that the job continues as a workflow.
    continues: bool = False
    #: The message's fingerprint, the tag of the slot that ran it, and when the run started and ended, in Unix seconds.
    #: Set only while the result isn't settled.
    mark: str = ""
    slot: str = ""
    began_at: float = 0.0
    ended_at: float = 0.0
    #: Whether the end is already in the journal, as for a job with a kept result.
    written: bool = False
    #: The run's saved state, if any.
    saved: str | None = None

    def answer(self) -> dict[str, Any]:
        """Return the answer to the order `outcome`, from which `result_in` reads the result."""
        plain: dict[str, Any] = to_builtins(self)
        if self.settled or not self.mark:
            plain = {name: plain[name] for name in ("job", "queue", "result", "settled")}
        return {**plain.pop("result"), **plain}


def result_in(answer: Mapping[str, Any]) -> Result | None:
    """Return the result in another worker's answer; None if it contains none, or the job is running or was
    interrupted.
    """
    with suppress(ValidationError):
        result = convert(answer, Result)
        return None if isinstance(result, Interrupted) else result
    return None


class Outcomes:
    """The outcomes remembered by one worker."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        #: The outcomes of the latest jobs, by id.
        self._ended: dict[str, Outcome] = {}
        #: The unsettled outcomes, by job id, each with the time when it was added.
        self._lost: dict[str, tuple[float, Outcome]] = {}
        #: The user who cancelled a running job, by job id.
        self.cancelled_by: dict[str, str] = {}
        #: Set when a job ends.
        self.change = asyncio.Event()

    @property
    def lost(self) -> tuple[str, ...]:
        """The ids of jobs with a known outcome whose deliveries the broker took back."""
        while self._lost and self._now() - next(iter(self._lost.values()))[0] > KEEP_FOR:
            del self._lost[next(iter(self._lost))]
        return tuple(self._lost)

    def ended(self, message: Message, result: Result, *, settled: bool) -> None:
        """Remember the outcome of a job. A settled one replaces any earlier outcome."""
        if settled:
            self._lost.pop(message.id, None)
        continues = isinstance(result, Succeeded) and bool(result.adds)
        result = without_step(result) if settled else result
        outcome = Outcome(job=message.job, queue=message.queue, result=result, settled=settled, continues=continues)
        remember(self._ended, message.id, outcome, most=MAX_OUTCOMES)
        self.cancelled_by.pop(message.id, None)
        self.change.set()

    def keep(self, id: str, outcome: Outcome) -> None:
        """Remember an ended job whose delivery the broker had taken back. Ignores Interrupted."""
        if not isinstance(outcome.result, Interrupted):
            remember(self._lost, id, (self._now(), outcome), most=MAX_OUTCOMES)

    def last(self, id: str) -> Outcome | None:
        """The outcome of the job's last run; None if unknown."""
        return self._ended.get(id)

    def find(self, id: str) -> Outcome | None:
        """Return the outcome for another worker, or else that of the last run; None if unknown."""
        return self._lost[id][1] if id in self.lost else self._ended.get(id)

    def known(self, ids: Iterable[str]) -> set[str]:
        """Return the jobs whose outcome is known."""
        return {*ids} & {*self.lost, *self._ended}


#: Maximum number of jobs that a worker adopts. Others are requeued after a pause in seconds.
MAX_ADOPTED = 100
_RELEASE_PAUSE = 1.0

#: Seconds between requests to the other worker, and timeout of an answer.
_ASK_EVERY, _ANSWER_TIMEOUT = 1.0, 1.0

#: Number of unanswered requests after which the job is requeued. Its next worker checks which workers are alive.
_MAX_SILENCE = 3


class Adoption(Enum):
    """What happens to a delivery whose job was started by another worker."""

    ADOPTED = auto()  #: settled once that worker reports the outcome
    COPY = auto()  #: that worker runs the job from another message
    NOT_RUNNING = auto()  #: that worker doesn't run the job, or has settled it


class AdoptedJobs:
    def __init__(
        self,
        worker: str,
        *,
        sessions: BrokerSessions,
        stopping: asyncio.Event,
        job_events: JobEvents,
        failed_per_queue: bool,
        own_outcome: Callable[[str], Mapping[str, Any] | None],
    ) -> None:
        """`worker` is this worker's id; `own_outcome` returns its own answer about the outcome of a job."""
        self._worker = worker
        self._sessions = sessions
        self._stopping = stopping
        self._job_events = job_events
        self._failed_per_queue = failed_per_queue
        self._own_outcome = own_outcome
        self._watching: set[asyncio.Task[None]] = set()

    async def adopt(self, session: BrokerSession, delivery: Delivery) -> Adoption:
        """Adopt a job started by another worker, if that worker still runs it or knows the outcome."""
        try:
            answer = await self._ask(session, delivery)
            if answer is not None and not _is_about(answer, delivery):
                return Adoption.COPY if answer.get("state") == "running" else Adoption.NOT_RUNNING
            if len(self._watching) >= MAX_ADOPTED:
                log.warning("too many adopted jobs, requeuing one id=%s adopted=%d", delivery.message.id, MAX_ADOPTED)
                await wait_for_any(self._stopping, timeout=_RELEASE_PAUSE)
                await session.consumer.settle(delivery, Release())
                return Adoption.ADOPTED
            await session.consumer.free_slot(delivery)
        except (BrokerUnavailable, DeliveryLost) as error:
            self._on_loss(session, delivery, error)
            return Adoption.ADOPTED
        log.warning(
            "job adopted, another worker runs it id=%s job=%s queue=%s worker=%s",
            *self._identity(delivery),
            delivery.running_at,
        )
        spawn(self._watching, self._watch(session, delivery, answer))
        return Adoption.ADOPTED

    async def wait(self) -> None:
        """Wait until all adopted jobs are settled, or requeued because the worker is stopping."""
        if self._watching:
            await asyncio.wait(set(self._watching))

    def close(self) -> None:
        """Stop watching. The broker takes the adopted jobs back when the session ends."""
        for task in self._watching:
            task.cancel()

    async def _watch(self, session: BrokerSession, delivery: Delivery, answer: Mapping[str, Any] | None) -> None:
        silent = 0
        try:
            while silent < _MAX_SILENCE and (answer is None or _is_about(answer, delivery)):
                if answer is not None and await self._settle_with(session, delivery, answer):
                    return
                await wait_for_any(self._stopping, timeout=_ASK_EVERY)
                if session is not self._sessions.current:
                    return
                if self._stopping.is_set():
                    break
                answer = await self._ask(session, delivery)
                silent = silent + 1 if answer is None else 0
            log.warning("adopted job requeued id=%s job=%s queue=%s", *self._identity(delivery))
            await session.consumer.settle(delivery, Release())
        except (BrokerUnavailable, DeliveryLost) as error:
            self._on_loss(session, delivery, error)
        except Exception as error:  # must not end the worker's loop; the job is requeued when the session ends
            log.exception("cannot watch an adopted job id=%s", delivery.message.id)
            self._sessions.lose(session, error)

    async def _ask(self, session: BrokerSession, delivery: Delivery) -> Mapping[str, Any] | None:
        """Return the other worker's answer about the job; {} if it doesn't know the job, None if it doesn't answer."""
        id, worker = delivery.message.id, delivery.running_at
        if worker == self._worker:
            return self._own_outcome(id) or {}
        order = WorkerCommand(action="outcome", id=id, workers=(worker,))
        answers = await session.broker.command(order, timeout=_ANSWER_TIMEOUT)
        return next((answer.values for answer in answers if answer.worker == worker), None)

    async def _settle_with(self, session: BrokerSession, delivery: Delivery, answer: Mapping[str, Any]) -> bool:
        """Settle the delivery with the answer's result. Returns False if the answer has none, or the broker can't store
        it now.
        """
        if (result := result_in(answer)) is None:
            return False
        slot = str(answer.get("slot") or delivery.running_at)
        saved = answer.get("saved")
        settlement = settle(
            delivery.message,
            result,
            worker=slot,
            now=clock.now(),
            failed_per_queue=self._failed_per_queue,
            saved=saved if isinstance(saved, str) else None,
        )
        try:
            await session.consumer.settle(delivery, settlement)
        except (BrokerUnavailable, DeliveryLost):
            raise
        except PalermoError as error:
            if isinstance(settlement, Fail | Reschedule):
                self._job_events.result_refused(settlement, error)
            return False
        log.info(
            "job settled with the result of another worker id=%s job=%s queue=%s worker=%s result=%s",
            *self._identity(delivery),
            slot,
            answer["state"],
        )
        match answer:
            case {"began_at": int() | float() as began_at, "ended_at": int() | float() as ended_at, "written": False}:
                self._job_events.adopted_run_ended(slot, delivery.message, result, began_at=began_at, ended_at=ended_at)
        return True

    def _on_loss(self, session: BrokerSession, delivery: Delivery, error: BrokerUnavailable | DeliveryLost) -> None:
        if isinstance(error, BrokerUnavailable):
            self._sessions.lose(session, error)
        else:
            log.warning(
                "adopted job returned to its queue id=%s job=%s queue=%s error=%r",
                *self._identity(delivery),
                str(error),
            )

    def _identity(self, delivery: Delivery) -> tuple[str, str, str]:
        return delivery.message.id, delivery.message.job, delivery.message.queue


def _is_about(answer: Mapping[str, Any], delivery: Delivery) -> bool:
    """Whether the answer concerns this message, since an id may be reused."""
    return answer.get("mark") == fingerprint(delivery.message)
