"""Commands on failed jobs, and on those that wait in a queue. Each runs on its own thread and goes on without its page.

Reaching one job at the end of a long queue takes as long as going through all jobs. So every command is an
operation: the request waits a moment for its end, and then shows its progress. Finished operations are kept for a
while, so that their outcome can be read later. The numbers of kept and of waiting operations are bounded.
"""

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal

from msgspec import Struct, field

from palermo.client.actor import Actor
from palermo.contract.sweep import SweepProgress
from palermo.core.topology import check_id, check_job_queue, check_new_queue
from palermo.errors import NotFound, PalermoError
from palermo.inspector.inspector import Inspector
from palermo.inspector.jobs import WaitingJobs, check_move
from palermo.inspector.judges import TakenJob, Which
from palermo.views.filter import JobFilter
from palermo.webui import tuning
from palermo.webui.failed.view import FailedView
from palermo.webui.site import Refused

#: Requeue and discard are for failed jobs; cancel, move and discard for those that wait in a queue.
Action = Literal["requeue", "discard", "cancel", "move"]
Status = Literal["waiting", "running", "done", "stopped", "failed"]

_DONE = {"requeue": "requeued", "discard": "discarded", "cancel": "cancelled", "move": "moved"}


class Operation(Struct, kw_only=True):
    """One command, from the moment the user asked for it. Only its own thread writes to it."""

    id: str
    action: Action
    #: The name of the user who asked.
    by: str
    #: The jobs that are meant, as a text for people.
    about: str
    #: How many jobs were meant; None if that was not known.
    expected: int | None
    which: Which | WaitingJobs
    #: The queue in which the jobs wait; "" for failed jobs.
    waits_in: str = ""
    args: Sequence[object] | None = None
    kwargs: Mapping[str, object] | None = None
    queue: str | None = None
    priority: int | None = None
    #: Unix seconds; None for at once.
    at: float | None = None
    status: Status = "waiting"
    asked_at: float = field(default_factory=time.time)
    ended_at: float | None = None
    #: How many jobs it has looked at, and how many it will look at.
    seen: int = 0
    total: int = 0
    #: How many jobs it has taken out of their queue or cancelled.
    taken: int = 0
    #: The ids of the jobs that it has requeued, as many as are followed.
    requeued: list[str] = field(default_factory=list)
    #: The errors of single jobs, or of the whole command.
    problems: list[PalermoError] = field(default_factory=list)
    stop_asked: bool = False
    _ended: threading.Event = field(default_factory=threading.Event)

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._ended.is_set()

    def wait(self, seconds: float) -> bool:
        """Whether it has ended within this time."""
        return self._ended.wait(seconds)

    def stop(self) -> None:
        """Ask it to end before the next job. Jobs that it has not reached stay as they are."""
        self.stop_asked = True

    @property
    def gone(self) -> int:
        """How many of the meant jobs were not there any more; 0 if it was not known how many were meant."""
        stay = sum(problem.jobs for problem in self.problems if not isinstance(problem, NotFound))
        return max(0, (self.expected or 0) - self.taken - stay) if self.status == "done" else 0

    def outcome(self) -> str:
        """The outcome in a sentence."""
        did = f"{_DONE[self.action]} {self.taken:,} job{'' if self.taken == 1 else 's'}"
        parts = [did[0].upper() + did[1:]]
        if self.gone:
            parts.append(f"{self.gone:,} had gone")
        text = ", ".join(parts)
        match self.status:
            case "stopped":
                text += f", then stopped: {self.seen:,} of {self.total:,} jobs were checked"
            case "failed":
                text += ", then failed"
        reasons = "; ".join(str(problem).rstrip(".") for problem in self.problems if not isinstance(problem, NotFound))
        text = f"{text}. {reasons}." if reasons else f"{text}."
        if self.status == "failed":
            text += " The other jobs stay where they are: give the command again for them."
            if self.taken:
                text += f" Some may be both {_DONE[self.action]} and still there."
        return text


class Operations:
    """All commands of one site. They go through the queues one at a time."""

    def __init__(self, inspector: Inspector, view: FailedView) -> None:
        self._inspector = inspector
        self._view = view
        self._lock = threading.Lock()
        self._all: dict[str, Operation] = {}
        self._closed = False

    def start(self, operation: Operation, *, done: Callable[[Operation], None]) -> Operation:
        """Start an operation on its own thread, which calls `done` at the end.

        Raises Refused (503) if too many wait, QueueNameInvalid, UsageError, IdInvalid.
        """
        if operation.action == "move":
            check_move(operation.waits_in, operation.queue or "")
        elif operation.waits_in:
            check_job_queue(operation.waits_in)
        elif operation.queue is not None:
            check_new_queue(operation.queue)
        if not isinstance(operation.which, JobFilter):
            for id in [operation.which] if isinstance(operation.which, str) else operation.which:
                check_id(id)
        with self._lock:
            if self._closed or sum(not each.over for each in self._all.values()) > tuning.AT_ONCE:
                raise Refused(503, "too many long operations are running. Wait until one of them has ended.")
            self._all[operation.id] = operation
            over = [id for id, each in self._all.items() if each.over]
            for id in over[: max(0, len(self._all) - tuning.MANY)]:
                del self._all[id]
        threading.Thread(
            target=self._run, args=(operation, done), name=f"palermo-{operation.action}", daemon=True
        ).start()
        return operation

    def get(self, id: str) -> Operation:
        """The operation with this id. Raises NotFound if there never was one, or if it is no longer kept."""
        found = self._all.get(id)
        if found is None:
            raise NotFound(f"there is no operation {id!r}: it ended long ago, or the server has restarted.")
        return found

    def running(self) -> list[Operation]:
        """The operations that have not ended, the oldest first."""
        with self._lock:
            return [each for each in self._all.values() if not each.over]

    def last_requeue(self) -> Operation | None:
        """The last requeue that has ended a short time ago and has requeued jobs."""
        with self._lock:
            ended = [each for each in self._all.values() if each.ended_at and each.requeued]
        return next((each for each in ended[::-1] if time.time() - (each.ended_at or 0.0) < tuning.WINDOW), None)

    def close(self) -> None:
        """Stop all operations at their next job, and wait up to 5 s for each. Nothing is lost by that."""
        self._closed = True
        for operation in self.running():
            operation.stop()
            operation.wait(5)

    def _run(self, operation: Operation, done: Callable[[Operation], None]) -> None:
        try:
            # A reading of the failed jobs need not wait for a command on other queues.
            with nullcontext() if operation.waits_in else self._view.exclusive():
                operation.status = "running"
                self._act(operation)
            if operation.status == "running":
                operation.status = "stopped" if operation.stop_asked and operation.seen < operation.total else "done"
        except PalermoError as error:
            operation.status = "failed"
            operation.problems.append(error)
            if not operation.waits_in:
                self._view.request_reading()
        finally:
            if operation.status in (
                "waiting",
                "running",
            ):  # An unexpected exception: the thread's excepthook reports it.
                operation.status = "failed"
            operation.which = ""  # The list may be long: free its memory.
            operation.ended_at = time.time()
            try:
                done(operation)
            finally:
                operation._ended.set()

    def _act(self, operation: Operation) -> None:
        removed = 0

        def progress(swept: SweepProgress) -> None:
            nonlocal removed
            operation.seen, operation.total = swept.seen, swept.total
            if not operation.waits_in:
                self._view.count_removed(swept.removed + swept.moved - removed)
            removed = swept.removed + swept.moved

        def taken(jobs: Sequence[TakenJob]) -> None:
            operation.taken += len(jobs)
            if operation.action == "requeue":
                operation.requeued += [job.id for job in jobs[: tuning.CACHED - len(operation.requeued)]]
            if not operation.waits_in:
                self._view.forget(jobs)

        common: dict[str, Any] = {
            "progress": progress,
            "on_taken": taken,
            "on_error": operation.problems.append,
            "stop": lambda: operation.stop_asked,
        }
        inspector = self._inspector.on_behalf_of(Actor(operation.by, "web"))
        which: Any = operation.which
        match operation.action:
            case "discard" if operation.waits_in:
                inspector.jobs.discard(operation.waits_in, which, **common)
            case "cancel":
                inspector.jobs.cancel_waiting(operation.waits_in, which, **common)
            case "move":
                inspector.jobs.move(operation.waits_in, which, operation.queue or "", **common)
            case "discard":
                inspector.failed.discard(which, **common)
            case _:
                self._requeue(inspector, operation, common)

    @staticmethod
    def _requeue(inspector: Inspector, operation: Operation, common: dict[str, Any]) -> None:
        which: Any = operation.which
        inspector.failed.requeue(
            which,
            args=operation.args,
            kwargs=operation.kwargs,
            queue=operation.queue,
            priority=operation.priority,
            at=operation.at,
            **common,
        )


def new_id() -> str:
    """An id that nobody can guess. A user who has it may see the operation's progress."""
    return secrets.token_urlsafe(12)
