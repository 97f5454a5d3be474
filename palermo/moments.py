"""When: delays and instants as users give them, in seconds."""

from datetime import datetime, timedelta
from typing import Any

from palermo.errors import OptionInvalid

# What knows all about delays is imported when the first is given: a module that only declares jobs does not pay for it.

#: Seconds from now, or a timedelta.
Delay = float | timedelta

#: Unix seconds, or a datetime that knows its time zone.
Instant = float | datetime


def seconds(delay: Any) -> float:
    """A delay in seconds, from 0 on. Raises OptionInvalid."""
    from palermo.core.message import MAX_SECONDS

    value = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MAX_SECONDS / 2:
        raise OptionInvalid(f"option delay={delay!r} is no delay; give seconds from 0 on, or a timedelta.")
    return float(value)


def instant(at: Any) -> float:
    """An instant in Unix seconds. Raises OptionInvalid, for a datetime without a time zone too."""
    from palermo.core.delay import check_due

    if isinstance(at, datetime):
        if at.tzinfo is None or at.utcoffset() is None:
            raise OptionInvalid(
                f"{at!r} has no time zone, so it is no instant. Give one: datetime(…, tzinfo=ZoneInfo('Europe/Rome'))."
            )
        return check_due(at.timestamp())
    return check_due(at)


def due(now: float, *, delay: Any, run_at: Any, declared: float | None) -> float | None:
    """When a job is to run that is enqueued now; None for at once. `declared` is the job's own delay.

    Raises OptionInvalid.
    """
    if run_at is not None:
        if delay is not None:
            raise OptionInvalid(f"both delay={delay!r} and run_at={run_at!r} are given; one of them says when.")
        return instant(run_at)
    wait = declared if delay is None else seconds(delay)
    return instant(now + wait) if wait else None
