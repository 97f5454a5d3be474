"""Keeps how jobs ended in this worker while the broker does not know it.

If the broker took a delivery back, the worker that gets the job next asks this one for its outcome (adopted_jobs.py),
so that the job need not run again. Outcomes are kept in memory only, for KEEP_FOR seconds: a worker that has ended
cannot be asked.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from msgspec import Struct, ValidationError, convert, to_builtins

from palermo.core.latest import remember
from palermo.core.lifecycle import Interrupted, Result, without_step
from palermo.core.message import Message

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
