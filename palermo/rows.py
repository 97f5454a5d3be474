"""Jobs, queues and workers as rows: what every listing shows, and `--json` prints.

The fields are a contract, the same in the library, on the command line and over HTTP:
scripts are written against them. A row is always something JSON can hold, whatever the message holds; what does
not apply, or cannot be decoded without running foreign code, is None.
"""

import base64
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import Enum
from typing import Any

from palermo.broker import QueueInfo
from palermo.classes import Unrestored
from palermo.core.arguments import unpack
from palermo.core.failure import printable
from palermo.core.lifecycle import JobState, attempts
from palermo.core.message import Message
from palermo.core.permits import LimitInfo
from palermo.core.preview import preview
from palermo.core.values import dataclass
from palermo.crew import WorkerInfo
from palermo.errors import SerializationError
from palermo.serialization import Serializers

Row = dict[str, Any]

#: The state of a job that waits and was cancelled: whoever takes it drops it. All other states are JobState's.
CANCELLED = "cancelled"

#: The state of a job that is due later.
SCHEDULED = "scheduled"

#: Deeper than any listing is read; below it values become their repr.
_MAX_DEPTH = 100

#: Python refuses to write longer integers in decimal (sys.set_int_max_str_digits, 4,300 digits by default).
_MAX_INTEGER_BITS = 14_000


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of rows."""

    rows: list[Row]
    #: How many there are in all; None if there are more and nobody counted them.
    total: int | None
    #: How many more failed jobs there are than could be looked at; below 0 if some of those looked at have gone.
    unseen: int = 0

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


def job_row(message: Message, state: JobState, serializers: Serializers) -> Row:
    """One job that waits or has failed. Nothing is unpickled to make it."""
    arguments = arguments_of(message, serializers)
    args, kwargs = arguments if arguments is not None else (None, None)
    shown = message.preview
    if shown is None and args is not None and kwargs is not None:
        shown = preview(args, kwargs)
    failure = message.failure
    if state is JobState.PENDING and failure is not None:
        state = JobState.RETRYING
    return {
        "id": printable(message.id),
        "job": printable(message.job) or None,
        "queue": printable(message.queue),
        "state": state.value,
        "args": plain(args),
        "kwargs": plain(kwargs),
        "preview": None if shown is None else printable(shown),
        "content_type": printable(message.content_type),
        "created_at": instant(message.created_at),
        "run_at": instant(message.run_at),
        "retries": message.retries,
        "failed_at": instant(failure.failed_at) if failure and failure.failed_at else None,
        "error": None
        if failure is None
        else {
            "class": printable(failure.exception_class),
            "message": printable(failure.message),
            "traceback": printable(failure.stack_trace),
        },
        "attempts": [
            {
                "attempt": attempt.number,
                "class": printable(attempt.exception_class),
                "message": printable(attempt.message),
                "failed_at": instant(attempt.failed_at) if attempt.failed_at else None,
            }
            for attempt in attempts(message, state)
        ],
        "worker": None if message.worker is None else printable(message.worker),
        "priority": message.priority,
        "tenant": printable(message.tenant) or None,
        "topic": printable(message.topic) or None,
    }


def arguments_of(
    message: Message, serializers: Serializers, *, one: bool = False
) -> tuple[list[object], dict[str, object]] | None:
    """The arguments of a message, or None where they cannot be had without running foreign code.

    `one` is for jobs declared with arguments="one", whose body is their single argument, as an event's always is.
    """
    try:
        return unpack(serializers.look(message), message.arguments, one=one or bool(message.topic))
    except SerializationError:
        return None


def queue_row(info: QueueInfo) -> Row:
    """One queue."""
    return {
        "name": printable(info.name),
        "pending": info.pending,
        "in_progress": info.in_progress,
        "workers": info.workers,
        "paused": info.paused,
    }


def limit_row(info: LimitInfo) -> Row:
    """One key of jobs with a limit or a rate."""
    return {
        "key": printable(info.key),
        "limit": info.limit,
        "rate": info.rate or None,
        "running": info.running,
        "waiting": info.waiting,
    }


def worker_row(info: WorkerInfo) -> Row:
    """One worker, with the jobs it runs."""
    return {
        "id": plain(info.id),
        "host": plain(info.host),
        "pid": info.pid,
        "queues": plain(info.queues),
        "slots": info.slots,
        "state": info.state,
        "started_at": instant(info.started_at),
        "processed": info.processed,
        "failed": info.failed,
        "clock": info.clock,
        "jobs": [
            {
                "id": plain(running.id),
                "job": plain(running.job),
                "queue": plain(running.queue),
                "started_at": instant(running.started_at),
                "progress": running.progress,
                "text": plain(running.text),
                "line": plain(running.line),
            }
            for running in info.jobs
        ],
    }


def instant(seconds: float | None) -> str | None:
    """Unix seconds as ISO 8601 in UTC; None for None and for what no calendar holds."""
    if seconds is None:
        return None
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    timespec = "milliseconds" if moment.microsecond else "seconds"
    return moment.isoformat(timespec=timespec).replace("+00:00", "Z")


def plain(value: object, depth: int = 0) -> Any:
    """The value in what JSON has: its like where there is one, else its text form."""
    match value:
        case None | bool():
            return value
        case int() if not isinstance(value, Enum):
            return value if value.bit_length() <= _MAX_INTEGER_BITS else hex(value)
        case str() if not isinstance(value, Enum):
            return printable(value)
        case float() if not isinstance(value, Enum):
            return value if math.isfinite(value) else repr(value)
        case _ if depth >= _MAX_DEPTH:
            return "…"
        case Enum():
            return plain(value.value, depth + 1)
        case Unrestored():
            return plain(value.value, depth + 1)
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Mapping():
            return {_key(key): plain(item, depth + 1) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(item, depth + 1) for item in value]
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {field.name: plain(getattr(value, field.name), depth + 1) for field in fields(value)}
        case _:
            return printable(str(value))


def _key(key: object) -> str:
    shown = plain(key, _MAX_DEPTH - 1)
    return shown if isinstance(shown, str) else str(shown)
