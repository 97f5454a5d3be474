"""Remembers how jobs ended in this worker after the broker had taken their deliveries back.

The worker that gets such a job next asks this one for the outcome (adopted_jobs.py), so that the job need not
run again.
The outcomes are kept in memory only, for KEEP_FOR seconds: a worker that has ended cannot be asked.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from palermo.core.failure import Failure
from palermo.core.lifecycle import Cancelled, Dropped, Interrupted, Raised, Result, Retrying, Succeeded
from palermo.core.message import Message
from palermo.worker.ipc.frames import result_to_plain, unpack_result

#: Seconds for which an outcome is kept, and the most outcomes that are kept.
KEEP_FOR = 600.0
MAX_OUTCOMES = 1_000


def fingerprint(message: Message) -> str:
    """A hash that differs for another message with the same id: one requeued, or enqueued again with the user's id."""
    import hashlib

    fields = (message.id, message.job, message.attempt, message.created_at, message.run_at, message.body)
    return hashlib.sha256(repr(fields).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one job ended."""

    message: Message
    result: Result
    #: The tag of the slot that ran it.
    slot: str
    #: When it ended, by the monotonic clock.
    at: float


class Outcomes:
    """The outcomes that one worker remembers."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._kept: dict[str, Outcome] = {}

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the jobs whose outcome is known."""
        self._forget_old()
        return tuple(self._kept)

    def keep(self, message: Message, result: Result, *, slot: str) -> None:
        """Remember a job that has ended, and whose delivery the broker had taken back. Ignores Interrupted."""
        if isinstance(result, Interrupted):
            return
        self._kept.pop(message.id, None)
        self._kept[message.id] = Outcome(message=message, result=result, slot=slot, at=self._now())
        if len(self._kept) > MAX_OUTCOMES:
            del self._kept[next(iter(self._kept))]

    def forget(self, id: str) -> None:
        """Forget a job: it ran again, and was settled."""
        self._kept.pop(id, None)

    def find(self, id: str) -> Outcome | None:
        """The job's outcome; None if it is not known."""
        self._forget_old()
        return self._kept.get(id)

    def _forget_old(self) -> None:
        while self._kept and self._now() - next(iter(self._kept.values())).at > KEEP_FOR:
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
            return {"state": "retrying", **result_to_plain(result)}
        case Dropped():
            return {"state": "discarded", **result_to_plain(result)}
        case Raised(failure):
            return {"state": "failed", "failure": {name: getattr(failure, name) for name in Failure.__slots__}}


def outcome_from_plain(answer: Mapping[str, Any]) -> Result | None:
    """The result that `outcome_to_plain` wrote; None if the job still runs or was interrupted, or if it has none."""
    match answer:
        case {"state": "done"}:
            return Succeeded()
        case {"state": "cancelled"}:
            return Cancelled()
        case {"state": "retrying" | "discarded"}:
            return unpack_result(answer)
        case {
            "state": "failed",
            "failure": {"exception_class": str(), "message": str(), "stack_trace": str(), "failed_at": int()} as values,
        }:
            return Raised(Failure(**{name: values[name] for name in Failure.__slots__}))
    return None
