"""When a job that failed is tried again: policies, as values that a job declares.

Pure: the error and the chance come in, seconds come out. Attempts are counted from 1, the
first failure's; the default shape is Sidekiq's, `n⁴ + 15 + rand(10 (n + 1))` for the n-th retry from 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from palermo.errors import OptionInvalid

#: Seconds until the next try, by how many tries there were and a number from 0 to 1 that is left to chance.
Backoff = Callable[[int, float], float]

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


NAMED: dict[str, Backoff] = {
    "exponential": quartic,
    "linear": Linear(step=15.0),
    "fixed": Fixed(delay=15.0),
}


def backoff(value: object) -> Backoff:
    """What `backoff=` says: a name, seconds, a list of seconds, or a policy of one's own.

    Raises OptionInvalid.
    """
    match value:
        case str() if value in NAMED:
            return NAMED[value]
        case bool() | str():
            pass
        case int() | float() if 0 <= value <= LONGEST:
            return Fixed(delay=float(value))
        case list() | tuple() if value and all(_is_seconds(one) for one in value):
            return Listed(delays=tuple(float(one) for one in value))
        case _ if callable(value):
            return value
    raise OptionInvalid(
        f"option backoff={value!r} means nothing; it may be {', '.join(map(repr, NAMED))}, seconds, a list of seconds,"
        " palermo.Exponential(…) or a function of the attempt."
    )


def seconds(policy: Backoff, attempt: int, chance: float) -> float:
    """What the policy says for this attempt, as seconds to wait. Raises OptionInvalid for what is none."""
    value = policy(attempt, chance)
    if not _is_seconds(value):
        raise OptionInvalid(f"backoff gave {value!r} for attempt {attempt}; it must be seconds, from 0 to ten years.")
    return float(value)


def total(policy: Backoff, retries: int) -> Sequence[float]:
    """The waits that a policy makes of so many retries, with half of what is left to chance."""
    return [seconds(policy, attempt, 0.5) for attempt in range(1, retries + 1)]


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LONGEST
