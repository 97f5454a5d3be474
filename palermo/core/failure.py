"""The errors that a job carries: the latest with its traceback, and a log of the earlier ones.

Each is enough to understand the error, and cut to sizes that headers can hold.
"""

import traceback
from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

MAX_CLASS = 500
MAX_MESSAGE = 2_000
MAX_STACK_TRACE = 16_000

_CUT = "\n… cut …\n"


class Failure(Struct, frozen=True, kw_only=True):
    """Why a job failed, and when."""

    #: Dotted name of the exception's class, `palermo.errors.…` for Palermo's own, at most 500 characters.
    exception_class: str
    #: ``str(exception)``, at most 2,000 characters.
    message: str
    #: The formatted traceback, newest last, cut in the middle to at most 16,000 bytes of UTF-8.
    stack_trace: str
    #: Unix seconds.
    failed_at: int


def from_exception(error: BaseException, *, failed_at: int, skip: frozenset[str] = frozenset()) -> Failure:
    """The failure that describes an exception.

    `skip` holds the names of Palermo's own files. Their frames at the start of the traceback
    are left out, since they tell a reader nothing.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename in skip:
        trace = trace.tb_next
    try:
        text = str(error)
    except Exception:  # a user's __str__ may raise anything, and must not hide the failure itself
        text = "(its message cannot be read: __str__ raised)"
    formatted = "".join(traceback.format_exception(type(error), error, trace))
    return cut(
        Failure(
            exception_class=class_name(type(error)),
            message=text,
            stack_trace=formatted,
            failed_at=failed_at,
        )
    )


def class_name(kind: type[BaseException]) -> str:
    """The dotted name of an exception class; plain for builtins, as Python itself prints it."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def cut(failure: Failure, *, message: int = MAX_MESSAGE, stack_trace: int = MAX_STACK_TRACE) -> Failure:
    """The failure with its texts cut: class and message at the end, by characters, and the trace in the middle."""
    return replace(
        failure,
        exception_class=printable(failure.exception_class)[:MAX_CLASS],
        message=printable(failure.message)[:message],
        stack_trace=cut_middle(printable(failure.stack_trace), stack_trace),
    )


def cut_middle(text: str, size: int) -> str:
    """The text in at most `size` bytes of UTF-8, with its middle left out if need be.

    The start shows the outermost calls and the end shows the error; the middle is what recursion repeats.
    """
    data = text.encode()
    if len(data) <= size:
        return text
    room = max(0, size - len(_CUT.encode()))
    head = room // 3
    tail = room - head
    return data[:head].decode(errors="ignore") + _CUT + (data[-tail:].decode(errors="ignore") if tail else "")


def printable(text: str) -> str:
    """The text with what UTF-8 cannot hold (lone surrogates) replaced."""
    return text.encode(errors="replace").decode()


def fingerprint(job: str, failure: Failure) -> str:
    """Twelve hexadecimal digits that failures of one kind share: same job, same class, same place."""
    import hashlib

    text = "\0".join((job, failure.exception_class, innermost_frame(failure.stack_trace)))
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=6).hexdigest()


def innermost_frame(stack_trace: str) -> str:
    """The innermost frame of a stack trace: `file.py:function` in a Python traceback, else the first line with "at ".

    Python writes the innermost frame last; the JVM, .NET and JavaScript write it first. Line numbers of Python are left
    out, so that an edit elsewhere in the file does not make a new group.
    """
    lines = [line.strip() for line in stack_trace.splitlines()]
    python = any(line.startswith('File "') and ", in " in line for line in lines)
    for text in reversed(lines) if python else lines:
        if text.startswith('File "') and ", in " in text:
            path = text[6:].partition('"')[0]
            return f"{path.replace(chr(92), '/').rpartition('/')[2]}:{text.rpartition(', in ')[2]}"
        if text.startswith("at "):
            return text[3:]
    return ""


#: The most characters of an earlier error's message.
_ATTEMPT_MESSAGE = 500

#: The largest size of the log of earlier errors, in bytes of UTF-8: a quarter of the frame that holds all headers.
ATTEMPTS_BUDGET = 32_000

#: The numbers and instants of tries are below this.
_BELOW = 2**33

#: Bytes that an entry takes besides its texts.
_FRAME = 80


class Attempt(Struct, frozen=True, kw_only=True):
    """One try that failed, in short form.

    When a newer error replaces the latest one, or a requeue removes it, its short form is appended to the log.
    """

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
            message=printable(failure.message)[:_ATTEMPT_MESSAGE],
            failed_at=failure.failed_at,
        )

    @property
    def size(self) -> int:
        """An estimate of the bytes that it takes among the headers; never too high."""
        return _FRAME + len(self.exception_class.encode()) + len(self.message.encode())


def append_attempt(log: Sequence[Attempt], attempt: Attempt, budget: int = ATTEMPTS_BUDGET) -> tuple[Attempt, ...]:
    """The log with one more attempt, within the budget: the first attempt and the newest ones stay."""
    return cut_attempts((*log, attempt), budget)


def cut_attempts(log: Sequence[Attempt], budget: int) -> tuple[Attempt, ...]:
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


def attempts_header(log: Sequence[Attempt]) -> list[dict[str, Any]]:
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


def attempts_in(value: Sequence[Any]) -> tuple[Attempt, ...]:
    """The log in the value of such a header; entries that are not valid are left out."""
    found = []
    for each in value:
        match each:
            case {"attempt": int(number), "class": str(name), "message": str(text), "failed-at": int(failed_at)} if (
                0 <= number < _BELOW and 0 <= failed_at < _BELOW
            ):
                name, text = name[:MAX_CLASS], text[:_ATTEMPT_MESSAGE]
                found.append(Attempt(number=number, exception_class=name, message=text, failed_at=failed_at))
    return tuple(found)
