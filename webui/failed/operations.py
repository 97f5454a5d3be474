"""Operations that may take long. Each runs on its own thread and continues even if its page is closed.

Reaching one job at the end of a long queue takes as long as reading all jobs. Therefore every command on jobs is an
operation: the request waits a moment for its end, and otherwise shows its progress. Finished operations are kept for a
while, so that their outcome can be read later. The number of finished operations that are kept is limited, and so is
the number of waiting ones.
"""

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

from msgspec import Struct, field

from palermo.contract.sweep import SweepProgress
from palermo.errors import NotFound, PalermoError
from palermo.inspector.judges import TakenJob
from palermo.webui import tuning
from palermo.webui.site import Refused, Site

Status = Literal["waiting", "running", "done", "stopped", "failed"]

#: The past participle of each command.
DONE = {
    "requeue": "requeued",
    "discard": "discarded",
    "cancel": "cancelled",
    "move": "moved",
    "run": "enqueued",
    "retry": "enqueued",
    "give up": "gave up",
    "replay": "replayed",
}


class Operation(Struct, kw_only=True):
    """An operation, from the user's request on. Only its own thread writes to it."""

    id: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    #: One of DONE.
    action: str
    #: The user's name.
    by: str
    #: A description of the chosen jobs.
    about: str
    #: Number of chosen jobs, if known.
    expected: int | None = None
    #: The route of the page that lists the jobs, and the queue in which they are waiting, or "".
    place: str = "failures"
    waits_in: str = ""
    status: Status = "waiting"
    asked_at: float = field(default_factory=time.time)
    ended_at: float | None = None
    #: Number of jobs read so far, and to be read.
    seen: int = 0
    total: int = 0
    #: Number of changed jobs.
    taken: int = 0
    #: The ids of requeued jobs, up to the number that are followed.
    requeued: list[str] = field(default_factory=list)
    rows: Sequence[Any] = ()
    #: The errors of single jobs or of the whole operation.
    problems: list[PalermoError] = field(default_factory=list)
    stop_asked: bool = False
    _ended: threading.Event = field(default_factory=threading.Event)

    @property
    def over(self) -> bool:
        return self._ended.is_set()

    @property
    def goes_by_jobs(self) -> bool:
        """Whether it processes single jobs, so that it has progress and can be stopped between two jobs."""
        return self.place in ("failures", "queue")

    def wait(self, seconds: float) -> bool:
        """Wait up to this number of seconds. Returns whether it has ended."""
        return self._ended.wait(seconds)

    def stop(self) -> None:
        """Make the operation end before its next job. The remaining jobs are not changed."""
        self.stop_asked = True

    @property
    def gone(self) -> int:
        """The number of chosen jobs that no longer existed; 0 if the expected number is unknown."""
        stay = sum(problem.jobs for problem in self.problems if not isinstance(problem, NotFound))
        return max(0, (self.expected or 0) - self.taken - stay) if self.status == "done" else 0

    def outcome(self) -> str:
        did = f"{DONE[self.action]} {self.taken:,} job{'' if self.taken == 1 else 's'}"
        parts = [did[0].upper() + did[1:]]
        if self.gone:
            parts.append(f"{self.gone:,} no longer existed")
        text = ", ".join(parts)
        match self.status:
            case "stopped":
                text += f", then stopped after checking {self.seen:,} of {self.total:,} jobs"
            case "failed":
                text += ", then failed"
        reasons = "; ".join(str(problem).rstrip(".") for problem in self.problems if not isinstance(problem, NotFound))
        text = f"{text}. {reasons}." if reasons else f"{text}."
        if self.status == "failed":
            text += " The other jobs are unchanged. Repeat the command to continue."
            if self.taken:
                text += f" Some may be both {DONE[self.action]} and still there."
        return text

    def watching(self) -> dict[str, Any]:
        """Return the callbacks through which an inspector's command reports to this operation."""

        def progress(swept: SweepProgress) -> None:
            self.seen, self.total = swept.seen, swept.total

        def taken(jobs: Sequence[TakenJob]) -> None:
            self.taken += len(jobs)
            if self.action == "requeue":
                self.requeued += [job.id for job in jobs[: tuning.CACHED - len(self.requeued)]]

        return {
            "progress": progress,
            "on_taken": taken,
            "on_error": self.problems.append,
            "stop": lambda: self.stop_asked,
        }


class Operations:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: dict[str, Operation] = {}
        self._closed = False

    def start(
        self,
        operation: Operation,
        act: Callable[[Operation], object],
        *,
        turn: AbstractContextManager[object] | None = None,
        done: Callable[[Operation], object],
    ) -> Operation:
        """Call `act` on a separate thread when its turn comes, and `done` at the end.

        Raises Refused (503) if too many are waiting.
        """
        with self._lock:
            if self._closed or sum(not each.over for each in self._all.values()) > tuning.AT_ONCE:
                raise Refused(503, "too many long operations are running. Try again when one of them has ended.")
            self._all[operation.id] = operation
            over = [id for id, each in self._all.items() if each.over]
            for id in over[: max(0, len(self._all) - tuning.MANY)]:
                del self._all[id]
        threading.Thread(
            target=self._run,
            args=(operation, act, turn or nullcontext(), done),
            name=f"palermo-{operation.action}",
            daemon=True,
        ).start()
        return operation

    def get(self, id: str) -> Operation:
        """Return the operation with this id. Raises NotFound if it never existed or is no longer kept."""
        found = self._all.get(id)
        if found is None:
            raise NotFound(f"there is no operation {id!r}. It may have ended long ago, or the server has restarted.")
        return found

    def running(self) -> list[Operation]:
        """Return the operations that have not ended, oldest first."""
        with self._lock:
            return [each for each in self._all.values() if not each.over]

    def last_requeue(self) -> Operation | None:
        """Return the last requeue, if it ended recently and has requeued jobs."""
        with self._lock:
            ended = [each for each in self._all.values() if each.ended_at and each.requeued]
        return next((each for each in ended[::-1] if time.time() - (each.ended_at or 0.0) < tuning.WINDOW), None)

    def close(self) -> None:
        """Stop all operations at their next job, and wait up to 5 s for each. No job is lost."""
        self._closed = True
        for operation in self.running():
            operation.stop()
            operation.wait(5)

    @staticmethod
    def _run(
        operation: Operation,
        act: Callable[[Operation], object],
        turn: AbstractContextManager[object],
        done: Callable[[Operation], object],
    ) -> None:
        status: Status = "failed"  # kept after an unexpected exception, which the thread's excepthook reports
        try:
            with turn:
                operation.status = "running"
                act(operation)
            status = "stopped" if operation.stop_asked and operation.seen < operation.total else "done"
        except PalermoError as error:
            operation.problems.append(error)
        finally:
            operation.status, operation.ended_at = status, time.time()
            try:
                done(operation)
            finally:
                operation._ended.set()


def operations(site: Site) -> Operations:
    """Return a site's operations, created on first use."""
    return site.component(Operations, Operations)
