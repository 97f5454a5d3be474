"""How jobs ended here whose deliveries the broker had taken back meanwhile.

Whoever got such a job next asks for it (parking.py), so that it need not run again. Only a
worker that still runs can be asked: this is memory, and it fades.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from palermo.core.failure import Failure
from palermo.core.lifecycle import Cancelled, Dropped, Interrupted, Raised, Result, Retrying, Succeeded
from palermo.core.message import Message
from palermo.core.values import dataclass
from palermo.worker.pipe import plain, unpack_result

#: Seconds for which an outcome is kept, and how many at most.
KEPT = 600.0
MOST = 1_000


def mark(message: Message) -> str:
    """What tells this message from another of the same id: one requeued, or enqueued again under a name of its own."""
    import hashlib

    told = (message.id, message.job, message.attempt, message.created_at, message.run_at, message.body)
    return hashlib.sha256(repr(told).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a job ended."""

    message: Message
    result: Result
    #: The tag of the slot that ran it.
    slot: str
    #: By the monotonic clock.
    at: float


class Outcomes:
    """What one worker remembers."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._kept: dict[str, Outcome] = {}

    @property
    def ids(self) -> tuple[str, ...]:
        """The jobs that it can tell about."""
        self._fade()
        return tuple(self._kept)

    def keep(self, message: Message, result: Result, *, slot: str) -> None:
        """A job has ended, and the broker would not have its result."""
        if isinstance(result, Interrupted):
            return
        self._kept.pop(message.id, None)
        self._kept[message.id] = Outcome(message=message, result=result, slot=slot, at=self._now())
        if len(self._kept) > MOST:
            del self._kept[next(iter(self._kept))]

    def forget(self, id: str) -> None:
        """It ran again, and settled."""
        self._kept.pop(id, None)

    def find(self, id: str) -> Outcome | None:
        """How the job ended, if that is remembered."""
        self._fade()
        return self._kept.get(id)

    def _fade(self) -> None:
        while self._kept and self._now() - next(iter(self._kept.values())).at > KEPT:
            del self._kept[next(iter(self._kept))]


def describe(result: Result) -> Mapping[str, Any]:
    """How a job ended, as JSON has it."""
    match result:
        case Succeeded():
            return {"state": "done"}
        case Cancelled():
            return {"state": "cancelled"}
        case Interrupted():
            return {"state": "interrupted"}
        case Retrying():
            return {"state": "retrying", **plain(result)}
        case Dropped():
            return {"state": "discarded", **plain(result)}
        case Raised(failure):
            return {"state": "failed", "failure": {name: getattr(failure, name) for name in Failure.__slots__}}


def read(told: Mapping[str, Any]) -> Result | None:
    """The result that was described; None while there is none."""
    match told:
        case {"state": "done"}:
            return Succeeded()
        case {"state": "cancelled"}:
            return Cancelled()
        case {"state": "retrying" | "discarded"}:
            return unpack_result(told)
        case {
            "state": "failed",
            "failure": {"exception_class": str(), "message": str(), "stack_trace": str(), "failed_at": int()} as values,
        }:
            return Raised(Failure(**{name: values[name] for name in Failure.__slots__}))
    return None
