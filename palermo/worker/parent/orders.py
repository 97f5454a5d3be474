"""The orders to a worker, in a table read by the code and the documentation.

The command line or a program sends an order through the broker to some or all workers, and each answers. Orders have
the same effect as signals, except that `resume` also ends `quiet`, while no signal undoes TSTP.
"""

import asyncio
import logging
import os
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from palermo.contract.worker_info import RunningJob, WorkerCommand
from palermo.core.lifecycle import Retrying
from palermo.worker.limits import processor_time, resident
from palermo.worker.parent.outcomes import fingerprint
from palermo.worker.parent.slot_task import SlotTask
from palermo.worker.parent.watchdog import thread_stacks
from palermo.worker.parent.worker_state import WorkerState
from palermo.worker.pools.pool import Pool
from palermo.worker.signals import Action

log = logging.getLogger("palermo.worker")


class OrderRow(Struct, frozen=True):
    action: str
    #: What the worker does.
    meaning: str
    answer: str


ORDERS: tuple[OrderRow, ...] = (
    OrderRow("quiet", "Take no more jobs until `resume`. Running jobs continue", "`state`"),
    OrderRow("resume", "Take jobs again, after `quiet`, USR2 or TSTP", "`state`"),
    OrderRow("stop", "Like TERM: finish the running jobs within the shutdown timeout, and exit", "`state`, `jobs`"),
    OrderRow("kill", "Kill the running jobs immediately, release them, and exit", "`state`, `jobs`"),
    OrderRow(
        "stack",
        "Return the stacks of the worker's parent and of every running job, without stopping them",
        "`text` of the parent; `stacks`, with `id`, `job`, `slot` and `text` for each job",
    ),
    OrderRow(
        "cancel",
        "Cancel the job with this id if it is running or has just ended. JobCancelled is raised in it; if it"
        " continues, it is killed after the timeout grace",
        "`state`: cancelled, cancelling, done or failed; `job`, `queue`",
    ),
    OrderRow("lines", "Return the last 100 log lines of the running job with this id", "`lines`"),
    OrderRow(
        "memory",
        "Return the memory of the worker's processes, counting shared pages for each, and their processor time in"
        " seconds",
        "`memory`, `cpu`",
    ),
    OrderRow(
        "outcome",
        "Return the state of the job with this id if it is running or has just ended. For several `ids`, return the"
        " ones that are running or have just ended",
        "`state`: running, done, failed, retrying, discarded, cancelled or interrupted; `job`, `queue`, `settled`;"
        " `failure` if it failed; `mark` and `slot` if the broker may have given the job to another worker; for"
        " several ids, `known`",
    ),
)


class StackDumps:
    """Collects the worker's stacks, and writes them to its log."""

    def __init__(self, pool: Pool, slots: Sequence[SlotTask]) -> None:
        self._pool = pool
        self._slots = slots
        self._asking = asyncio.Lock()

    async def each(self) -> AsyncIterator[tuple[RunningJob | None, str]]:
        """Yield the stacks of every running job, then of this process. Sequential, because all are written to one
        file.
        """
        async with self._asking:
            for slot in self._slots:
                jobs, began = slot.jobs, slot.started_at
                if not jobs:
                    continue
                text = await self._pool.stack(slot.number)
                if slot.busy and slot.started_at == began:
                    yield jobs[0], text or "it gave no answer within 2 s"
            yield None, own_stacks()

    async def log(self) -> None:
        """Log them."""
        async for job, text in self.each():
            if job is None:
                log.info("stacks of the worker pid=%d", os.getpid(), extra={"stacks": text})
            else:
                log.info("stacks of a job id=%s job=%s slot=%d", job.id, job.job, job.slot, extra={"stacks": text})


def own_stacks() -> str:
    """Return the stacks of this process's threads and asyncio tasks."""
    parts = [thread_stacks()]
    for task in sorted(asyncio.all_tasks() - {asyncio.current_task()}, key=lambda task: task.get_name()):
        frames = traceback.StackSummary.from_list(
            [
                traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
                for frame in task.get_stack()
            ]
        )
        parts.append(f"Task {task.get_name()}:\n{''.join(frames.format())}")
    return "".join(parts).rstrip()


#: Seconds that the answer to `cancel` waits for the job to end.
_CANCEL_TIMEOUT = 3.0

#: Maximum length of stacks in an answer, a single message that contains them twice.
_MAX_TEXT = 2_000_000


class Orders:
    """Executes the orders to a worker."""

    def __init__(
        self,
        worker: WorkerState,
        slots: Sequence[SlotTask],
        stack_dumps: StackDumps,
        *,
        act: Callable[[Action], None],
        state: Callable[[], str],
    ) -> None:
        """`act` performs an action as for a signal; `state` returns the worker's state."""
        self._pool = worker.pool
        self._outcomes = worker.outcomes
        self._slots = slots
        self._stack_dumps = stack_dumps
        self._act = act
        self._state = state
        self._handlers: Mapping[str, Callable[[WorkerCommand], Awaitable[Mapping[str, Any] | None]]] = {
            "quiet": partial(self._do, Action.QUIET),
            "resume": partial(self._do, Action.WAKE),
            "stop": partial(self._do, Action.STOP),
            "kill": partial(self._do, Action.ABANDON),
            "stack": self._stack,
            "cancel": self._cancel,
            "lines": self._lines,
            "memory": self._memory,
            "outcome": self._outcome,
        }

    async def obey(self, order: WorkerCommand) -> Mapping[str, Any] | None:
        """Execute the order, and return the values of the answer.

        Returns None if the order isn't for this worker, or its action is unknown.
        """
        obey = self._handlers.get(order.action)
        if obey is None:
            log.warning("unknown order ignored action=%s by=%s", order.action, order.by)
            return None
        # The worker's page requests the memory every few seconds.
        if not order.id and not order.ids and order.action != "memory":
            log.info("order received action=%s by=%s", order.action, order.by)
        try:
            return await obey(order)
        except Exception as error:  # the edge: an order must not end the worker, and its sender waits for an answer
            log.exception("cannot carry out order action=%s", order.action)
            return {"error": str(error)}

    async def _do(self, action: Action, order: WorkerCommand) -> Mapping[str, Any]:
        """Perform an action as for a signal."""
        jobs = {"jobs": sum(slot.busy for slot in self._slots)} if action.ends else {}
        self._act(action)
        return {"state": self._state(), **jobs}

    async def _stack(self, order: WorkerCommand) -> Mapping[str, Any]:
        parts, stacks, left = list[str](), list[dict[str, Any]](), _MAX_TEXT
        async for job, text in self._stack_dumps.each():
            parts.append(f"{'worker' if job is None else f'job {job.job} {job.id} in slot {job.slot}'}:\n{text}")
            known = {} if job is None else {"id": job.id, "job": job.job, "slot": job.slot}
            stacks.append({**known, "text": text[:left]})
            left = max(0, left - len(text))
        return {"text": "\n\n".join(parts)[:_MAX_TEXT], "stacks": stacks}

    async def _cancel(self, order: WorkerCommand) -> Mapping[str, Any] | None:
        # A job in a batch can't be ended without the others.
        slots = [slot for slot in self._slots if [job.id for job in slot.jobs] == [order.id]]
        if not slots:
            ended = self._outcomes.last(order.id)
            # The next worker that receives a waiting retry drops it by its mark. The broker cancels workflows.
            if ended is None or ended.continues or isinstance(ended.result, Retrying):
                return None
            return ended.answer()
        self._outcomes.cancelled_by[order.id] = order.by
        runs = [(slot, slot.started_at) for slot in slots]
        about = {"job": slots[0].jobs[0].job, "queue": slots[0].jobs[0].queue}
        for slot in slots:
            self._pool.cancel(slot.number)
        try:
            async with asyncio.timeout(_CANCEL_TIMEOUT):
                while any(slot.busy and slot.started_at == began for slot, began in runs):
                    self._outcomes.change.clear()
                    await self._outcomes.change.wait()
        except TimeoutError:
            return {"state": "cancelling", **about}
        ended = self._outcomes.last(order.id)
        return {"state": "cancelled", **about} if ended is None else ended.answer()

    async def _lines(self, order: WorkerCommand) -> Mapping[str, Any] | None:
        for slot in self._slots:
            if any(job.id == order.id for job in slot.jobs):
                return {"lines": list(slot.progress.lines)}
        return None

    async def _memory(self, order: WorkerCommand) -> Mapping[str, Any]:
        pids = (os.getpid(), *self._pool.pids)
        return {"memory": sum(map(resident, pids)), "cpu": round(sum(map(processor_time, pids)), 2)}

    async def _outcome(self, order: WorkerCommand) -> Mapping[str, Any] | None:
        if not order.ids:
            return self.outcome(order.id)
        known = {message.id for slot in self._slots for message in slot.messages} | self._outcomes.known(order.ids)
        return {"known": [id for id in order.ids if id in known]}

    def outcome(self, id: str) -> Mapping[str, Any] | None:
        """Return the state of a job that runs or has ended in this worker; None if unknown."""
        for slot in self._slots:
            for message in slot.messages:
                if message.id == id:
                    about = {"job": message.job, "queue": message.queue, "settled": False, "slot": slot.tag}
                    return {"state": "running", **about, "mark": fingerprint(message)}
        outcome = self._outcomes.find(id)
        return None if outcome is None else outcome.answer()
