"""The current job, as its own code sees it: its name and id, and the progress and log lines that it reports."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from palermo.core.message import NO_HEADERS, PARENT, Headers

T = TypeVar("T")


class ProgressReports(Protocol):
    """Takes what a job reports about itself, and never delays the job."""

    def progress(self, fraction: float | None, text: str) -> None:
        """The job has come so far."""

    def line(self, text: str) -> None:
        """Keep a line with the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentJob:
    """The job that this code runs in."""

    id: str
    queue: str
    #: Its wire name.
    job: str
    #: Which run this is, from 1.
    attempt: int
    #: The tag of the slot that runs it, `pid:<pid>@<host>/worker-<n>`.
    worker: str
    #: Unix seconds; None where the publisher did not say.
    created_at: int | None = None
    #: The topic of the event that it handles; "" where it handles none.
    topic: str = ""
    #: The tenant whose job it is; "" for none.
    tenant: str = ""
    #: The id of the job that enqueued it, or published its event, while that job ran; "" for none.
    parent: str = ""
    #: If the job takes batches, the ids of all jobs that this call is for, in their order; else empty.
    batch: tuple[str, ...] = ()
    #: The headers that it was enqueued with by `.options(headers=…)`, and the others of its message, such as those of a
    #: tracer.
    headers: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    _reports: ProgressReports | None = field(default=None, repr=False, compare=False)

    def progress(self, fraction: float | None, text: str = "") -> None:
        """Show how far the job is: a fraction from 0 to 1, or None if only the text says; text up to 200 characters.

        May be called as often as you like: at most ten a second go out, and always the last one. It does nothing in
        processes that the job forks, and where no worker runs the job. Raises TypeError if `fraction` is no number.
        """
        if fraction is not None:
            if isinstance(fraction, bool) or not isinstance(fraction, int | float) or fraction != fraction:
                raise TypeError(f"progress is {fraction!r}; give a number from 0 to 1, or None.")
            fraction = min(1.0, max(0.0, float(fraction)))
        if self._reports is not None:
            self._reports.progress(fraction, str(text))

    def log(self, text: object) -> None:
        """Keep a line with the job: cut to 1,000 characters, and the first 1,000 lines of a run. Never delays it."""
        if self._reports is not None:
            for line in str(text).splitlines() or ("",):
                self._reports.line(line)


#: The current job, or a function that makes it: few jobs ask for it, so it is made when one does.
_current: ContextVar[CurrentJob | Callable[[], CurrentJob] | None] = ContextVar("palermo.current_job", default=None)


def current_job() -> CurrentJob | None:
    """The job that this code runs in, if it does."""
    found = _current.get()
    if found is None or isinstance(found, CurrentJob):
        return found
    made = found()
    _current.set(made)
    return made


def parent_header() -> Headers:
    """The header, for jobs that are enqueued, that names the job in which this code runs, if it runs in one."""
    if _current.get() is None or (current := current_job()) is None:
        return NO_HEADERS
    return {PARENT: current.id}


def set_current_job(current: CurrentJob | Callable[[], CurrentJob]) -> None:
    """For workers: make this, or what this function returns, the current job for the rest of this context."""
    _current.set(current)


def track(items: Iterable[T], total: int | None = None, text: str = "") -> Iterator[T]:
    """The items, one after the other, while the current job's progress shows how many are done.

    `total` is how many there are, if `len(items)` does not say; without either only the number done is
    shown. `text` stands before it. Outside of a job the items are given as they are.
    """
    job = current_job()
    if total is None and isinstance(items, Sized):
        total = len(items)
    done = 0
    for item in items:
        if job is not None:
            job.progress(*_so_far(done, total, text))
        yield item
        done += 1
    if job is not None:
        job.progress(*_so_far(done, total or done, text))


def _so_far(done: int, total: int | None, text: str) -> tuple[float | None, str]:
    before = f"{text} " if text else ""
    if total is None:
        return None, f"{before}{done:,}"
    return (done / total if total else 1.0), f"{before}{done:,} of {total:,}"
