"""The life of a job: its states, and the settlement for each result.

Only the decision to retry a job that raised is elsewhere (retry_policy.py). This module is pure: no clock, no broker,
no log. The table in docs/reference/lifecycle.md is generated from TRANSITIONS.
"""

import base64
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from palermo.core.failure import Attempt, Failure, append_attempt
from palermo.core.message import JSON, Message, fit_headers
from palermo.core.times import MAX_DELAY
from palermo.core.topology import FAILED_QUEUE, failed_queue

#: Upper limit of the `max_result` setting in bytes: a batch of a few such values still fits into one message.
MAX_RESULT = 512 * 1024


class StoredResult(Struct, frozen=True):
    """A job's return value as stored in the journal: serialized, and within a size limit."""

    #: Media type of the serializer.
    content_type: str
    body: bytes

    def to_plain(self) -> dict[str, str]:
        """The value as JSON values, for the field `result` of a record."""
        if self.content_type == JSON:
            return {"content_type": JSON, "text": self.body.decode(errors="replace")}
        return {"content_type": self.content_type, "base64": base64.b64encode(self.body).decode()}

    @classmethod
    def from_plain(cls, plain: object) -> "StoredResult | None":
        """The inverse of to_plain; None for anything else."""
        match plain:
            case {"content_type": str(content_type), "text": str(text)}:
                return cls(content_type, text.encode(errors="replace"))
            case {"content_type": str(content_type), "base64": str(text)}:
                try:
                    return cls(content_type, base64.b64decode(text, validate=True))
                except ValueError:
                    return None
        return None


def why_not_stored(value: StoredResult, limit: int) -> str:
    """The reason, for display, why a value isn't stored; "" if it is. `limit` is in bytes."""
    size = len(value.body)
    if size <= limit:
        return ""
    return (
        f"the result has {size:,} bytes, but max_result allows {limit:,}."
        " Store the data elsewhere and return a reference to it, or raise the limit."
    )


def result_of_record(record: Mapping[str, Any]) -> StoredResult | None:
    """The value in a record of kind `succeeded`."""
    return StoredResult.from_plain(record.get("result"))


class JobState(StrEnum):
    """The states of a job."""

    PENDING = "pending"  #: waits in its queue
    WORKING = "working"  #: a worker's slot runs it
    RETRYING = "retrying"  #: has failed, and waits for its automatic retry
    FAILED = "failed"  #: is in `failed` until an operator requeues or discards it
    DONE = "done"  #: has finished, and is no longer on the broker
    DISCARDED = "discarded"  #: was removed unfinished, by an operator, its own code or its policy


#: Every transition: the event, the state before, the state after.
TRANSITIONS: tuple[tuple[str, JobState | None, JobState], ...] = (
    ("enqueue", None, JobState.PENDING),
    ("take", JobState.PENDING, JobState.WORKING),
    ("succeed", JobState.WORKING, JobState.DONE),
    ("raise", JobState.WORKING, JobState.FAILED),
    ("crash", JobState.WORKING, JobState.FAILED),
    ("retry", JobState.WORKING, JobState.RETRYING),
    ("snooze", JobState.WORKING, JobState.PENDING),
    ("drop", JobState.WORKING, JobState.DISCARDED),
    ("release", JobState.WORKING, JobState.PENDING),
    ("take", JobState.RETRYING, JobState.WORKING),
    ("requeue", JobState.FAILED, JobState.PENDING),
    ("give up", JobState.RETRYING, JobState.FAILED),
    ("discard", JobState.FAILED, JobState.DISCARDED),
    ("purge", JobState.PENDING, JobState.DISCARDED),
    ("purge", JobState.RETRYING, JobState.DISCARDED),
    ("cancel", JobState.PENDING, JobState.DISCARDED),
    ("cancel", JobState.RETRYING, JobState.DISCARDED),
    ("cancel", JobState.WORKING, JobState.DISCARDED),
)


class Succeeded(Struct, frozen=True, tag_field="state", tag="done", omit_defaults=True):
    """The job returned. Also a job that a before_process hook skipped, which is no failure."""

    skipped: bool = False
    #: The returned value, if the job stores its result.
    value: StoredResult | None = None
    #: Why the value is not stored although the job stores its result; "" if it is stored or the job doesn't store
    #: results.
    refused: str = ""
    #: For a workflow step: its output for later steps, and the steps that it adds, packed by core/workflow.py.
    output: StoredResult | None = None
    adds: bytes = b""


class Raised(Struct, frozen=True, tag_field="state", tag="failed"):
    """The job raised, could not be run, or its process died. It doesn't run again automatically."""

    failure: Failure


class Retrying(Struct, frozen=True, tag_field="state", tag="retrying"):
    """The job should run again after `delay` seconds."""

    #: The reason; None for a job that snoozes, which doesn't count against its retries.
    failure: Failure | None
    delay: Annotated[float, Meta(ge=0, le=MAX_DELAY)]


class Dropped(Struct, frozen=True, tag_field="state", tag="discarded"):
    """The job is discarded: by its own request, or because its policy says so for its error."""

    reason: str


class Interrupted(Struct, frozen=True, tag_field="state", tag="interrupted"):
    """The worker stopped the job before it ended, for reasons unrelated to the job."""


class Cancelled(Struct, frozen=True, tag_field="state", tag="cancelled"):
    """An operator cancelled the job, before or during its run."""


#: One instance of each is enough: they have no fields.
INTERRUPTED, CANCELLED, SUCCEEDED = Interrupted(), Cancelled(), Succeeded()

Result = Succeeded | Raised | Retrying | Dropped | Interrupted | Cancelled


class BatchResult(Struct, frozen=True, tag_field="state", tag="batch"):
    """The result of each job of a batch, in the batch's order."""

    results: tuple[Result, ...]


#: The result of a run of one job, or of a batch.
RunResult = Result | BatchResult


def results_of_each(result: RunResult, count: int) -> tuple[Result, ...]:
    """The results of `count` jobs that ran together. A single result applies to each of them."""
    if isinstance(result, BatchResult):
        return (*result.results, *(Interrupted() for _ in range(count)))[:count]
    return (result,) * count


class Ack(Struct, frozen=True):
    """Delete the message."""

    #: Whether the job was done, rather than cancelled or dropped.
    done: bool = True
    #: Whether an operator cancelled it; only if it wasn't done.
    cancelled: bool = False
    #: As in Succeeded.
    output: StoredResult | None = None
    adds: bytes = b""


class Fail(Struct, frozen=True):
    """Store this copy in the failed queue; after the confirm, delete the original."""

    message: Message
    #: The failed queue for it.
    queue: str = FAILED_QUEUE


class Release(Struct, frozen=True):
    """Return the message to its queue, at its old position if the broker supports that."""


class Reschedule(Struct, frozen=True):
    """Store this copy as an enqueued job with its due time; after the confirm, delete the original."""

    message: Message


Settlement = Ack | Fail | Reschedule | Release


def settle(
    message: Message,
    result: Result,
    *,
    worker: str,
    now: float,
    failed_per_queue: bool = False,
    saved: str | None = None,
) -> Settlement:
    """The settlement of a delivery whose run had this result.

    `worker` is the tag of the slot that ran it, `now` the Unix time. `saved` is the data that the run saved, or None.
    With `failed_per_queue`, the failed queue is `failed:<queue>`.
    """
    if saved is not None:
        message = replace(message, saved=saved)
    match result:
        case Succeeded():
            return Ack(output=result.output, adds=result.adds)
        case Cancelled():
            return Ack(done=False, cancelled=True)
        case Dropped():
            return Ack(done=False)
        case Retrying(failure, delay):
            if failure is None:
                return Reschedule(replace(message, run_at=now + delay))
            return Reschedule(retry(message, failure, worker=worker, now=now, delay=delay))
        case Raised(failure):
            queue = failed_queue(message.queue, per_queue=failed_per_queue)
            return Fail(fail(message, failure, worker=worker), queue)
        case Interrupted():
            # Only a copy can hold the data that the run has saved.
            return Release() if saved is None else Reschedule(message)


def without_value(result: Result) -> Result:
    """The result without the job's return value."""
    if isinstance(result, Succeeded) and (result.value is not None or result.refused):
        return replace(result, value=None, refused="")
    return result


def without_step(result: Result) -> Result:
    """The result without the workflow data that is only for the broker."""
    if isinstance(result, Succeeded) and (result.output is not None or result.adds):
        return replace(result, output=None, adds=b"")
    return result


def fail(message: Message, failure: Failure, *, worker: str) -> Message:
    """The copy of the message for `failed`: same id, body and headers, plus the error's headers."""
    return fit_headers(_failed(message, failure, worker=worker, retries=message.retries or 0, run_at=None))


def retry(message: Message, failure: Failure, *, worker: str, now: float, delay: float) -> Message:
    """The copy of the message that is retried automatically after `delay` seconds, with the error for display."""
    copy = _failed(message, failure, worker=worker, retries=(message.retries or 0) + 1, run_at=now + delay)
    policy_retries = (message.policy_retries or 0) + 1
    return fit_headers(replace(copy, policy_retries=policy_retries, retrying_since=message.retrying_since or now))


def _failed(message: Message, failure: Failure, *, worker: str, retries: int, run_at: float | None) -> Message:
    return replace(
        message,
        failure=failure,
        attempts=_with_latest_error(message, message.retries or 0),
        worker=worker,
        retries=retries,
        run_at=run_at,
    )


def requeue(failed: Message, *, queue: str | None = None) -> Message:
    """The copy of a failed message that runs again, by default in its own queue.

    It has the same id. `retries` goes up by one, the policy's own count restarts at 0, and the error is appended to the
    earlier ones. The expiry is removed, because an operator who requeues a job wants it to run now.
    """
    return replace(
        failed,
        queue=queue or failed.queue,
        failure=None,
        attempts=_with_latest_error(failed, (failed.retries or 0) + 1),
        worker=None,
        retries=(failed.retries or 0) + 1,
        policy_retries=0,
        retrying_since=None,
        expires_at=None,
        run_at=None,
        queued_at=None,
    )


def give_up(retrying: Message) -> Message:
    """The copy of a message waiting for its retry that goes to `failed` instead."""
    policy_retries = retrying.policy_retries
    return replace(
        retrying,
        retries=max(0, (retrying.retries or 0) - 1),
        policy_retries=None if policy_retries is None else max(0, policy_retries - 1),
        run_at=None,
    )


def attempts(message: Message, state: JobState) -> tuple[Attempt, ...]:
    """The known failed attempts of a job in this state, oldest first."""
    return _with_latest_error(message, (message.retries or 0) + (1 if state is JobState.FAILED else 0))


def _with_latest_error(message: Message, number: int) -> tuple[Attempt, ...]:
    """The earlier errors of a message, and its latest one under this number."""
    if message.failure is None:
        return message.attempts
    return append_attempt(message.attempts, Attempt.of(message.failure, number))
