"""The currently running job: its name and id, and the progress and log lines that it reports."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from palermo.core.message import NO_HEADERS, PARENT, Headers
from palermo.errors import UsageError
from palermo.jobs.saved import SavedState

T = TypeVar("T")


class ProgressReports(Protocol):
    """Receives a job's reports without delaying the job."""

    def progress(self, fraction: float | None, text: str) -> None:
        """Report the job's progress."""

    def line(self, text: str) -> None:
        """Store a log line with the job."""

    def saved(self, text: str) -> None:
        """Store the job's saved state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentJob:
    """The currently running job."""

    id: str
    queue: str
    #: Its wire name.
    job: str
    #: The number of the run, starting at 1.
    attempt: int
    #: The name of its slot, `pid:<pid>@<host>/worker-<n>`.
    worker: str
    #: Unix seconds; None if the publisher didn't set it.
    created_at: int | None = None
    #: The topic of the event that it handles, or "".
    topic: str = ""
    #: Its tenant, or "".
    tenant: str = ""
    #: The id of the job during which it was enqueued or its event was published, or "".
    parent: str = ""
    #: For batch jobs, the ids of all jobs in this call, in their order; otherwise empty.
    batch: tuple[str, ...] = ()
    #: The headers given by `.options(headers=…)`, and other headers of its message, such as those of a tracer.
    headers: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    _reports: ProgressReports | None = field(default=None, repr=False, compare=False)
    _state: Callable[[], SavedState] | None = field(default=None, repr=False, compare=False)

    def progress(self, fraction: float | None, text: str = "") -> None:
        """Report the job's progress: a fraction from 0 to 1, or None, and a text of up to 200 characters.

        You may call it as often as you like. At most ten reports a second are sent, including the last one. It has no
        effect in processes that the job forks, or outside a worker. Raises TypeError if `fraction` isn't a number.
        """
        if fraction is not None:
            if isinstance(fraction, bool) or not isinstance(fraction, int | float) or fraction != fraction:
                raise TypeError(f"progress is {fraction!r}; give a number from 0 to 1, or None.")
            fraction = min(1.0, max(0.0, float(fraction)))
        if self._reports is not None:
            self._reports.progress(fraction, str(text))

    @property
    def saved(self) -> Any:
        """The last saved value of this run or an earlier one; None if no value was saved. Raises DecodeError."""
        return saved_state(self).value

    def save(self, value: Any) -> None:
        """Save a value for the job's next run: JSON, or a type with a JSON tag, of at most 1 kB.

        It is kept when the worker stops, and when the job is retried or requeued. If the worker is killed, the
        values of the last second may be lost. It is deleted when the job is done. Has no effect in processes that
        the job forks. Raises EncodeError, and UsageError in a batch job.
        """
        saved_state(self).save(value)

    def log(self, text: object) -> None:
        """Store a log line with the job, without delaying it. Limits: 1,000 lines per run, 1,000 characters per
        line."""
        if self._reports is not None:
            for line in str(text).splitlines() or ("",):
                self._reports.line(line)


def saved_state(job: CurrentJob) -> SavedState:
    """The saved state of a job. Raises DecodeError, and UsageError for a batch job."""
    if job._state is None:
        raise UsageError(
            f"job {job.job} takes batches, so it can't save anything for its next run, because each item runs again as"
            " a separate job. Mark items with batch.done(index) instead."
        )
    return job._state()


#: The current job, or a function that creates it. Few jobs use it, so it is created on demand.
_current: ContextVar[CurrentJob | Callable[[], CurrentJob] | None] = ContextVar("palermo.current_job", default=None)


def current_job() -> CurrentJob | None:
    """The currently running job; None outside a job."""
    found = _current.get()
    if found is None or isinstance(found, CurrentJob):
        return found
    made = found()
    _current.set(made)
    return made


def parent_header() -> Headers:
    """Return the parent header for jobs that the current job enqueues; empty outside a job."""
    if _current.get() is None or (current := current_job()) is None:
        return NO_HEADERS
    return {PARENT: current.id}


def set_current_job(current: CurrentJob | Callable[[], CurrentJob]) -> None:
    """Set the current job, or a function that creates it, in this context. Called by workers."""
    _current.set(current)


def track(items: Iterable[T], total: int | None = None, text: str = "") -> Iterator[T]:
    """Iterate over the items and report the number of finished items as the current job's progress.

    `total` is the number of items, if `len(items)` doesn't work. Without either, only the number of finished items
    is shown, after `text`. Outside a job, it only iterates.
    """
    job = current_job()
    if total is None and isinstance(items, Sized):
        total = len(items)
    done = 0
    for item in items:
        if job is not None:
            job.progress(*so_far(done, total, text))
        yield item
        done += 1
    if job is not None:
        job.progress(*so_far(done, total or done, text))


def so_far(done: int, total: int | None, text: str) -> tuple[float | None, str]:
    """Return the progress of a loop as arguments for `progress`."""
    before = f"{text} " if text else ""
    if total is None:
        return None, f"{before}{done:,}"
    return (done / total if total else 1.0), f"{before}{done:,} of {total:,}"
