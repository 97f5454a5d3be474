"""Adopted jobs: deliveries of jobs that another worker began and still runs.

RabbitMQ takes a job back if it is not acknowledged in time, or if its worker's connection is cut, while that worker
goes on running it. The worker that gets the job next adopts it: it keeps the delivery, runs other jobs in the slot,
asks the first worker for the result and settles the delivery with that. The job runs again only if the first worker
dies or does not know the result.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any

from palermo.contract import clock
from palermo.contract.broker import Delivery
from palermo.contract.tasks import spawn, wait_for_any
from palermo.contract.worker_info import WorkerCommand
from palermo.core.lifecycle import Fail, Release, Reschedule, settle
from palermo.errors import BrokerUnavailable, DeliveryLost, PalermoError
from palermo.worker.parent.broker_session import BrokerSession, BrokerSessions
from palermo.worker.parent.job_events import JobEvents
from palermo.worker.parent.outcomes import fingerprint, result_in

log = logging.getLogger("palermo.worker")

#: The most jobs that one worker adopts. Further ones go back to their queue, after a pause in seconds.
MAX_ADOPTED = 100
_RELEASE_PAUSE = 1.0

#: Seconds between two questions to the other worker, and for which an answer is waited for.
_ASK_EVERY, _ANSWER_TIMEOUT = 1.0, 1.0

#: After so many questions without an answer the job goes back to its queue; its next worker checks which workers live.
_MAX_SILENCE = 3


class Adoption(Enum):
    """What became of a delivery whose job another worker began."""

    ADOPTED = auto()  #: settled once that worker says how the job ended
    COPY = auto()  #: that worker runs the job from another message
    NOT_RUNNING = auto()  #: that worker doesn't run the job, or has settled it


class AdoptedJobs:
    """The adopted jobs of one worker."""

    def __init__(
        self,
        worker: str,
        *,
        sessions: BrokerSessions,
        stopping: asyncio.Event,
        job_events: JobEvents,
        failed_per_queue: bool,
        own_outcome: Callable[[str], Mapping[str, Any] | None],
        log_refusal: Callable[[Fail | Reschedule, PalermoError], None],
    ) -> None:
        """`worker` is this worker's id; `own_outcome` gives its own answer about the outcome of a job."""
        self._worker = worker
        self._sessions = sessions
        self._stopping = stopping
        self._job_events = job_events
        self._failed_per_queue = failed_per_queue
        self._own_outcome = own_outcome
        self._log_refusal = log_refusal
        self._watching: set[asyncio.Task[None]] = set()

    async def adopt(self, session: BrokerSession, delivery: Delivery) -> Adoption:
        """Adopt a job that another worker began, if that worker still runs it or knows how it ended."""
        try:
            answer = await self._ask(session, delivery)
            if answer is not None and not _is_about(answer, delivery):
                return Adoption.COPY if answer.get("state") == "running" else Adoption.NOT_RUNNING
            if len(self._watching) >= MAX_ADOPTED:
                log.warning("too many adopted jobs, giving one back id=%s adopted=%d", delivery.message.id, MAX_ADOPTED)
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
        """Wait until all adopted jobs are settled or given back, which happens once the worker stops."""
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
            log.warning("adopted job given back id=%s job=%s queue=%s", *self._identity(delivery))
            await session.consumer.settle(delivery, Release())
        except (BrokerUnavailable, DeliveryLost) as error:
            self._on_loss(session, delivery, error)
        except Exception as error:  # an edge of the worker's loop: the job goes back with the session
            log.exception("cannot watch an adopted job id=%s", delivery.message.id)
            self._sessions.lose(session, error)

    async def _ask(self, session: BrokerSession, delivery: Delivery) -> Mapping[str, Any] | None:
        """The other worker's answer about the job; {} if it does not know the job, None if it does not answer."""
        id, worker = delivery.message.id, delivery.running_at
        if worker == self._worker:
            return self._own_outcome(id) or {}
        order = WorkerCommand(action="outcome", id=id, workers=(worker,))
        answers = await session.broker.command(order, timeout=_ANSWER_TIMEOUT)
        return next((answer.values for answer in answers if answer.worker == worker), None)

    async def _settle_with(self, session: BrokerSession, delivery: Delivery, answer: Mapping[str, Any]) -> bool:
        """Settle the delivery with the answer's result; False if it has none, or the broker cannot store it now."""
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
                self._log_refusal(settlement, error)
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
                "adopted job went back to its queue id=%s job=%s queue=%s error=%r",
                *self._identity(delivery),
                str(error),
            )

    def _identity(self, delivery: Delivery) -> tuple[str, str, str]:
        return delivery.message.id, delivery.message.job, delivery.message.queue


def _is_about(answer: Mapping[str, Any], delivery: Delivery) -> bool:
    """Whether the answer is about this message: an id may have been used again."""
    return answer.get("mark") == fingerprint(delivery.message)
