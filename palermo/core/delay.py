"""Where a job waits for its time: the stretches that time is cut into, near ones short and far ones long.

A job that is due later is kept in the queue of the stretch its time falls into. As the stretch
comes near, its jobs are spread over the shorter stretches that it is made of, and those of the
shortest are published one by one at their instants. So a job is moved at most once a level, however far away it
is, and only what is due within seconds is held in memory. Instants are Unix seconds.

The shortest stretches come round again after RING of them, so that few names serve for them all.
"""

import math
from collections.abc import Iterable
from dataclasses import replace

from palermo.core.message import MAX_SECONDS, Message
from palermo.core.values import dataclass
from palermo.errors import OptionInvalid

_MINUTE, _HOUR, _DAY = 60.0, 3_600.0, 86_400.0

#: How a program that schedules without Palermo says when (docs/wire.md); `run-at` wins.
FOREIGN = "perform_job_at"


@dataclass(frozen=True, slots=True)
class Level:
    """Stretches of one length."""

    #: How long each is, in seconds; a whole multiple of the level below.
    span: float
    #: A job that is due sooner than this goes to this level, if to none below.
    reach: float
    #: How long before its beginning a stretch is opened: as far as the level below reaches, so that the stretches
    #: which hold jobs never overlap, but for one that is just being spread.
    lead: float


LEVELS: tuple[Level, ...] = (
    Level(span=10.0, reach=_MINUTE, lead=5.0),
    Level(span=5 * _MINUTE, reach=_HOUR, lead=_MINUTE),
    Level(span=_HOUR, reach=2 * _DAY, lead=_HOUR),
    Level(span=_DAY, reach=60 * _DAY, lead=2 * _DAY),
    Level(span=30 * _DAY, reach=3_600 * _DAY, lead=60 * _DAY),
    Level(span=3_600 * _DAY, reach=math.inf, lead=3_600 * _DAY),
)

#: The shortest stretches use so many names in turn. Jobs of level 0 are due within 36 stretches at most, when one of
#: five minutes is spread; the rest of the ring is for those that are over, and for clocks that differ.
RING = 64

#: Seconds after its end for which a stretch is still looked at, for publishers whose clocks are slow.
KEPT = 240.0


@dataclass(frozen=True, slots=True, order=True)
class Stretch:
    """A piece of time, the same for everyone: counted from the epoch in spans of its level."""

    level: int
    index: int

    @property
    def begins(self) -> float:
        """Its first instant."""
        return self.index * LEVELS[self.level].span

    @property
    def ends(self) -> float:
        """The instant behind its last."""
        return (self.index + 1) * LEVELS[self.level].span

    @property
    def opens(self) -> float:
        """When its jobs are to be taken up."""
        return self.begins - LEVELS[self.level].lead

    @property
    def shortest(self) -> bool:
        """Whether its jobs are published from it, and not spread."""
        return self.level == 0

    def within(self, due: float) -> "Stretch":
        """The stretch one level down that this instant falls into. Raises ValueError on the lowest level."""
        if self.shortest:
            raise ValueError(f"{self} is of the lowest level")
        return _at(self.level - 1, due)

    def __str__(self) -> str:
        """What its queue is called by."""
        return f"{self.level}.{self.index % RING if self.shortest else self.index}"

    @classmethod
    def parse(cls, text: str, present: float) -> "Stretch":
        """What str() made; of those of one name the one that is not over yet, or not for long. Raises ValueError."""
        level, _, index = text.partition(".")
        if level.isdecimal() and index.isdecimal() and int(level) < len(LEVELS):
            found = cls(int(level), int(index))
            if str(found) == text:
                return found._turn(present) if found.shortest else found
        raise ValueError(f"{text!r} names no stretch of time")

    def _turn(self, present: float) -> "Stretch":
        first = max(0, math.floor((present - KEPT) / LEVELS[0].span))
        return replace(self, index=first + (self.index - first) % RING)


def stretch(due: float, present: float) -> Stretch | None:
    """Where a job that is due at this instant waits; None if it need not wait."""
    if due <= present:
        return None
    level = next(number for number, level in enumerate(LEVELS) if due - present < level.reach)
    return _at(level, due)


def in_order(stretches: Iterable[Stretch]) -> list[Stretch]:
    """By the instants they hold; where one lies in another, the shorter first."""
    return sorted(stretches, key=lambda one: (one.begins, one.level))


def check_due(due: object) -> float:
    """The instant, if a job may be due then. Raises OptionInvalid."""
    if isinstance(due, bool) or not isinstance(due, int | float) or not math.isfinite(due):
        raise OptionInvalid(f"{due!r} is no instant; give Unix seconds.")
    if not 0 < due < MAX_SECONDS:
        raise OptionInvalid(f"instant {due!r} is before 1970 or after 2242; choose one between.")
    return float(due)


def moved(message: Message, due: float) -> Message:
    """The same job, due at another instant; the time it has from then until it expires stays as long."""
    expires = message.expires_at
    if expires is not None and message.run_at is not None:
        expires = min(MAX_SECONDS - 1, max(due, expires + due - message.run_at))
    return adopted(replace(message, run_at=due, expires_at=expires))


def is_early(message: Message, present: float) -> bool:
    """Whether another program put it straight into its job queue, to be run later.

    What bears `run-at` alone comes from a stretch, and is due by the clock that published it: handing it back would
    have two machines whose clocks differ pass it to and fro.
    """
    return FOREIGN in message.extra and message.run_at is not None and message.run_at > present


def adopted(message: Message) -> Message:
    """The message with its time in our own header alone."""
    if FOREIGN not in message.extra:
        return message
    return replace(message, extra={name: value for name, value in message.extra.items() if name != FOREIGN})


def _at(level: int, due: float) -> Stretch:
    return Stretch(level, int(due // LEVELS[level].span))
