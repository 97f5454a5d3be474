"""The errors that a job carries: the latest with its traceback, and a log of the earlier ones.

They are cut to sizes that fit into headers.
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
    """The error of a failed job, and its time."""

    #: Dotted name of the exception's class, `palermo.errors.…` for Palermo's own, at most 500 characters.
    exception_class: str
    #: ``str(exception)``, at most 2,000 characters.
    message: str
    #: The formatted traceback, newest last, cut in the middle to at most 16,000 bytes of UTF-8.
    stack_trace: str
    #: Unix seconds.
    failed_at: int


def from_exception(error: BaseException, *, failed_at: int, skip: frozenset[str] = frozenset()) -> Failure:
    """Describe an exception.

    `skip` names Palermo's own files, whose frames are left out at the start of the traceback, because they don't help
    the reader.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename in skip:
        trace = trace.tb_next
    try:
        text = str(error)
    except Exception:  # a user's __str__ may raise anything, which must not hide the failure
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
    """The dotted name of an exception class, as Python prints it: without a module for builtins."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def cut(failure: Failure, *, message: int = MAX_MESSAGE, stack_trace: int = MAX_STACK_TRACE) -> Failure:
    """The failure with its texts cut to these sizes: `message` is in characters, `stack_trace` in bytes."""
    return replace(
        failure,
        exception_class=printable(failure.exception_class)[:MAX_CLASS],
        message=printable(failure.message)[:message],
        stack_trace=cut_middle(printable(failure.stack_trace), stack_trace),
    )


def cut_middle(text: str, size: int) -> str:
    """The text in at most `size` bytes of UTF-8, cut in the middle if necessary.

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
    """The text with lone surrogates replaced, which UTF-8 can't encode."""
    return text.encode(errors="replace").decode()


def fingerprint(job: str, failure: Failure) -> str:
    """Twelve hexadecimal digits, the same for failures with the same job, class and place."""
    import hashlib

    text = "\0".join((job, failure.exception_class, innermost_frame(failure.stack_trace)))
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=6).hexdigest()


def innermost_frame(stack_trace: str) -> str:
    """The innermost frame of a stack trace: `file.py:function` in a Python traceback, otherwise the first line that
    contains "at ".

    Python writes the innermost frame last; the JVM, .NET and JavaScript write it first. Python's line numbers are left
    out, so that an edit elsewhere in the file doesn't create a new group.
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


#: Maximum length of an earlier error's message, in characters.
_ATTEMPT_MESSAGE = 500

#: Maximum size of the log of earlier errors, in bytes of UTF-8: a quarter of the frame that holds all headers.
ATTEMPTS_BUDGET = 32_000

#: Upper bound of an attempt's number and time.
_BELOW = 2**33

#: Estimated bytes of an entry without its texts.
_FRAME = 80


class Attempt(Struct, frozen=True, kw_only=True):
    """A failed attempt without its traceback.

    The log gets an entry when a newer error replaces the latest one, or when a requeue removes the latest one.
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
        """Upper bound of its size in a header, in bytes."""
        return _FRAME + len(self.exception_class.encode()) + len(self.message.encode())


def append_attempt(log: Sequence[Attempt], attempt: Attempt) -> tuple[Attempt, ...]:
    """The log with one more attempt. Within ATTEMPTS_BUDGET, the first attempt and the newest ones are kept."""
    return cut_attempts((*log, attempt), ATTEMPTS_BUDGET)


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
    """Parse the log in such a header; invalid entries are left out."""
    found = []
    for each in value:
        match each:
            case {"attempt": int(number), "class": str(name), "message": str(text), "failed-at": int(failed_at)} if (
                0 <= number < _BELOW and 0 <= failed_at < _BELOW
            ):
                name, text = name[:MAX_CLASS], text[:_ATTEMPT_MESSAGE]
                found.append(Attempt(number=number, exception_class=name, message=text, failed_at=failed_at))
    return tuple(found)
