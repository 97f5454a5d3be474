"""The log of a job's earlier errors, which the job carries within a budget of bytes.

The latest error has headers of its own, with a traceback. When a newer error replaces it,
or a requeue removes it, its short form is appended to this log.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from palermo.core.failure import MAX_CLASS, Failure, printable

#: The most characters of one error's message.
MAX_MESSAGE = 500

#: The largest size of the log, in bytes of UTF-8: a quarter of the frame that holds all headers.
BUDGET = 32_000

#: The numbers and instants of tries are below this.
_BELOW = 2**33

#: Bytes that an entry takes besides its texts.
_FRAME = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try that failed."""

    #: The number of the run, from 1.
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
        """An estimate of the bytes that it takes among the headers; never too high."""
        return _FRAME + len(self.exception_class.encode()) + len(self.message.encode())


def append(log: Sequence[Attempt], attempt: Attempt, budget: int = BUDGET) -> tuple[Attempt, ...]:
    """The log with one more attempt, within the budget: the first attempt and the newest ones stay."""
    return cut((*log, attempt), budget)


def cut(log: Sequence[Attempt], budget: int) -> tuple[Attempt, ...]:
    """The attempts that fit the budget: the first, and the newest of the rest."""
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
    """The value of the header `attempts-log`."""
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
    """The log in the value of such a header; entries that are not valid are left out."""
    found = []
    for each in value:
        match each:
            case {"attempt": int(number), "class": str(name), "message": str(text), "failed-at": int(failed_at)} if (
                0 <= number < _BELOW and 0 <= failed_at < _BELOW
            ):
                name, text = name[:MAX_CLASS], text[:MAX_MESSAGE]
                found.append(Attempt(number=number, exception_class=name, message=text, failed_at=failed_at))
    return tuple(found)
