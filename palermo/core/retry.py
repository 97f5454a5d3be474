"""How long a job that failed waits for its next try: the shapes of backoff, as values that a job declares.

Pure: attempt, error and chance come in, seconds come out. Attempts are counted from 1, the
first failure's; the default shape is Sidekiq's, `n⁴ + 15 + rand(10 (n + 1))` for the n-th retry from 0.
"""

from collections.abc import Callable, Sequence
from typing import TypeGuard

from palermo.core.values import dataclass
from palermo.errors import OptionInvalid

#: Seconds until the next try, by how many tries there were and a number from 0 to 1 that is left to chance.
Shape = Callable[[int, float], float]

#: What a function of the user's own may give instead of seconds.
FAIL, DISCARD = "fail", "discard"

#: The longest that a policy may make a job wait, in seconds: ten years.
LONGEST = 10 * 366 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """Always the same."""

    delay: float

    def __call__(self, attempt: int, chance: float) -> float:
        return self.delay


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """`step` seconds more each time, never more than `cap`."""

    step: float
    cap: float = LONGEST

    def __call__(self, attempt: int, chance: float) -> float:
        return min(self.cap, self.step * attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential:
    """`base`, and `factor` times as long each time, never more than `cap`.

    `jitter` is the part of it, from 0 to 1, that chance takes away: 0.5 waits between half and all of it.
    """

    base: float = 1.0
    factor: float = 2.0
    cap: float = LONGEST
    jitter: float = 0.0

    def __call__(self, attempt: int, chance: float) -> float:
        try:
            full = self.base * self.factor ** (attempt - 1)
        except OverflowError:
            full = self.cap
        return min(self.cap, full) * (1 - self.jitter * chance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """These, one after the other; the last again and again."""

    delays: tuple[float, ...]

    def __call__(self, attempt: int, chance: float) -> float:
        return self.delays[min(attempt, len(self.delays)) - 1]


def quartic(attempt: int, chance: float) -> float:
    """Sidekiq's: 15 to 25 seconds, then half a minute, a minute and a half … 25 retries take three weeks."""
    n = attempt - 1
    return min(LONGEST, n**4 + 15 + chance * 10 * (n + 1))


@dataclass(frozen=True, slots=True)
class Own:
    """A function of the user's: by attempt and error seconds, None for the default shape, "fail" or "discard"."""

    function: Callable[[int, BaseException | None], object]


Backoff = Shape | Own

NAMED: dict[str, Shape] = {
    "exponential": quartic,
    "linear": Linear(step=15.0),
    "fixed": Fixed(delay=15.0),
}


def backoff(value: object) -> Backoff:
    """What `backoff=` says: a name, seconds, a list of seconds, a shape, or a function of one's own.

    Raises OptionInvalid.
    """
    match value:
        case Fixed() | Linear() | Exponential() | Listed():
            return value
        case str() if value in NAMED:
            return NAMED[value]
        case bool() | str():
            pass
        case int() | float() if 0 <= value <= LONGEST:
            return Fixed(delay=float(value))
        case list() | tuple() if value and all(is_delay(one) for one in value):
            return Listed(delays=tuple(float(one) for one in value))
        case _ if callable(value) and not isinstance(value, type):
            return Own(value)
    raise OptionInvalid(
        f"option backoff={value!r} means nothing; it may be {', '.join(map(repr, NAMED))}, seconds, a list of seconds,"
        " palermo.Exponential(…) or a function of the attempt and the error."
    )


def seconds(backoff: Backoff, attempt: int, chance: float, error: BaseException | None = None) -> float | str:
    """How long to wait after this attempt; FAIL or DISCARD where a function of the user's says so.

    Raises OptionInvalid for what is none of that, and whatever such a function raises.
    """
    if isinstance(backoff, Own):
        value = backoff.function(attempt, error)
        if value is None:
            value = quartic(attempt, chance)
        elif value in (FAIL, DISCARD):
            return str(value)
    else:
        value = backoff(attempt, chance)
    if not is_delay(value):
        raise OptionInvalid(
            f"backoff gave {value!r} for attempt {attempt}; it must be seconds, from 0 to ten years"
            ' (a function of your own may also give None, "fail" or "discard").'
        )
    return float(value)


def total(shape: Shape, retries: int) -> Sequence[float]:
    """The waits that a shape makes of so many retries, with half of what is left to chance."""
    return [float(shape(attempt, 0.5)) for attempt in range(1, retries + 1)]


def is_delay(value: object) -> TypeGuard[float]:
    """Whether this is a number of seconds that a job may wait."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LONGEST
