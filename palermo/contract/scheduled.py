"""Scheduled jobs: the part of a broker that keeps jobs until they are due.

A job whose `run_at` is in the future waits apart from its queue until then. On RabbitMQ one session is the leader and
keeps the time, and others take over when it ends. The leader alone decides what becomes of a scheduled job. So if a job
comes due and is cancelled at the same time, exactly one of the two happens.
Jobs that wait to be tried again are scheduled jobs too: they bear the error of the try before.
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
    """The conditions on scheduled jobs that a broker compares by itself; without conditions it matches every job.

    The inspector makes it of a JobFilter (palermo.views.filter), and compares the other conditions.
    """

    #: These ids; None for any.
    ids: frozenset[str] | None = None
    #: The queue and the job's wire name, matched as `palermo.core.text.fits` says.
    queue: str | None = None
    job: str | None = None
    #: Only jobs that wait to be tried again, or only the others; None for both.
    retries: bool | None = None
    #: Only jobs due from one instant to another, both included, in Unix seconds: others need not even be read.
    due: tuple[float, float] | None = None

    @property
    def everything(self) -> bool:
        """Whether the filter has no condition."""
        return self == ScheduledFilter()

    def matches(self, message: Message) -> bool:
        """Whether this message meets the conditions."""
        return self.fits(message.id, message.queue, message.job, message.run_at or 0.0, message.failure is not None)

    def fits(self, id: str, queue: str, job: str, due: float, failed: bool) -> bool:
        """Whether a job of which this is known meets the conditions; `failed` says that it waits to be tried again."""
        return (
            (self.ids is None or id in self.ids)
            and (self.queue is None or fits(queue, self.queue))
            and (self.job is None or fits(job, self.job))
            and (self.retries is None or self.retries is failed)
            and (self.due is None or self.due[0] <= due <= self.due[1])
        )


class ScheduledPage(Struct, frozen=True, kw_only=True):
    """Jobs that are due later, in the order of their instants."""

    messages: tuple[Message, ...]
    #: How many jobs meet the conditions in all.
    total: int
    #: The ids of the jobs that somebody cancelled: they are dropped when they are due.
    cancelled: frozenset[str] = frozenset()


class AlteredJob(Struct, frozen=True, kw_only=True):
    """A scheduled job that was cancelled, put into its queue or among the failed, or given another instant."""

    id: str
    job: str
    queue: str
    #: When it was due before, in Unix seconds.
    run_at: float


#: The actions on scheduled jobs; "run" puts them into their queues now, "give up" puts those that wait to be
#: tried again among the failed, as if their last retry had been the last.
CANCEL, RUN, MOVE, GIVE_UP = "cancel", "run", "move", "give up"


#: Gets the jobs that recurring jobs have published.
OnJobs = Callable[[Sequence[Message]], None]


def ignore_jobs(jobs: Sequence[Message]) -> None:
    """Do nothing with the jobs."""


class ScheduledJobs(Protocol):
    """The part of a broker that keeps jobs until they are due, and publishes them then."""

    async def run_scheduler(self, fired: OnJobs = ignore_jobs) -> None:
        """Take part in the leader election as long as the session lasts. The leader publishes jobs when they are due.

        The session leads if no other does, and else stands by; `duties` says in what it leads now.
        `fired` gets the jobs that recurring jobs have published when their time came.
        Returns when the session is lost or closed. The worker cancels this call when it stops.
        """

    @property
    def duties(self) -> tuple[Duty, ...]:
        """The duties in which this session is the leader. With "main" it publishes jobs when they are due.

        A broker without a leader in tenants has "main" alone.
        """

    async def scheduled(self, chosen: ScheduledFilter, *, offset: int = 0, limit: int = 100) -> ScheduledPage:
        """Some of the jobs that are due later, soonest first."""

    async def scheduled_progress(self) -> tuple[int, int] | None:
        """How many jobs the leader has read for the current call of `scheduled`, and how many it has to read.

        None if it reads none, or if that is unknown.
        """

    async def alter_scheduled(
        self, chosen: ScheduledFilter, action: str, *, at: float | None = None, failed_per_queue: bool = False
    ) -> list[AlteredJob]:
        """Cancel these jobs, put them into their queues now, have them run at another instant, or give them up.

        Returns the jobs that were there.

        A job that is not among them has come due before, or was not there: nothing was done to it.
        `at` is the instant for "move", in Unix seconds; one that has passed is the same as "run". `failed_per_queue` is
        for "give up": the failed jobs of every queue lie apart. "give up" leaves alone jobs that do not wait to be
        tried again. Returns once all is stored. If interrupted, each job has been altered or not, or at most is
        there twice.
        """

    async def edit_scheduled(self, id: str, edit: JobEdit) -> list[AlteredJob]:
        """Change the scheduled job with this id, and have it run at `edit.run_at`, which must be given.

        Returns the job as it was; nothing if it was not there, or came due before. Returns once all is stored. If
        interrupted, the job has been changed or not, or at most is there twice.
        """


def filter_for(chosen: ScheduledFilter, action: str) -> ScheduledFilter:
    """The filter for the jobs that an action is for: only retries can be given up."""
    return replace(chosen, retries=True) if action == GIVE_UP and chosen.retries is None else chosen
