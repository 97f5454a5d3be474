"""The life of a job: its states, and which settlement each result calls for.

Everything that decides what happens to a job next is in this file, and nothing here
does anything: no clock, no broker, no log. The chart in docs/lifecycle.md is drawn
from TRANSITIONS; test_docs.py fails when they differ.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from palermo.core.failure import Failure
from palermo.core.message import Message, fit
from palermo.core.topology import FAILED_QUEUE, failed_queue


class JobState(StrEnum):
    """Where a job is in its life."""

    PENDING = "pending"  #: waits in its queue
    WORKING = "working"  #: a worker's slot runs it
    FAILED = "failed"  #: lies in `failed` until someone requeues or discards it
    DONE = "done"  #: has finished; nothing of it is left on the broker
    DISCARDED = "discarded"  #: was taken away by a person: discarded, purged, dequeued or cancelled


#: Every way from one state to another: what happens, from where, to where.
TRANSITIONS: tuple[tuple[str, JobState | None, JobState], ...] = (
    ("enqueue", None, JobState.PENDING),
    ("take", JobState.PENDING, JobState.WORKING),
    ("succeed", JobState.WORKING, JobState.DONE),
    ("raise", JobState.WORKING, JobState.FAILED),
    ("crash", JobState.WORKING, JobState.FAILED),
    ("release", JobState.WORKING, JobState.PENDING),
    ("requeue", JobState.FAILED, JobState.PENDING),
    ("discard", JobState.FAILED, JobState.DISCARDED),
    ("purge", JobState.PENDING, JobState.DISCARDED),
    ("cancel", JobState.PENDING, JobState.DISCARDED),
    ("cancel", JobState.WORKING, JobState.DISCARDED),
)


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The job returned, or a before_process hook skipped it, which is no failure."""

    skipped: bool = False


@dataclass(frozen=True, slots=True)
class Raised:
    """The job raised, or could not be run at all, or its process died under it."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The worker stopped the job before it ended; the job itself did nothing wrong."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A person cancelled the job, before it began or while it ran."""


Result = Succeeded | Raised | Interrupted | Cancelled


@dataclass(frozen=True, slots=True)
class Ack:
    """Done: forget it."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Store this copy among the failed jobs, and once that is confirmed forget the original."""

    message: Message
    #: Which queue of failed jobs.
    queue: str = FAILED_QUEUE


@dataclass(frozen=True, slots=True)
class Release:
    """Give it back to its queue, at its old place where the broker can."""


Settlement = Ack | Fail | Release


def settle(message: Message, result: Result, *, worker: str, failed_per_queue: bool = False) -> Settlement:
    """What the broker must do with a delivery whose run gave this result.

    `worker` is the tag of the slot that ran it; `failed_per_queue` keeps the failed jobs of
    every queue apart, in `failed:<queue>`.
    """
    match result:
        case Succeeded() | Cancelled():
            return Ack()
        case Raised(failure):
            queue = failed_queue(message.queue, per_queue=failed_per_queue)
            return Fail(fail(message, failure, worker=worker), queue)
        case Interrupted():
            return Release()


def fail(message: Message, failure: Failure, *, worker: str) -> Message:
    """The copy of the message that goes to `failed`: same id, body and headers, and the error's."""
    return fit(replace(message, failure=failure, worker=worker, retries=message.retries or 0))


def requeue(failed: Message, *, queue: str | None = None) -> Message:
    """The copy of a failed message that runs again, in another queue if one is named.

    Same id; `retries` goes up by one, the policy's own count starts again at 0, and the
    error headers are gone. So is the instant of expiry: whoever asks for it wants it run now.
    """
    return replace(
        failed,
        queue=queue or failed.queue,
        failure=None,
        worker=None,
        retries=(failed.retries or 0) + 1,
        policy_retries=0,
        expires_at=None,
    )
