"""Scheduled jobs: the part of a broker that keeps jobs until they are due.

A job with a `run_at` in the future waits outside its queue. On RabbitMQ one session is the leader, which publishes due
jobs; another takes over when it ends. Only the leader changes scheduled jobs, so a job that is cancelled at its due
time either runs or is cancelled, never both. A job waiting for a retry is a scheduled job with the error of its last
run.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from palermo.core.election import Duty
from palermo.core.job_edit import JobEdit
from palermo.core.message import Message
from palermo.core.plain import Plain
from palermo.core.text import fits


class ScheduledFilter(Plain, frozen=True, kw_only=True):
    """Conditions on scheduled jobs that a broker can evaluate. Without conditions it matches every job.

    The inspector derives it from a JobFilter (palermo.views.filter), and evaluates the other conditions itself.
    """

    #: These ids; None for any.
    ids: frozenset[str] | None = None
    #: The queue and the job's wire name, matched as in `palermo.core.text.fits`.
    queue: str | None = None
    job: str | None = None
    #: True for retries only, False for other jobs only.
    retries: bool | None = None
    #: Bounds of the due time, both inclusive, in Unix seconds. A broker need not read the other jobs.
    due: tuple[float, float] | None = None

    @property
    def everything(self) -> bool:
        """Whether the filter has no condition."""
        return self == ScheduledFilter()

    def matches(self, message: Message) -> bool:
        """Whether this message meets the conditions."""
        return self.fits(message.id, message.queue, message.job, message.run_at or 0.0, message.failure is not None)

    def fits(self, id: str, queue: str, job: str, due: float, failed: bool) -> bool:
        """Whether a job with these properties meets the conditions; `failed` if it waits for a retry."""
        return (
            (self.ids is None or id in self.ids)
            and (self.queue is None or fits(queue, self.queue))
            and (self.job is None or fits(job, self.job))
            and (self.retries is None or self.retries is failed)
            and (self.due is None or self.due[0] <= due <= self.due[1])
        )


class ScheduledPage(Struct, frozen=True, kw_only=True):
    """Scheduled jobs, ordered by due time."""

    messages: tuple[Message, ...]
    #: Total number of jobs that meet the conditions.
    total: int
    #: The ids of cancelled jobs: they are dropped when they are due.
    cancelled: frozenset[str] = frozenset()


class AlteredJob(Struct, frozen=True, kw_only=True):
    """A scheduled job that was cancelled, enqueued, failed or rescheduled."""

    id: str
    job: str
    queue: str
    #: When it was due before, in Unix seconds.
    run_at: float


#: The actions on scheduled jobs. "run" moves them to their queues now; "give up" moves retries to the failed queue, as
#: if their last retry had failed.
CANCEL, RUN, MOVE, GIVE_UP = "cancel", "run", "move", "give up"


#: Receives the jobs that recurring jobs have published.
OnJobs = Callable[[Sequence[Message]], None]


def ignore_jobs(jobs: Sequence[Message]) -> None:
    """Ignore the jobs."""


class ScheduledJobs(Protocol):
    """The part of a broker that keeps jobs until they are due, and then publishes them."""

    async def run_scheduler(self, fired: OnJobs = ignore_jobs) -> None:
        """Take part in the leader election until the session is lost or closed.

        One session leads, and publishes jobs when they are due; the others stand by. `duties` has this session's
        current duties. `fired` receives the jobs that recurring jobs publish. A worker cancels this call when it stops.
        """

    @property
    def duties(self) -> tuple[Duty, ...]:
        """The duties in which this session is the leader. With "main" it publishes jobs when they are due.

        Only RabbitMQ also has "tenants".
        """

    async def scheduled(self, chosen: ScheduledFilter, *, offset: int = 0, limit: int = 100) -> ScheduledPage:
        """Some of the scheduled jobs, soonest first. Jobs that are due together are always in the same order."""

    async def scheduled_progress(self) -> tuple[int, int] | None:
        """How many jobs the leader has read for the current call of `scheduled`, and how many it must read.

        None if this is unknown, or if the leader isn't reading any.
        """

    async def alter_scheduled(
        self, chosen: ScheduledFilter, action: str, *, at: float | None = None, failed_per_queue: bool = False
    ) -> list[AlteredJob]:
        """Cancel, run now, reschedule or give up on these jobs; returns those that were found.

        A job that is not found was due before or never existed. `at` is the instant for "move", in Unix seconds; a past
        instant means "run". "give up" ignores jobs that aren't waiting for a retry. `failed_per_queue` says that each
        queue has its own failed queue. Returns once all is stored. If interrupted, each job was changed or not, or at
        most exists twice.
        """

    async def edit_scheduled(self, id: str, edit: JobEdit) -> list[AlteredJob]:
        """Change the scheduled job with this id, and run it at `edit.run_at`, which must be given.

        Returns the job as it was, or nothing if it was due before or never existed. Returns once all is stored. If
        interrupted, the job was changed or not, or at most exists twice.
        """


def filter_for(chosen: ScheduledFilter, action: str) -> ScheduledFilter:
    """The filter for the jobs to which an action applies: only retries can be given up."""
    return replace(chosen, retries=True) if action == GIVE_UP and chosen.retries is None else chosen
