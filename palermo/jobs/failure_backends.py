"""Failure back ends: functions of the user that get a report of each failed job."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from palermo.errors import OptionInvalid

if TYPE_CHECKING:
    from palermo.core.failure import Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureReport:
    """The report about a failed job that a failure back end gets."""

    id: str
    #: Its wire name; "" if the message named none.
    job: str
    queue: str
    #: The arguments for people, at most 100 characters and then "...".
    preview: str
    failure: "Failure"
    #: The tag of the slot that ran it.
    worker: str
    #: Which run this was, from 1.
    attempt: int = 1
    #: The exception. It has no traceback if the job's process ended: JobCrashed, JobTimeout or JobOutOfMemory.
    error: BaseException | None = field(default=None, repr=False, compare=False)


B = TypeVar("B", bound=Callable[[FailureReport], Any])

_backends: dict[tuple[str, str], Callable[[FailureReport], Any]] = {}


def failure_backend(function: B) -> B:
    """Register a function that gets a report of each failed job, besides the queue `failed`.

    It runs in the slot. An error that it raises is logged and changes nothing for the job. A reload
    of its module replaces it.
    """
    if not callable(function) or isinstance(function, type):
        raise OptionInvalid(f"{function!r} cannot be a failure back end: give a function that takes a FailureReport.")
    name = getattr(function, "__qualname__", "") or repr(function)
    _backends[getattr(function, "__module__", ""), name] = function
    return function


def failure_backends() -> tuple[Callable[[FailureReport], Any], ...]:
    """The registered failure back ends, in the order of registration."""
    return tuple(_backends.values())


def log_failure(report: FailureReport) -> None:
    """A ready failure back end: one line per failed job in the log `palermo.failures`.

    `palermo.failure_backend(palermo.hooks.log_failure)` turns it on.
    """
    import logging

    logging.getLogger("palermo.failures").error(
        "%s: %s id=%s job=%s queue=%s args=%r worker=%s",
        report.failure.exception_class,
        report.failure.message.partition("\n")[0],
        report.id,
        report.job,
        report.queue,
        report.preview,
        report.worker,
    )
