"""Decides what happens to a job that raised an error: retry it, fail it, or discard it.

Pure: the job's declaration, error and message, the time and the random number are arguments. Slots call it, because
only they have the exception and the user's backoff function.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from palermo.core.backoff import FAIL, Backoff, quartic, seconds
from palermo.core.backoff import backoff as parse
from palermo.core.message import Message
from palermo.core.times import Duration, in_seconds, is_delay
from palermo.errors import OptionInvalid, RerunTimeout

#: The retries of a job that declares retries without a number; Sidekiq's default.
DEFAULT_RETRIES = 25

#: The retries of a job that exceeds its `rerun_after` and declares no retries, as if its worker had died.
RERUN_RETRIES = 2


class Retry(Exception):
    """Raise this in a job to fail this run and retry after `delay`, seconds or a timedelta, or after the job's backoff.

    The retry counts against the job's `retries`, or against 25 if the job declares none.
    """

    def __init__(self, reason: str = "", *, delay: Duration | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.delay = None if delay is None else _checked("Retry", delay)


class Snooze(Exception):
    """Raise this in a job to run it again after `delay`, seconds or a timedelta. It doesn't count as a failure."""

    def __init__(self, delay: Duration) -> None:
        super().__init__(delay)
        self.delay = _checked("Snooze", delay)


class Discard(Exception):
    """Raise this in a job to discard it. This isn't a failure; only the log and the history mention the job."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


#: The type of retry_on and discard_on.
ErrorTypes = type[BaseException] | Sequence[type[BaseException]]

for _kind in (Retry, Snooze, Discard):
    _kind.__module__ = "palermo"  # the name that users know, which a failure stores


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """The retries that a job declares."""

    #: Maximum number of retries; None for no limit, which requires retry_for.
    retries: int | None = 0
    backoff: Backoff = quartic
    #: Seconds after the first failure during which the job is retried.
    retry_for: float | None = None
    #: The errors after which it is retried; empty means all.
    retry_on: tuple[type[BaseException], ...] = ()
    #: The errors after which it is discarded.
    discard_on: tuple[type[BaseException], ...] = ()
    #: Whether the job declares retries. If so, Retry counts against `retries`.
    declared: bool = False


def make_policy(
    *,
    retries: int | None = None,
    backoff: object = None,
    retry_for: float | None = None,
    retry_on: ErrorTypes | None = None,
    discard_on: ErrorTypes | None = None,
) -> RetryPolicy:
    """Build the policy from a job's options. Raises OptionInvalid for an invalid backoff.

    A job without any retry option is not retried. With `backoff` or `retry_on`, but without `retries`, it gets 25
    retries; with `retry_for`, as many as the time allows.
    """
    asks = backoff is not None or retry_for is not None or bool(retry_on)
    if retries is None and retry_for is None:
        limit: int | None = DEFAULT_RETRIES if asks else 0
    else:
        limit = retries
    return RetryPolicy(
        retries=limit,
        backoff=quartic if backoff is None else parse(backoff),
        retry_for=retry_for,
        retry_on=_tuple(retry_on),
        discard_on=_tuple(discard_on),
        declared=asks or retries is not None,
    )


class RunAgain(Struct, frozen=True):
    """Run the job again in `delay` seconds."""

    delay: float
    #: Whether the run counts as a failed try.
    counted: bool = True


class GiveUp(Struct, frozen=True):
    """The job has failed."""

    #: Whether the job had retries and has none left, or its backoff gave up.
    exhausted: bool = False


class Drop(Struct, frozen=True):
    """Discard the job."""

    #: The reason that the job gave; "" if its error is the reason.
    reason: str = ""


Decision = RunAgain | GiveUp | Drop


def decide(policy: RetryPolicy, error: BaseException, message: Message, *, now: float, chance: float) -> Decision:
    """The decision about the job after this error. Raises the errors of the user's backoff function.

    `chance` is a random number from 0 to 1.
    """
    match error:
        case Discard():
            return Drop(error.reason)
        case Snooze():
            return RunAgain(error.delay, counted=False)
    if isinstance(error, RerunTimeout):
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
        return GiveUp(exhausted=True) if delay == FAIL else Drop()
    # The last try is at the end of `retry_for`, not long after it.
    wait = delay if left is None or explicit else min(delay, left)
    if message.expires_at is not None and now + wait >= message.expires_at:
        return GiveUp(exhausted=True)
    return RunAgain(wait)


def _after_lock(policy: RetryPolicy, message: Message) -> Decision:
    """The decision after a run that exceeded `rerun_after`: run again immediately, within the job's retries."""
    most = policy.retries if policy.declared else RERUN_RETRIES
    if message.max_retries is not None:
        most = message.max_retries
    if most is not None and (message.policy_retries or 0) >= most:
        return GiveUp(exhausted=most > 0)
    return RunAgain(0.0)


def is_failure(error: BaseException) -> bool:
    """Whether a run that raised this has failed."""
    return not isinstance(error, Snooze | Discard)


def _delay(policy: RetryPolicy, error: BaseException, attempt: int, chance: float) -> float | str:
    if isinstance(error, Retry) and error.delay is not None:
        return error.delay
    return seconds(policy.backoff, attempt, chance, error)


def _tuple(kinds: ErrorTypes | None) -> tuple[type[BaseException], ...]:
    return (kinds,) if isinstance(kinds, type) else tuple(kinds or ())


def _checked(name: str, delay: Duration) -> float:
    wait = in_seconds(delay)
    if not is_delay(wait):
        raise OptionInvalid(f"palermo.{name} got delay={delay!r}; give seconds, from 0 to ten years, or a timedelta.")
    return float(wait)
