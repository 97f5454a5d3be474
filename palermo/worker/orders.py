"""What workers do when told from afar: one table, which the code obeys and the documentation is checked against.

An order comes through the broker, from the command line or the library, to all workers or to
those it names; each that has something to do about it answers. What it does here is what
the signals do, but for `quiet`, which ends with `resume` and not only with the worker.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from palermo.core.lifecycle import Result, Retrying
from palermo.core.message import Message
from palermo.core.values import dataclass
from palermo.crew import Order, RunningJob
from palermo.worker.dumps import Dumps
from palermo.worker.outcomes import Outcomes, describe, mark
from palermo.worker.pool import Runner
from palermo.worker.progress import Progress
from palermo.worker.signals import Action

log = logging.getLogger("palermo.worker")


@dataclass(frozen=True, slots=True)
class OrderRow:
    """One line of the table."""

    action: str
    #: For people, in docs/.
    meaning: str
    #: What the answer holds, for people.
    answer: str


ORDERS: tuple[OrderRow, ...] = (
    OrderRow("quiet", "take no more jobs until `resume`; the running ones go on", "`state`"),
    OrderRow("resume", "take jobs again, after `quiet` and after USR2 and TSTP alike", "`state`"),
    OrderRow("stop", "as TERM: finish the running jobs within the shutdown timeout, and exit", "`state`, `jobs`"),
    OrderRow("kill", "kill the running jobs at once, give them back, exit", "`state`, `jobs`"),
    OrderRow("stack", "tell the stacks of the worker's parent and of every running job; nothing is stopped", "`text`"),
    OrderRow(
        "cancel",
        "end the job with the order's id if it runs, or has just ended: JobCancelled is raised in it, and what goes"
        " on is killed after the timeout's grace",
        "`state`: cancelled, cancelling, done or failed; `job`, `queue`",
    ),
    OrderRow("lines", "tell what the running job with the order's id has logged, its last 100 lines", "`lines`"),
    OrderRow(
        "outcome",
        "tell what has become of the job with the order's id, if it runs or has just ended",
        "`state`: running, done, failed, retrying, discarded, cancelled or interrupted; `job`, `queue`, `settled`;"
        " `failure` once failed;"
        " `mark` and `slot` where the broker may have given the job to another worker",
    ),
)

#: How many jobs that have ended a worker remembers.
_REMEMBERED = 1_000

#: Seconds that an answer to `cancel` waits for the job to end.
_PATIENCE = 3.0

#: Characters of stacks in an answer, which travels as one message.
_MAX_TEXT = 4_000_000


class Lane(Protocol):
    """A slot that may run a job."""

    number: int
    #: What it is called in failures.
    tag: str
    #: What the job that it runs tells of itself.
    progress: Progress

    @property
    def running(self) -> RunningJob | None:
        """The first job that it runs now."""

    @property
    def jobs(self) -> tuple[RunningJob, ...]:
        """All that it runs now: one, unless that takes batches."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The same, as they came."""


class Obedient(Protocol):
    """What a worker has that can be told to."""

    runner: Runner
    dumps: Dumps

    @property
    def state(self) -> str:
        """In one word, as WorkerInfo has it."""

    def order(self, action: Action) -> None:
        """Do it, as if a signal had said so."""


class _Ended(NamedTuple):
    """A job that this worker ran."""

    job: str
    queue: str
    result: Result
    #: Whether the broker took its result; if not, it has given the job back.
    settled: bool


class Orders:
    """Obeys, for one worker, and remembers what has become of its last jobs."""

    def __init__(self, worker: Obedient, lanes: Sequence[Lane]) -> None:
        self._worker = worker
        self._lanes = lanes
        self._ended: dict[str, _Ended] = {}
        self.outcomes = Outcomes()
        self._change = asyncio.Event()
        self._obeys: Mapping[str, Callable[[Order], Awaitable[Mapping[str, Any] | None]]] = {
            "quiet": self._quiet,
            "resume": self._resume,
            "stop": self._stop,
            "kill": self._kill,
            "stack": self._stack,
            "cancel": self._cancel,
            "lines": self._lines,
            "outcome": self._outcome,
        }
        #: Who had a running job cancelled, by its id.
        self._cancelled_by: dict[str, str] = {}

    async def obey(self, order: Order) -> Mapping[str, Any] | None:
        """Do it; the values of the answer. None for what is not for this worker, or what it does not know."""
        obey = self._obeys.get(order.action)
        if obey is None:
            log.warning("unknown order, nothing done action=%s by=%s", order.action, order.by)
            return None
        if not order.id:
            log.info("order received action=%s by=%s", order.action, order.by)
        try:
            return await obey(order)
        except Exception as error:  # the edge: an order may not end the worker, nor keep its giver waiting
            log.exception("cannot obey order action=%s", order.action)
            return {"error": str(error)}

    def ended(self, message: Message, result: Result, *, settled: bool) -> None:
        """A job has ended, and its result was settled or could not be."""
        id, remembered = message.id, self._ended
        if settled:
            self.outcomes.forget(id)
        remembered.pop(id, None)
        remembered[id] = _Ended(message.job, message.queue, result, settled)
        if len(remembered) > _REMEMBERED:
            del remembered[next(iter(remembered))]
        self._cancelled_by.pop(id, None)
        self._change.set()

    def cancelled_by(self, id: str) -> str:
        """Who had this running job cancelled; "" if nobody said."""
        return self._cancelled_by.get(id, "")

    async def _quiet(self, order: Order) -> Mapping[str, Any]:
        self._worker.order(Action.QUIET)
        return {"state": self._worker.state}

    async def _resume(self, order: Order) -> Mapping[str, Any]:
        self._worker.order(Action.WAKE)
        return {"state": self._worker.state}

    async def _stop(self, order: Order) -> Mapping[str, Any]:
        self._worker.order(Action.STOP)
        return {"state": self._worker.state, "jobs": self._busy()}

    async def _kill(self, order: Order) -> Mapping[str, Any]:
        busy = self._busy()
        self._worker.order(Action.ABANDON)
        return {"state": self._worker.state, "jobs": busy}

    async def _stack(self, order: Order) -> Mapping[str, Any]:
        parts = [
            f"{'worker' if job is None else f'job {job.job} {job.id} in slot {job.slot}'}:\n{text}"
            async for job, text in self._worker.dumps.each()
        ]
        return {"text": "\n\n".join(parts)[:_MAX_TEXT]}

    async def _cancel(self, order: Order) -> Mapping[str, Any] | None:
        # Of a batch nothing can be ended without the others.
        lanes = [lane for lane in self._lanes if [job.id for job in lane.jobs] == [order.id]]
        if not lanes:
            ended = self._ended.get(order.id)
            # The copy that waits to be retried is marked, and dropped by whoever takes it.
            return None if ended is None or isinstance(ended.result, Retrying) else _told(ended)
        self._cancelled_by[order.id] = order.by
        before = {lane.number: lane.running for lane in lanes}
        for lane in lanes:
            self._worker.runner.cancel(lane.number)
        job = before[lanes[0].number]
        assert job is not None
        try:
            async with asyncio.timeout(_PATIENCE):
                while any(lane.running == before[lane.number] for lane in lanes):
                    self._change.clear()
                    await self._change.wait()
        except TimeoutError:
            return {"state": "cancelling", "job": job.job, "queue": job.queue}
        ended = self._ended.get(order.id)
        return {"state": "cancelled", "job": job.job, "queue": job.queue} if ended is None else _told(ended)

    async def _lines(self, order: Order) -> Mapping[str, Any] | None:
        for lane in self._lanes:
            if any(job.id == order.id for job in lane.jobs):
                return {"lines": list(lane.progress.lines)}
        return None

    async def _outcome(self, order: Order) -> Mapping[str, Any] | None:
        return self.outcome(order.id)

    def outcome(self, id: str) -> Mapping[str, Any] | None:
        """What has become of a job; None if it is not known here."""
        for lane in self._lanes:
            for message in lane.messages:
                if message.id == id:
                    return {"state": "running", **_named(message, lane.tag)}
        kept = self.outcomes.find(id)
        if kept is not None:
            return {**describe(kept.result), **_named(kept.message, kept.slot)}
        ended = self._ended.get(id)
        return None if ended is None else _told(ended)

    def _busy(self) -> int:
        return sum(lane.running is not None for lane in self._lanes)


def _told(ended: _Ended) -> Mapping[str, Any]:
    return {**describe(ended.result), "job": ended.job, "queue": ended.queue, "settled": ended.settled}


def _named(message: Message, slot: str) -> Mapping[str, Any]:
    """What tells a job whose result is not settled from all others."""
    return {"job": message.job, "queue": message.queue, "settled": False, "mark": mark(message), "slot": slot}
