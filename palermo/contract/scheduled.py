"""Scheduled jobs: the part of a broker that keeps jobs until they are due.

A job whose `run_at` is in the future waits outside its queue until then. On RabbitMQ one session is the leader and
publishes due jobs; another takes over when it ends. Only the leader changes a scheduled job. So if a job becomes due
and is cancelled at the same time, exactly one of the two happens. Jobs that wait for a retry are scheduled jobs too,
with the error of the previous attempt.
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
    """Conditions on scheduled jobs that a broker can evaluate; without conditions it matches every job.

    The inspector derives it from a JobFilter (palermo.views.filter), and evaluates the other conditions.
    """

    #: These ids; None for any.
    ids: frozenset[str] | None = None
    #: The queue and the job's wire name, matched as in `palermo.core.text.fits`.
    queue: str | None = None
    job: str | None = None
    #: Only retries, or only other jobs; None for both.
    retries: bool | None = None
    #: Only jobs due between two instants, both included, in Unix seconds: others need not even be read.
    due: tuple[float, float] | None = None

    @property
    def everything(self) -> bool:
        """Whether the filter has no condition."""
        return self == ScheduledFilter()

    def matches(self, message: Message) -> bool:
        """Whether this message meets the conditions."""
        return self.fits(message.id, message.queue, message.job, message.run_at or 0.0, message.failure is not None)

    def fits(self, id: str, queue: str, job: str, due: float, failed: bool) -> bool:
        """Whether a job with these properties meets the conditions; `failed` means that it waits for a retry."""
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


#: The actions on scheduled jobs. "run" moves them into their queues now; "give up" moves retries to the failed queue,
#: as if their last retry had failed.
CANCEL, RUN, MOVE, GIVE_UP = "cancel", "run", "move", "give up"


#: Gets the jobs that recurring jobs have published.
OnJobs = Callable[[Sequence[Message]], None]


def ignore_jobs(jobs: Sequence[Message]) -> None:
    """Ignore the jobs."""


class ScheduledJobs(Protocol):
    """The part of a broker that keeps jobs until they are due, and then publishes them."""

    async def run_scheduler(self, fired: OnJobs = ignore_jobs) -> None:
        """Take part in the leader election as long as the session lasts. The leader publishes jobs when they are due.

        The session leads if no other does; otherwise it stands by. `duties` lists its current duties as the leader.
        `fired` gets the jobs that recurring jobs have published when they were due. Returns when the session is lost
        or closed. The worker cancels this call when it stops.
        """

    @property
    def duties(self) -> tuple[Duty, ...]:
        """The duties in which this session is the leader. With "main" it publishes jobs when they are due.

        A broker without a separate leader for tenants has only "main".
        """

    async def scheduled(self, chosen: ScheduledFilter, *, offset: int = 0, limit: int = 100) -> ScheduledPage:
        """Some of the scheduled jobs, soonest first."""

    async def scheduled_progress(self) -> tuple[int, int] | None:
        """How many jobs the leader has read for the current call of `scheduled`, and how many it must read.

        None if it reads none, or if that is unknown.
        """

    async def alter_scheduled(
        self, chosen: ScheduledFilter, action: str, *, at: float | None = None, failed_per_queue: bool = False
    ) -> list[AlteredJob]:
        """Cancel these jobs, move them into their queues now, reschedule them, or give them up.

        Returns the jobs that were found.

        A missing job became due before or did not exist: nothing was done to it. `at` is the instant for "move", in
        Unix seconds; a past instant has the same effect as "run". `failed_per_queue` is for "give up": each queue
        has its own failed queue. "give up" ignores jobs that don't wait for a retry. Returns once all is stored. If
        interrupted, each job has been changed or not, or at most exists twice.
        """

    async def edit_scheduled(self, id: str, edit: JobEdit) -> list[AlteredJob]:
        """Change the scheduled job with this id, and run it at `edit.run_at`, which must be given.

        Returns the job as it was; nothing if it did not exist, or became due before. Returns once all is stored. If
        interrupted, the job has been changed or not, or at most exists twice.
        """


def filter_for(chosen: ScheduledFilter, action: str) -> ScheduledFilter:
    """The filter for the jobs that an action applies to: only retries can be given up."""
    return replace(chosen, retries=True) if action == GIVE_UP and chosen.retries is None else chosen
