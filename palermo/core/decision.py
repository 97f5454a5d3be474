"""What becomes of a job whose run did not end well: again, and when; failed; or dropped.

Pure: what the job declared, its error, its message, the time and the chance come in. It is asked
in the slot, where the exceptions and the user's backoff functions are.
"""

from collections.abc import Sequence
from dataclasses import replace

from palermo.core.message import Message
from palermo.core.retry import FAIL, Backoff, is_delay, quartic, seconds
from palermo.core.retry import backoff as parse
from palermo.core.values import dataclass
from palermo.errors import LockExpired, OptionInvalid

#: How many retries there are where a job asks for some and says no number; Sidekiq's.
DEFAULT_RETRIES = 25

#: How often a job whose claim has ended runs again, however few retries it declares: as if its worker had died.
LOCK_RETRIES = 2


class Retry(Exception):
    """Raised in a job: it has failed, and is to be tried again, in `delay` seconds or as its backoff says.

    Counts against the job's `retries`, or against 25 where it declares none.
    """

    def __init__(self, reason: str = "", *, delay: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.delay = None if delay is None else _checked("Retry", delay)


class Snooze(Exception):
    """Raised in a job: run it again in `delay` seconds. No failure, and not counted."""

    def __init__(self, delay: float) -> None:
        super().__init__(delay)
        self.delay = _checked("Snooze", delay)


class Discard(Exception):
    """Raised in a job: it is not worth doing any more. No failure, and nothing is kept of it but a line in the log."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


#: What retry_on and discard_on take.
Errors = type[BaseException] | Sequence[type[BaseException]]

for _kind in (Retry, Snooze, Discard):
    _kind.__module__ = "palermo"  # the name that users know, and that is kept with a failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a job declares about being tried again."""

    #: How often at most; None for no limit, which makes sense only with retry_for.
    retries: int | None = 0
    backoff: Backoff = quartic
    #: Seconds after its first failure within which it is tried again.
    retry_for: float | None = None
    #: The only errors after which it is; empty for all.
    retry_on: tuple[type[BaseException], ...] = ()
    #: The errors after which it is thrown away.
    discard_on: tuple[type[BaseException], ...] = ()
    #: Whether the job said how often; an explicit Retry then counts against that.
    declared: bool = False


def policy(
    *,
    retries: int | None = None,
    backoff: object = None,
    retry_for: float | None = None,
    retry_on: Errors | None = None,
    discard_on: Errors | None = None,
) -> Policy:
    """The policy that a job's options make. Raises OptionInvalid for a backoff that means nothing.

    Without any of them a job is not tried again. Whoever says how, or after what, and not how
    often, gets 25 retries; with `retry_for` as many as the time allows.
    """
    asks = backoff is not None or retry_for is not None or bool(retry_on)
    if retries is None and retry_for is None:
        limit: int | None = DEFAULT_RETRIES if asks else 0
    else:
        limit = retries
    return Policy(
        retries=limit,
        backoff=quartic if backoff is None else parse(backoff),
        retry_for=retry_for,
        retry_on=_tuple(retry_on),
        discard_on=_tuple(discard_on),
        declared=asks or retries is not None,
    )


@dataclass(frozen=True, slots=True)
class Again:
    """Run it again, in so many seconds."""

    delay: float
    #: Whether it was a failed try.
    counted: bool = True


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It has failed."""

    #: Whether there were retries, and the last of them failed.
    exhausted: bool = False


@dataclass(frozen=True, slots=True)
class Drop:
    """Throw it away."""

    #: Why, if the job itself said so; else because of its error.
    reason: str = ""


Decision = Again | GiveUp | Drop


def decide(policy: Policy, error: BaseException, message: Message, *, now: float, chance: float) -> Decision:
    """What becomes of the job after this error. Raises what a backoff function of the user's does.

    `chance` is a number from 0 to 1.
    """
    match error:
        case Discard():
            return Drop(error.reason)
        case Snooze():
            return Again(error.delay, counted=False)
    if isinstance(error, LockExpired):
        return _after_lock(policy, message)
    explicit = isinstance(error, Retry)
    if not explicit and isinstance(error, policy.discard_on):
        return Drop()
    if message.max_retries is not None:
        policy = replace(policy, retries=message.max_retries, declared=True)
    if not explicit and policy.retry_on and not isinstance(error, policy.retry_on):
        return GiveUp()
    limit = DEFAULT_RETRIES if explicit and not policy.declared else policy.retries
    done = message.policy_retries or 0
    if limit is not None and done >= limit:
        return GiveUp(exhausted=limit > 0)
    left = None
    if policy.retry_for is not None:
        left = (message.retrying_since or now) + policy.retry_for - now
        if left <= 0:
            return GiveUp(exhausted=True)
    delay = _delay(policy, error, done + 1, chance)
    if isinstance(delay, str):
        return GiveUp() if delay == FAIL else Drop()
    # The last try comes when its time is up, and not long after.
    wait = delay if left is None or explicit else min(delay, left)
    if message.expires_at is not None and now + wait >= message.expires_at:
        return GiveUp(exhausted=True)
    return Again(wait)


def _after_lock(policy: Policy, message: Message) -> Decision:
    """Nothing is known against the job: at once, and by whichever worker is free."""
    declared = policy.retries if message.max_retries is None else message.max_retries
    if declared is not None and (message.policy_retries or 0) >= max(declared, LOCK_RETRIES):
        return GiveUp(exhausted=True)
    return Again(0.0)


def is_failure(error: BaseException) -> bool:
    """Whether a run that raised this has failed."""
    return not isinstance(error, Snooze | Discard)


def _delay(policy: Policy, error: BaseException, attempt: int, chance: float) -> float | str:
    if isinstance(error, Retry) and error.delay is not None:
        return error.delay
    return seconds(policy.backoff, attempt, chance, error)


def _tuple(kinds: Errors | None) -> tuple[type[BaseException], ...]:
    return (kinds,) if isinstance(kinds, type) else tuple(kinds or ())


def _checked(name: str, delay: object) -> float:
    if not is_delay(delay):
        raise OptionInvalid(f"palermo.{name} got delay={delay!r}; give seconds, from 0 to ten years.")
    return float(delay)
