"""Writes the log lines of each run: one when it begins, one when it has ended."""

import logging

from palermo.contract import clock
from palermo.core.failure import Failure
from palermo.core.lifecycle import Cancelled, Dropped, Interrupted, Raised, Result, Retrying, Succeeded
from palermo.core.message import Message

log = logging.getLogger("palermo.worker")


def log_start(slot: int, message: Message) -> None:
    """Log that a run begins."""
    if log.isEnabledFor(logging.INFO):
        log.info("job started id=%s job=%s queue=%s attempt=%d slot=%d", *_job_values(slot, message))


def log_end(slot: int, message: Message, result: Result, *, began: float, ran: bool, by: str) -> None:
    """Log how a run ended that began at the Unix time `began`.

    `ran` and `by` are for a cancelled job: whether it had begun, and who cancelled it, "" if nobody said.
    """
    named = _job_values(slot, message)
    match result:
        case Raised(failure):
            log.error(
                "job failed id=%s job=%s queue=%s attempt=%d slot=%d duration=%.3f error=%r",
                *named,
                clock.now() - began,
                _error_line(failure),
            )
        case Retrying(None, delay):
            log.info("job snoozed id=%s job=%s queue=%s attempt=%d slot=%d delay=%.1f", *named, delay)
        case Retrying(Failure() as failure, delay):
            log.warning(
                "job failed id=%s job=%s queue=%s attempt=%d slot=%d duration=%.3f error=%r retry_in=%.1f",
                *named,
                clock.now() - began,
                _error_line(failure),
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
            log_success(slot, message, began, skipped=result.skipped)


def log_success(slot: int, message: Message, began: float, *, skipped: bool = False) -> None:
    """Log that a job has returned, or was skipped."""
    if log.isEnabledFor(logging.INFO):
        log.info(
            "job %s id=%s job=%s queue=%s attempt=%d slot=%d duration=%.3f",
            "skipped" if skipped else "finished",
            *_job_values(slot, message),
            clock.now() - began,
        )


def _job_values(slot: int, message: Message) -> tuple[str, str, str, int, int]:
    """The values that every log line about a job has, in the order of the line."""
    return message.id, message.job, message.queue, message.attempt, slot


def _error_line(failure: Failure) -> str:
    text = failure.message.partition("\n")[0][:200]
    return f"{failure.exception_class}: {text}"
