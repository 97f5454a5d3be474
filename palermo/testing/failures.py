"""The failures of jobs that ran in a test, with their exceptions."""

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType

from msgspec import Struct

from palermo.core.lifecycle import Raised, Result, Retrying
from palermo.core.message import Message
from palermo.errors import JobFailed
from palermo.worker.child.executor import OWN_FILES


class JobFailure(Struct, frozen=True, kw_only=True):
    """One failed run of a job."""

    id: str
    #: Its wire name.
    job: str
    queue: str
    #: The number of the run, starting at 1.
    attempt: int
    #: The exception that the job raised, with its traceback.
    error: BaseException
    #: Seconds until the retry; None if the job is in the failed queue.
    retry_in: float | None

    @property
    def will_retry(self) -> bool:
        """Whether the job will be retried."""
        return self.retry_in is not None


def failures_of(
    messages: Sequence[Message], results: Iterable[Result], errors: Mapping[str, BaseException]
) -> list[JobFailure]:
    """Return the failures among these results. `errors` contains the exceptions by job id."""
    found: list[JobFailure] = []
    for message, result in zip(messages, results, strict=True):
        error = errors.get(message.id)
        match result:
            case Raised():
                retry_in = None
            case Retrying(failure, delay) if failure is not None:
                retry_in = delay
            case _:
                continue
        if error is not None:
            found.append(_failure(message, error, retry_in))
    return found


def _failure(message: Message, error: BaseException, retry_in: float | None) -> JobFailure:
    then = "it is in the failed queue" if retry_in is None else f"it will be retried in {retry_in:.0f} s"
    note = f"Raised by job {message.job} {message.id} in run {message.attempt}; {then}."
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
    return JobFailure(
        id=message.id,
        job=message.job,
        queue=message.queue,
        attempt=message.attempt,
        error=error.with_traceback(_without_own_frames(error.__traceback__)),
        retry_in=retry_in,
    )


def failure_without_run(message: Message) -> JobFailure:
    """Return the failure of a job that the worker failed without running it."""
    failure = message.failure
    kind, text = ("", "") if failure is None else (failure.exception_class, failure.message)
    error = JobFailed(f"job {message.id} didn't run: {kind}: {text}", state="failed", error=kind, message=text)
    return JobFailure(
        id=message.id, job=message.job, queue=message.queue, attempt=message.attempt, error=error, retry_in=None
    )


def raise_all(failures: Sequence[JobFailure]) -> None:
    """Raise the error of a single failure, or a group of several."""
    __tracebackhide__ = True
    errors = list({id(one.error): one.error for one in failures}.values())
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise BaseExceptionGroup(f"{len(errors)} jobs failed", errors)


def _without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Remove Palermo's frames from the start of a traceback, unless it has no others."""
    first = trace
    while first is not None and first.tb_frame.f_code.co_filename in OWN_FILES:
        first = first.tb_next
    return first or trace
