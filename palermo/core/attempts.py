"""What went wrong in the earlier tries of a job, kept with it within a budget.

The latest error has headers of its own, with a traceback. Whenever another takes their place,
or a requeue takes them off, the one that leaves is written here in short.
"""

from collections.abc import Sequence
from typing import Any

from palermo.core.failure import Failure, printable
from palermo.core.values import dataclass

#: Characters of one error's message.
MAX_MESSAGE = 500

#: What all of them may measure, in bytes of UTF-8: a quarter of the frame that holds all headers.
BUDGET = 32_000

#: What an entry takes besides its texts.
_FRAME = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try that failed."""

    #: Which run it was, from 1.
    number: int
    exception_class: str
    message: str
    #: Unix seconds.
    failed_at: int

    @classmethod
    def of(cls, failure: Failure, number: int) -> "Attempt":
        """The short form of a failure."""
        return cls(
            number=max(1, number),
            exception_class=failure.exception_class,
            message=printable(failure.message)[:MAX_MESSAGE],
            failed_at=failure.failed_at,
        )

    @property
    def size(self) -> int:
        """Bytes that it takes among the headers, or less."""
        return _FRAME + len(self.exception_class.encode()) + len(self.message.encode())


def append(log: Sequence[Attempt], attempt: Attempt, budget: int = BUDGET) -> tuple[Attempt, ...]:
    """The log with one more, within the budget: the first is what began it and stays, and so do the newest."""
    return cut((*log, attempt), budget)


def cut(log: Sequence[Attempt], budget: int) -> tuple[Attempt, ...]:
    """As many of them as the budget allows."""
    if sum(each.size for each in log) <= budget:
        return tuple(log)
    first, rest = log[0], log[1:]
    room = budget - first.size
    kept: list[Attempt] = []
    for each in reversed(rest):
        room -= each.size
        if room < 0:
            break
        kept.append(each)
    return (first, *reversed(kept)) if first.size <= budget else ()


def to_header(log: Sequence[Attempt]) -> list[dict[str, Any]]:
    """As the header `attempts-log` has them."""
    return [
        {
            "attempt": each.number,
            "class": each.exception_class,
            "message": each.message,
            "failed-at": each.failed_at,
        }
        for each in log
    ]


def from_header(value: Sequence[Any]) -> tuple[Attempt, ...]:
    """What such a header says; entries that say nothing are left out."""
    found = []
    for each in value:
        match each:
            case {"attempt": int(number), "class": str(name), "message": str(text), "failed-at": int(failed_at)}:
                found.append(Attempt(number=number, exception_class=name, message=text, failed_at=failed_at))
    return tuple(found)
