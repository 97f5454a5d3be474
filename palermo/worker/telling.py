"""What a worker's log says of each run: one line when it begins, one when it has ended."""

import logging
import time

from palermo.core.failure import Failure
from palermo.core.lifecycle import Cancelled, Dropped, Interrupted, Raised, Result, Retrying, Succeeded
from palermo.core.message import Message

log = logging.getLogger("palermo.worker")


def tell_start(slot: int, message: Message) -> None:
    """A run begins."""
    if log.isEnabledFor(logging.INFO):
        log.info("job started id=%s job=%s queue=%s attempt=%d slot=%d", *_named(slot, message))


def tell_end(slot: int, message: Message, result: Result, *, began: float, ran: bool, by: str) -> None:
    """A run that began at this Unix time has ended so.

    `ran` and `by` are for one that was cancelled: whether it had begun, and who cancelled it, "" if nobody said.
    """
    named = _named(slot, message)
    match result:
        case Raised(failure):
            log.error(
                "job failed id=%s job=%s queue=%s attempt=%d slot=%d duration=%.3f error=%r",
                *named,
                time.time() - began,
                _in_short(failure),
            )
        case Retrying(None, delay):
            log.info("job snoozed id=%s job=%s queue=%s attempt=%d slot=%d delay=%.1f", *named, delay)
        case Retrying(Failure() as failure, delay):
            log.warning(
                "job failed id=%s job=%s queue=%s attempt=%d slot=%d duration=%.3f error=%r retry_in=%.1f",
                *named,
                time.time() - began,
                _in_short(failure),
                delay,
            )
        case Dropped(reason):
            log.warning("job discarded id=%s job=%s queue=%s attempt=%d slot=%d reason=%r", *named, reason)
        case Interrupted():
            log.warning("job interrupted, giving it back id=%s job=%s queue=%s attempt=%d slot=%d", *named)
        case Cancelled():
            log.warning(
                "job cancelled id=%s job=%s queue=%s attempt=%d slot=%d ran=%s by=%s",
                *named,
                "yes" if ran else "no",
                by or "?",
            )
        case Succeeded():
            tell_success(slot, message, began, skipped=result.skipped)


def tell_success(slot: int, message: Message, began: float, *, skipped: bool = False) -> None:
    """The same for one that has returned, or was skipped."""
    if log.isEnabledFor(logging.INFO):
        log.info(
            "job %s id=%s job=%s queue=%s attempt=%d slot=%d duration=%.3f",
            "skipped" if skipped else "finished",
            *_named(slot, message),
            time.time() - began,
        )


def _named(slot: int, message: Message) -> tuple[str, str, str, int, int]:
    """What every line about a job says of it, in the lines' order."""
    return message.id, message.job, message.queue, message.attempt, slot


def _in_short(failure: Failure) -> str:
    text = failure.message.partition("\n")[0][:200]
    return f"{failure.exception_class}: {text}"
