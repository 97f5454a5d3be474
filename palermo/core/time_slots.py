"""The time slots in which delayed jobs wait: short ones for the near future, long ones for the far future.

A delayed job waits in the queue of the time slot that its instant falls into. When a slot comes
near, the leader moves its jobs to the shorter slots inside it. It publishes the jobs of the
shortest slots one by one, at their instants. So a job is moved at most once a level, however far away it
is, and only jobs that are due within seconds are held in memory. Instants are Unix seconds.

The shortest slots use RING queue names in turn, so that few names serve for them all.
"""

import math
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from palermo.core.message import MAX_SECONDS, Message
from palermo.errors import OptionInvalid

_MINUTE, _HOUR, _DAY = 60.0, 3_600.0, 86_400.0

#: The header in which a program without Palermo gives the time of a job; `run-at` wins over it. See
#: docs/internals/wire.md.
FOREIGN = "perform_job_at"


class Level(Struct, frozen=True):
    """Time slots of one length."""

    #: The length of each, in seconds; a whole multiple of the level below.
    span: float
    #: A job that is due in fewer seconds than this waits at this level, unless a lower level takes it.
    reach: float
    #: Seconds before its beginning at which a slot is opened: the reach of the level below. So slots that
    #: hold jobs never overlap, except for one that is just being split.
    lead: float


LEVELS: tuple[Level, ...] = (
    Level(span=10.0, reach=_MINUTE, lead=5.0),
    Level(span=5 * _MINUTE, reach=_HOUR, lead=_MINUTE),
    Level(span=_HOUR, reach=2 * _DAY, lead=_HOUR),
    Level(span=_DAY, reach=60 * _DAY, lead=2 * _DAY),
    Level(span=30 * _DAY, reach=3_600 * _DAY, lead=60 * _DAY),
    Level(span=3_600 * _DAY, reach=math.inf, lead=3_600 * _DAY),
)

#: How many queue names the shortest slots use in turn. Jobs of level 0 are due within 36 slots at most, when a
#: slot of five minutes is split; the other names are for slots that are over, and for clocks that differ.
RING = 64

#: Seconds for which the leader still looks at a slot after its end, since a publisher's clock may be slow.
KEPT_AFTER_END = 240.0

#: The most characters of a slot's name: a part of a queue's name, of which AMQP takes 255 bytes.
_MOST_CHARACTERS = 32


class TimeSlot(Struct, frozen=True, order=True):
    """A slot of time. Its number is counted from the epoch in spans of its level, so all processes agree on it."""

    level: int
    index: int

    @property
    def begins(self) -> float:
        """Its first instant."""
        return self.index * LEVELS[self.level].span

    @property
    def ends(self) -> float:
        """The first instant after it."""
        return (self.index + 1) * LEVELS[self.level].span

    @property
    def opens(self) -> float:
        """The instant at which the leader takes up its jobs."""
        return self.begins - LEVELS[self.level].lead

    @property
    def shortest(self) -> bool:
        """Whether its jobs are published from it, and not split over shorter slots."""
        return self.level == 0

    def inner_slot(self, due: float) -> "TimeSlot":
        """The slot one level down that this instant falls into. Raises ValueError on the lowest level."""
        if self.shortest:
            raise ValueError(f"{self} is of the lowest level")
        return _at(self.level - 1, due)

    def __str__(self) -> str:
        """The part of its queue's name that tells it from other slots."""
        return f"{self.level}.{self.index % RING if self.shortest else self.index}"

    @classmethod
    def parse(cls, text: str, present: float) -> "TimeSlot":
        """The slot that str() named; of several with that name, the one that has not been over for long.

        Raises ValueError.
        """
        level, _, index = text.partition(".")
        if len(text) <= _MOST_CHARACTERS and level.isdecimal() and index.isdecimal() and int(level) < len(LEVELS):
            found = cls(int(level), int(index))
            if str(found) == text:
                return found._nearest(present) if found.shortest else found
        raise ValueError(f"{text!r} names no time slot")

    def _nearest(self, present: float) -> "TimeSlot":
        first = max(0, math.floor((present - KEPT_AFTER_END) / LEVELS[0].span))
        return replace(self, index=first + (self.index - first) % RING)


def time_slot_of(due: float, present: float) -> TimeSlot | None:
    """The slot in which a job that is due at this instant waits; None if it need not wait."""
    if due <= present:
        return None
    level = next(number for number, level in enumerate(LEVELS) if due - present < level.reach)
    return _at(level, due)


def in_ms(instant: float) -> int:
    """The millisecond of an instant. Jobs that are due in the same one are in no order among themselves."""
    return round(1_000 * instant)


def in_order(slots: Iterable[TimeSlot]) -> list[TimeSlot]:
    """The slots in the order of their beginnings; of those that begin together, the shorter first."""
    return sorted(slots, key=lambda one: (one.begins, one.level))


def check_due(due: object) -> float:
    """The instant, if a job may be due then. Raises OptionInvalid."""
    if isinstance(due, bool) or not isinstance(due, int | float) or not math.isfinite(due):
        raise OptionInvalid(f"{due!r} is no instant; give Unix seconds, or a datetime with a time zone.")
    if not 0 < due < MAX_SECONDS:
        raise OptionInvalid(f"instant {due!r} is before 1970 or after 2242; choose one between.")
    return float(due)


def moved_to(message: Message, due: float) -> Message:
    """The same job, due at another instant. The time from its instant to its expiry stays the same."""
    expires = message.expires_at
    if expires is not None and message.run_at is not None:
        expires = min(MAX_SECONDS - 1, max(due, expires + due - message.run_at))
    return without_foreign_time(replace(message, run_at=due, expires_at=expires))


def is_early(message: Message, present: float) -> bool:
    """Whether another program put the message straight into its job queue, to be run later.

    A message with `run-at` alone comes from a slot, and is due by the clock of the leader that published it. If a
    worker handed it back, two machines whose clocks differ would pass it to and fro.
    """
    return FOREIGN in message.extra and message.run_at is not None and message.run_at > present


def without_foreign_time(message: Message) -> Message:
    """The message with its time in Palermo's own header alone."""
    if FOREIGN not in message.extra:
        return message
    return replace(message, extra={name: value for name, value in message.extra.items() if name != FOREIGN})


def _at(level: int, due: float) -> TimeSlot:
    return TimeSlot(level, int(due // LEVELS[level].span))
