"""The shapes of backoff, as values that a job declares: how long a failed job waits for its next try.

Pure: attempt, error and a random number are arguments; the result is in seconds. The first failure is attempt 1. The
default shape is Sidekiq's, `n⁴ + 15 + rand(10 (n + 1))` for the n-th retry from 0.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from msgspec import Struct

from palermo.core.times import MAX_DELAY, Duration, in_seconds, is_delay
from palermo.errors import OptionInvalid

#: Returns the seconds until the next try, from the number of tries so far and a random number from 0 to 1.
BackoffFunction = Callable[[int, float], float]

#: Values that a user's function may return instead of seconds.
FAIL, DISCARD = "fail", "discard"


class Fixed(Struct, frozen=True, kw_only=True):
    """Always the same delay: seconds, or a timedelta."""

    delay: Duration

    def __call__(self, attempt: int, chance: float) -> float:
        return in_seconds(self.delay)


class Linear(Struct, frozen=True, kw_only=True):
    """A delay that grows by `step` each time, up to `cap`. Both are seconds, or timedeltas."""

    step: Duration
    cap: Duration = MAX_DELAY

    def __call__(self, attempt: int, chance: float) -> float:
        return min(in_seconds(self.cap), in_seconds(self.step) * attempt)


class Exponential(Struct, frozen=True, kw_only=True):
    """A delay that starts with `base` and is multiplied by `factor` each time, up to `cap`.

    `base` and `cap` are seconds, or timedeltas. `jitter` is the fraction of the delay, from 0 to 1, that may be
    subtracted at random: with 0.5 a job waits between half of the delay and all of it.
    """

    base: Duration = 1.0
    factor: float = 2.0
    cap: Duration = MAX_DELAY
    jitter: float = 0.0

    def __call__(self, attempt: int, chance: float) -> float:
        cap = in_seconds(self.cap)
        try:
            full = in_seconds(self.base) * self.factor ** (attempt - 1)
        except OverflowError:
            full = cap
        return min(cap, full) * (1 - self.jitter * chance)


class DelayList(Struct, frozen=True, kw_only=True):
    """The given delays in order; the last one repeats."""

    delays: tuple[float, ...]

    def __call__(self, attempt: int, chance: float) -> float:
        return self.delays[min(attempt, len(self.delays)) - 1]


def quartic(attempt: int, chance: float) -> float:
    """Sidekiq's backoff: 15 to 25 seconds, then half a minute, a minute and a half … 25 retries take three weeks."""
    n = attempt - 1
    return min(MAX_DELAY, n**4 + 15 + chance * 10 * (n + 1))


class CustomBackoff(Struct, frozen=True):
    """A user function of attempt and error. It returns a duration, None for the default shape, "fail" or "discard"."""

    function: Callable[[int, BaseException | None], Any]


Backoff = BackoffFunction | CustomBackoff

NAMED_BACKOFFS: dict[str, BackoffFunction] = {
    "exponential": quartic,
    "linear": Linear(step=15.0),
    "fixed": Fixed(delay=15.0),
}


def backoff(value: object) -> Backoff:
    """Convert `backoff=`: a name, a duration, a list of these, a shape, or a user's function.

    Raises OptionInvalid.
    """
    match value:
        case Fixed() | Linear() | Exponential() | DelayList():
            return _checked(value)
        case str() if value in NAMED_BACKOFFS:
            return NAMED_BACKOFFS[value]
        case bool() | str():
            pass
        case int() | float() | timedelta() if is_delay(in_seconds(value)):
            return Fixed(delay=float(in_seconds(value)))
        case list() | tuple() if value and all(is_delay(in_seconds(one)) for one in value):
            return DelayList(delays=tuple(float(in_seconds(one)) for one in value))
        case _ if callable(value) and not isinstance(value, type):
            return CustomBackoff(value)
    raise OptionInvalid(
        f"option backoff={value!r} is invalid; it must be {', '.join(map(repr, NAMED_BACKOFFS))}, seconds or a"
        " timedelta, a list of these, palermo.Exponential(…) or a function of the attempt and the error."
    )


def _checked(shape: Fixed | Linear | Exponential | DelayList) -> BackoffFunction:
    """Check a shape. Raises OptionInvalid unless its first delays are valid for every random number."""
    try:
        waits = [shape(attempt, chance) for attempt in (1, 2) for chance in (0.0, 1.0)]
    except TypeError:
        waits = [-1.0]
    if not all(is_delay(wait) for wait in waits):
        raise OptionInvalid(f"option backoff={shape!r} gives a delay that is not between 0 seconds and ten years.")
    return shape


def seconds(backoff: Backoff, attempt: int, chance: float, error: BaseException | None = None) -> float | str:
    """The seconds to wait after this attempt; FAIL or DISCARD if the user's function returns that.

    Raises OptionInvalid for any other value, and the errors of the user's function.
    """
    if isinstance(backoff, CustomBackoff):
        value: Any = in_seconds(backoff.function(attempt, error))
        if value is None:
            value = quartic(attempt, chance)
        elif value in (FAIL, DISCARD):
            return str(value)
    else:
        value = backoff(attempt, chance)
    if not is_delay(value):
        raise OptionInvalid(
            f"backoff returned {value!r} for attempt {attempt}; it must be seconds or a timedelta, from 0 to ten years"
            ' (a custom function can also return None, "fail" or "discard").'
        )
    return float(value)
