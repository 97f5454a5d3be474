"""The times of recurring jobs, as instants and in words. Publishes nothing.

cronsim checks cron expressions and describes them in words; palermo.core.cron computes their instants. `every=` counts
from the epoch, so that all workers compute the same ticks.
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, TypedDict

from msgspec import ValidationError, field
from msgspec.structs import replace

from palermo.core.cron import Cron
from palermo.core.plain import Plain
from palermo.core.times import Duration, in_seconds
from palermo.core.topology import check_job_queue
from palermo.errors import OptionInvalid

if TYPE_CHECKING:
    from cronsim import CronSim

#: The treatments of ticks that came while no worker ran.
MISSED = ("skip", "once", "all")

#: Minimum time between two ticks, in seconds.
SHORTEST = 1.0

#: Maximum time between two ticks, in seconds: a year.
LONGEST = 366 * 86_400.0

#: Maximum number of missed ticks that `missed="all"` makes up for.
MAKE_UP = 1_000

#: Maximum length of a name, in bytes of UTF-8: a job's id contains the name and its tick.
MAX_NAME_BYTES = 200


class RecurringJob(Plain, frozen=True, kw_only=True):
    """A job that runs repeatedly. Raises OptionInvalid for invalid times."""

    #: Its name, unique on the exchange; by default the job's wire name.
    name: str
    #: The job's wire name.
    job: str
    #: Five or six fields, as in crontab(5) (six: seconds first); "" if it uses `every`.
    cron: str = ""
    #: Seconds between two ticks; None if it uses `cron`.
    every: float | None = None
    #: The time zone of `cron`, by its IANA name.
    tz: str = "UTC"
    #: The treatment of ticks that came while no worker ran: skip them, fire once, or fire all.
    missed: str = "once"
    enabled: bool = True
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    queue: str | None = None

    def __post_init__(self) -> None:
        _check_name(self.name)
        if self.queue is not None:
            check_job_queue(self.queue)
        if not isinstance(self.cron, str) or not isinstance(self.tz, str):
            raise OptionInvalid(f"cron={self.cron!r} and tz={self.tz!r} of recurring job {self.name!r} must be text.")
        if bool(self.cron) == (self.every is not None):
            raise OptionInvalid(f"recurring job {self.name!r} needs exactly one of cron= and every=.")
        if self.missed not in MISSED:
            raise OptionInvalid(f"option missed={self.missed!r} is invalid; it must be one of {', '.join(MISSED)}.")
        if self.every is not None:
            _check_every(self.every)
        else:
            self.next(datetime.now(UTC).timestamp())

    @property
    def times(self) -> tuple[str, float | None, str]:
        """The fields that determine when it is due."""
        return self.cron, self.every, self.tz if self.cron else ""

    def ticks(self, after: float) -> Iterator[float]:
        """The instants after `after` at which it is due, in Unix seconds and ascending order."""
        if self.every is not None:
            step, index = self.every, int(after // self.every)
            while True:
                index += 1
                if index * step > after:
                    yield index * step
        yield from _cron(self.cron).instants(after, _zone(self.tz))

    def next(self, after: float) -> float:
        """The first tick later than `after`. Raises OptionInvalid for an expression that is never due again."""
        for tick in self.ticks(after):
            return tick
        raise OptionInvalid(f"cron={self.cron!r} of recurring job {self.name!r} is never due.")

    def due(self, last: float, now: float) -> tuple[list[float], float]:
        """The ticks between `last` and `now` that should fire, and the next one to wait for."""
        upcoming = self.next(last)
        if upcoming > now:
            return [], upcoming
        if self.missed == "all":
            passed = list(islice((tick for tick in _until(self.ticks(last), now)), MAKE_UP))
        else:
            (newest,) = deque(_until(self.ticks(self._shortly_before(last, now)), now), maxlen=1)
            late = now - newest
            # A very recent tick counts as on time, even if others were missed before it.
            passed = [newest] if self.missed == "once" or late < _ON_TIME else []
        return passed, self.next(now)

    def in_words(self) -> str:
        """A description of its times for users."""
        if self.every is not None:
            return f"Every {interval(self.every)}"
        return f"{_read(self.cron).explain()} ({self.tz})"

    def switched(self, *, on: bool) -> "RecurringJob":
        """The same recurring job, enabled or not."""
        return replace(self, enabled=on)

    def _shortly_before(self, last: float, now: float) -> float:
        """A start for searching the latest tick, not far before it."""
        if self.every is not None:
            return max(last, now - 2 * self.every)
        near = max(last, now - 2 * 86_400.0)
        # A rare expression may have no tick within two days.
        return near if next(iter(self.ticks(near)), now + 1) <= now else last


#: Maximum delay in seconds for a tick that still counts as on time.
_ON_TIME = 5.0


def _until(ticks: Iterator[float], now: float) -> Iterator[float]:
    for tick in ticks:
        if tick > now:
            return
        yield tick


#: A range of one value with a step, which cronsim reads as if it had no end.
_ONE_WITH_STEP = re.compile(r"\b(\w+)-\1/[1-9]\d*\b")


def _read(cron: str) -> "CronSim":
    # Imported here, since most workers and programs have no recurring job.
    from cronsim import CronSim, CronSimError

    try:
        return CronSim(_ONE_WITH_STEP.sub(r"\1", cron), datetime.now(UTC))
    except (CronSimError, ValueError) as error:  # ValueError: a number with thousands of digits
        raise OptionInvalid(
            f"option cron={cron!r} cannot be read: {error}. Write five fields as in crontab, such as"
            " '0 3 * * *', or six that begin with seconds."
        ) from None


@lru_cache(maxsize=1_024)
def _cron(cron: str) -> Cron:
    """The parsed expression. Raises OptionInvalid."""
    sim = _read(cron)
    return Cron(
        seconds=tuple(sorted(sim.seconds)),
        minutes=tuple(sorted(sim.minutes)),
        hours=tuple(sorted(sim.hours)),
        has_day=lambda day: day.month in sim.months and sim.match_day(day),
        fixed=not any(field.startswith("*") for field in sim.parts[1:3]),
    )


def _zone(name: str) -> tzinfo:
    from zoneinfo import ZoneInfo  # imported here, since most workers and programs have no recurring job

    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        raise OptionInvalid(
            f"option tz={name!r} is not a time zone known to this machine. Give one such as 'Europe/Rome', or"
            " run `pip install tzdata` if the system has no time zones."
        ) from None


def _check_name(name: object) -> None:
    size = len(name.encode(errors="replace")) if isinstance(name, str) else 0
    if not isinstance(name, str) or not 1 <= size <= MAX_NAME_BYTES or name != name.strip() or not name.isprintable():
        raise OptionInvalid(
            f"recurring job name {str(name)[:80]!r} cannot be used: it must be text of 1 to {MAX_NAME_BYTES} bytes"
            " without spaces at either end."
        )


def _check_every(every: object) -> None:
    if isinstance(every, bool) or not isinstance(every, int | float) or not SHORTEST <= every <= LONGEST:
        raise OptionInvalid(
            f"option every={every!r} is invalid; give a number of seconds, from 1 to a year, or a timedelta."
        )


#: The units of a readable duration, the largest first.
_UNITS = (("day", 86_400.0), ("hour", 3_600.0), ("minute", 60.0))


def interval(seconds: float) -> str:
    """The interval in words, after "every": `6 hours`, or `hour`."""
    unit, size = next((one for one in _UNITS if seconds % one[1] == 0), ("second", 1.0))
    count = seconds / size
    return unit if count == 1 else f"{count:g} {unit}s"


def every_seconds(value: Duration) -> float:
    """The value of `every=` in seconds. Raises OptionInvalid."""
    seconds = in_seconds(value)
    _check_every(seconds)
    return float(seconds)


class Schedule(TypedDict, total=False):
    """The declaration of a recurring job without its name or job. A missing or None field means the default."""

    #: Five or six fields, as in crontab(5) (six: seconds first), or `every`, the time between two runs.
    cron: str | None
    every: Duration | None
    #: The time zone of `cron`, by its IANA name; UTC by default.
    tz: str | None
    args: Sequence[object]
    kwargs: Mapping[str, object] | None
    queue: str | None
    #: The treatment of missed runs: skip them, run once (the default), or run all.
    missed: str | None


def recurring_job(name: str, times: Mapping[str, Any], **fields: Any) -> RecurringJob:
    """The recurring job with these fields, of which `times` has some. None means the default. Raises OptionInvalid.

    `every` may be a timedelta.
    """
    fields |= {field: value for field, value in times.items() if field in SCHEDULED and value is not None}
    if "every" in fields:
        fields["every"] = every_seconds(fields["every"])
    try:
        return RecurringJob.from_plain({"name": name, **fields})
    except ValidationError as error:
        raise OptionInvalid(f"recurring job {name!r} cannot be read: {error}.") from None


#: The fields that declare a recurring job, without its name.
SCHEDULED = tuple(name for name in RecurringJob.__struct_fields__ if name not in ("name", "enabled"))


def configured(schedule: Mapping[str, Mapping[str, Any]]) -> list[RecurringJob]:
    """The recurring jobs in the `schedule` setting. Raises OptionInvalid."""
    return [recurring_job(name, table) for name, table in schedule.items()]
