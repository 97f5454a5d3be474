"""The stored form of an error: enough to understand it, cut to sizes that a header can hold."""

import traceback
from dataclasses import dataclass, replace

MAX_CLASS = 500
MAX_MESSAGE = 2_000
MAX_STACK_TRACE = 16_000

_CUT = "\n… cut …\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
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
