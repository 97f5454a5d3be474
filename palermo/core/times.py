"""Durations and instants as users give them, in seconds."""

import re
from datetime import datetime, timedelta
from typing import Any, TypeGuard, overload

from palermo.errors import OptionInvalid

# The functions below import core.backoff late: a module that only declares jobs doesn't need it.

#: A number of seconds, or a timedelta.
Duration = float | timedelta

#: Unix seconds, or a datetime with a time zone.
Instant = float | datetime

#: Maximum delay by a policy, in seconds: ten years.
MAX_DELAY = 10 * 366 * 86_400.0


@overload
def in_seconds(duration: Duration) -> float: ...
@overload
def in_seconds(duration: Duration | None) -> float | None: ...
def in_seconds(duration: Any) -> Any:
    """The seconds of a timedelta; any other value unchanged, for callers to check."""
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def is_delay(value: object) -> TypeGuard[float]:
    """Whether this is a valid delay in seconds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_DELAY


def delay_seconds(delay: Any) -> float:
    """A delay in seconds, not negative. Raises OptionInvalid."""
    from palermo.core.message import MAX_SECONDS

    value = in_seconds(delay)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MAX_SECONDS / 2:
        raise OptionInvalid(f"option delay={delay!r} is invalid; give a number of seconds, 0 or more, or a timedelta.")
    return float(value)


def unix_seconds(at: Any) -> float:
    """An instant in Unix seconds. Raises OptionInvalid for an invalid one, or a datetime without a time zone."""
    from palermo.core.due_times import check_due

    if isinstance(at, datetime):
        if at.tzinfo is None or at.utcoffset() is None:
            raise OptionInvalid(f"{at!r} has no time zone. Give one: datetime(…, tzinfo=ZoneInfo('Europe/Rome')).")
        return check_due(at.timestamp())
    return check_due(at)


def due_at(now: float, *, delay: Any, run_at: Any, declared: float | None) -> float | None:
    """The time at which a job that is enqueued now will run; None for immediately. `declared` is the job's own delay.

    Raises OptionInvalid.
    """
    if run_at is not None:
        if delay is not None:
            raise OptionInvalid(f"both delay={delay!r} and run_at={run_at!r} are given; give only one of them.")
        return unix_seconds(run_at)
    wait = declared if delay is None else delay_seconds(delay)
    return unix_seconds(now + wait) if wait else None


_DURATION = r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?"
_UNITS = (86_400.0, 3_600.0, 60.0, 1.0)


def parse_duration(text: str) -> float:
    """Parse `90`, `90s`, `5m`, `1h30m`, `2d` as seconds. Raises ValueError."""
    found = re.fullmatch(_DURATION, text.strip(), re.ASCII)
    if found is None or not any(found.groups()):
        raise ValueError(f"{text!r} is not a duration")
    return sum(float(number) * unit for number, unit in zip(found.groups(), _UNITS, strict=True) if number)


def parse_instant(text: str) -> float:
    """Parse an ISO 8601 instant with a time zone as Unix seconds. Raises ValueError with a text for users."""
    return _instant(text, "write 2026-12-01T09:00Z")


def parse_time(text: str, now: float, *, ago: bool) -> float:
    """Parse an instant, or a duration relative to `now`, as Unix seconds.

    With `ago` it is before now. Raises ValueError.
    """
    try:
        seconds = parse_duration(text)
    except ValueError:
        return _instant(text, f"write 5m or 2d {'ago' if ago else 'from now'}, or 2026-12-01T09:00Z")
    return now - seconds if ago else now + seconds


def _instant(text: str, advice: str) -> float:
    text = text.strip()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not a time; {advice}.") from None
    if moment.tzinfo is None:
        full = text[:40] if "T" in text or " " in text else f"{text[:34]}T00:00"
        raise ValueError(f"{text[:40]!r} has no time zone; write {full}Z or {full}+01:00.")
    return moment.timestamp()
