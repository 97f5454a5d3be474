"""Commands on many failed jobs: each runs on a thread of its own, whoever asked for it goes away or not.

Going to one job at the end of a long queue takes as long as going to all of them, so every command
is an operation: who asked waits a moment for its end, and else is shown its progress. Finished ones are kept for
a while, so that what happened can be read afterwards; how many are kept, and wait, is bounded.
"""

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from palermo.acting import Actor
from palermo.broker import Swept
from palermo.core.topology import check_job_queue
from palermo.errors import NotFound, PalermoError
from palermo.inspector import Inspector
from palermo.verdicts import Selection, Taken, Which
from palermo.webui.errors import Refused
from palermo.webui.failed.view import FailedView

#: Finished operations kept, the newest; and those that may wait for their turn.
KEPT, WAITING = 100, 10

#: Ids of jobs that an operation names in the end, of those it could not find.
NAMED = 20

Action = Literal["requeue", "discard"]
Status = Literal["waiting", "running", "done", "stopped", "failed"]

_DONE = {"requeue": "requeued", "discard": "discarded"}


@dataclass(kw_only=True)
class Operation:
    """One command, from the moment it was asked for. Written by its own thread only."""

    id: str
    action: Action
    #: Who asked, by name.
    by: str
    #: What is meant, for people.
    about: str
    #: How many jobs were meant, as far as that was known; None where it was not.
    expected: int | None
    which: Which
    args: Sequence[object] | None = None
    kwargs: Mapping[str, object] | None = None
    queue: str | None = None
    status: Status = "waiting"
    asked_at: float = field(default_factory=time.time)
    ended_at: float | None = None
    #: How many failed jobs it went through, of how many.
    seen: int = 0
    total: int = 0
    #: How many jobs it took out of `failed`, and the first of them.
    taken: int = 0
    first: Taken | None = None
    #: What went wrong with some of the jobs, or with all of it.
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
        """End before the next job: what has not been come to stays as it is."""
        self.stop_asked = True

    @property
    def gone(self) -> int:
        """How many of the jobs meant were not there any more, as far as it was known how many were meant."""
        stay = sum(problem.jobs for problem in self.problems if not isinstance(problem, NotFound))
        return max(0, (self.expected or 0) - self.taken - stay) if self.status == "done" else 0

    def outcome(self) -> str:
        """What it came to, in a sentence."""
        did = f"{_DONE[self.action]} {self.taken:,} job{'' if self.taken == 1 else 's'}"
        parts = [did[0].upper() + did[1:]]
        if self.gone:
            parts.append(f"{self.gone:,} had gone")
        text = ", ".join(parts)
        match self.status:
            case "stopped":
                text += f", then stopped: {self.seen:,} of {self.total:,} failed jobs were looked at"
            case "failed":
                text += ", then failed"
        reasons = "; ".join(str(problem).rstrip(".") for problem in self.problems if not isinstance(problem, NotFound))
        return f"{text}. {reasons}.".strip() if reasons else f"{text}."


class Operations:
    """All commands of one site, one at a time on the queue."""

    def __init__(self, inspector: Inspector, view: FailedView) -> None:
        self._inspector = inspector
        self._view = view
        self._lock = threading.Lock()
        self._all: dict[str, Operation] = {}
        self._closed = False

    def start(self, operation: Operation, *, done: Callable[[Operation], None]) -> Operation:
        """Begin it, on a thread of its own; `done` is called there at its end.

        Raises Refused (503) when too many wait, QueueNameInvalid, IdInvalid.
        """
        if operation.queue is not None:
            check_job_queue(operation.queue)
        Selection(operation.which if not isinstance(operation.which, str) else [operation.which])
        with self._lock:
            if self._closed or sum(not each.over for each in self._all.values()) > WAITING:
                raise Refused(503, "too many long commands are under way here. Wait for one of them to end.")
            self._all[operation.id] = operation
            over = [id for id, each in self._all.items() if each.over]
            for id in over[: max(0, len(self._all) - KEPT)]:
                del self._all[id]
        threading.Thread(
            target=self._run, args=(operation, done), name=f"palermo-{operation.action}", daemon=True
        ).start()
        return operation

    def get(self, id: str) -> Operation:
        """The operation of this id. Raises NotFound for one that never was, or is kept no longer."""
        found = self._all.get(id)
        if found is None:
            raise NotFound(f"no operation {id!r} here: it ended long ago, or the server was started again since.")
        return found

    def running(self) -> list[Operation]:
        """Those that have not ended, the oldest first."""
        with self._lock:
            return [each for each in self._all.values() if not each.over]

    def close(self) -> None:
        """Have all of them end at the next job; waits a moment for that. Nothing is lost by it."""
        self._closed = True
        for operation in self.running():
            operation.stop()
            operation.wait(5)

    def _run(self, operation: Operation, done: Callable[[Operation], None]) -> None:
        try:
            with self._view.taking():
                operation.status = "running"
                self._act(operation)
            if operation.status == "running":
                operation.status = "stopped" if operation.stop_asked and operation.seen < operation.total else "done"
        except PalermoError as error:
            operation.status = "failed"
            operation.problems.append(error)
            self._view.refresh()
        finally:
            if operation.status in (
                "waiting",
                "running",
            ):  # something that nobody foresaw, told by the thread's own end
                operation.status = "failed"
            operation.which = ""  # may be long
            operation.ended_at = time.time()
            done(operation)
            operation._ended.set()

    def _act(self, operation: Operation) -> None:
        left = 0

        def progress(swept: Swept) -> None:
            nonlocal left
            operation.seen, operation.total = swept.seen, swept.total
            self._view.left(swept.removed + swept.moved - left)
            left = swept.removed + swept.moved

        def taken(jobs: Sequence[Taken]) -> None:
            operation.first = operation.first or jobs[0]
            operation.taken += len(jobs)
            self._view.taken(jobs)

        common: dict[str, Any] = {
            "progress": progress,
            "on_taken": taken,
            "on_error": operation.problems.append,
            "stop": lambda: operation.stop_asked,
        }
        inspector = self._inspector.on_behalf_of(Actor(operation.by, "web"))
        if operation.action == "discard":
            inspector.discard(operation.which, **common)
        else:
            inspector.requeue(
                operation.which, args=operation.args, kwargs=operation.kwargs, queue=operation.queue, **common
            )


def new_id() -> str:
    """An id that nobody can guess: whoever has it may see how the operation fares."""
    return secrets.token_urlsafe(12)
