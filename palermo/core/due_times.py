"""The times of jobs: where a job waits until it is due, and changes of its due time.

On RabbitMQ a publisher puts a delayed job into one of two intakes. The leader holds the jobs of SOON in memory and
publishes each at its due time. It moves the jobs of NEW into buckets, one for each minute, hour or day. Shortly before
a bucket starts, the leader moves its jobs on. So only jobs due within two minutes are in memory, and a job due within a
year moves at most four times. Instants are Unix seconds.
"""

import math
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from palermo.core.message import MAX_SECONDS, Message
from palermo.errors import OptionInvalid

_MINUTE, _HOUR, _DAY = 60.0, 3_600.0, 86_400.0

#: The header with which a program without Palermo schedules a job; `run-at` takes precedence. See
#: docs/internals/wire.md.
FOREIGN = "perform_job_at"


class Intake(Enum):
    """The queues into which publishers put delayed jobs."""

    #: For jobs that are due within two minutes.
    SOON = "soon"
    #: For jobs that are due later.
    NEW = "new"

    def __str__(self) -> str:
        return self.value


#: Seconds until its due time below which a job goes to SOON.
_SOON = 2 * _MINUTE


class Level(Struct, frozen=True):
    """Buckets of one length."""

    name: str
    #: The length of each bucket in seconds.
    span: float
    #: Seconds before its start at which a bucket is opened.
    lead: float


#: From the shortest to the longest. A bucket is opened early enough to move a million jobs before it starts, or 100,000
#: to SOON.
LEVELS = (
    Level("minute", _MINUTE, lead=_MINUTE),
    Level("hour", _HOUR, lead=15 * _MINUTE),
    Level("day", _DAY, lead=6 * _HOUR),
)

#: The last day with a bucket, in seconds from now. Jobs due later wait there and move on from there.
_FARTHEST = 400 * _DAY

#: Maximum number of digits in a bucket's number: years from now.
_DIGITS = 12


class Bucket(Struct, frozen=True, order=True):
    """A minute, hour or day in which jobs are due, numbered from the epoch."""

    level: int
    number: int

    @property
    def opens(self) -> float:
        """The instant at which the leader starts to move its jobs. From then on no job is added."""
        return self.number * LEVELS[self.level].span - LEVELS[self.level].lead

    def __str__(self) -> str:
        """The part of its queue's name that distinguishes it from other buckets."""
        return f"{LEVELS[self.level].name}.{self.number}"

    @classmethod
    def parse(cls, text: str) -> "Bucket":
        """Parse the text of str(). Raises ValueError."""
        name, _, number = text.partition(".")
        for level, one in enumerate(LEVELS):
            if one.name == name and len(number) <= _DIGITS and number.isdecimal():
                found = cls(level, int(number))
                if str(found) == text:
                    return found
        raise ValueError(f"{text!r} is not a bucket name")


def intake_of(due: float, present: float) -> Intake | None:
    """The intake for a job due at this instant; None if it need not wait."""
    if due <= present:
        return None
    return Intake.SOON if due - present < _SOON else Intake.NEW


def bucket_of(due: float, present: float) -> Bucket | None:
    """The longest unopened bucket that contains this instant.

    None if all are open: the job is due within two minutes.
    """
    farthest = min(due, present + _FARTHEST)
    buckets = (Bucket(level, int(farthest // LEVELS[level].span)) for level in reversed(range(len(LEVELS))))
    return next((bucket for bucket in buckets if bucket.opens > present), None)


def check_due(due: object) -> float:
    """Return the due time if it is valid for a job. Raises OptionInvalid."""
    if isinstance(due, bool) or not isinstance(due, int | float) or not math.isfinite(due):
        raise OptionInvalid(f"{due!r} is not a time; give Unix seconds or a datetime with a time zone.")
    if not 0 < due < MAX_SECONDS:
        raise OptionInvalid(f"time {due!r} is before 1970 or after 2242.")
    return float(due)


def moved_to(message: Message, due: float) -> Message:
    """The same job, due at another time. An expiry moves with it."""
    expires = message.expires_at
    if expires is not None and message.run_at is not None:
        expires = min(MAX_SECONDS - 1, max(due, expires + due - message.run_at))
    return without_foreign_time(replace(message, run_at=due, expires_at=expires))


def is_early(message: Message, present: float) -> bool:
    """Whether another program put this message directly into a job queue before it is due.

    Only the foreign header counts. A job with just `run-at` was published by the leader when it was due by the leader's
    clock; a worker with a slower clock would send it back.
    """
    return FOREIGN in message.extra and message.run_at is not None and message.run_at > present


def without_foreign_time(message: Message) -> Message:
    """The message with its due time only in Palermo's own header."""
    if FOREIGN not in message.extra:
        return message
    return replace(message, extra={name: value for name, value in message.extra.items() if name != FOREIGN})


def with_foreign_time(message: Message) -> Message:
    """The message in the form in which another program puts a job into its queue to be run later."""
    return replace(message, run_at=None, extra={**message.extra, FOREIGN: message.run_at})
