"""Finding jobs by their ids: where a job is now."""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Protocol

from msgspec import Struct

from palermo.contract.worker_info import RunningJob, WorkerInfo
from palermo.core.lifecycle import JobState
from palermo.core.message import Message

#: The state of a waiting job that was cancelled. A worker that takes it drops it. The other states are JobState's.
CANCELLED = "cancelled"

#: The state of a job that is due later.
SCHEDULED = "scheduled"

#: Maximum number of jobs that `find` returns.
MOST_FOUND = 1_000

#: Number of jobs that a bounded search reads at the front and at the end of a queue.
DEPTH = 100


class JobLocation(Struct, frozen=True, kw_only=True):
    """The place of a job: scheduled, waiting, with a worker, or in a failed queue."""

    #: A JobState, "scheduled" or "cancelled"; "" if it was not found.
    state: str = ""
    #: The job's message, unless a worker reports the job. A body longer than MAX_SHOWN bytes may be cut.
    message: Message | None = None
    #: Only for a running job: its worker's report, and the worker's id.
    running: RunningJob | None = None
    worker: str | None = None
    #: Whether the worker doesn't answer: `running` is then from its last answer.
    silent: bool = False
    #: Places that could not be searched, as text for the user. Empty if the search was complete.
    unseen: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The job's id; "" if it was not found."""
        found = self.running or self.message
        return found.id if found is not None else ""

    @property
    def gone(self) -> bool:
        """Whether the job doesn't exist, according to a complete search."""
        return not self.state and not self.unseen

    @property
    def alive(self) -> bool:
        """Whether the job runs, or will run."""
        return bool(self.state) and self.state != JobState.FAILED


class FoundJobs(Struct, frozen=True, kw_only=True):
    """The jobs that were found: waiting ones first, then running ones, then failed ones."""

    jobs: tuple[JobLocation, ...] = ()
    #: As in JobLocation.
    unseen: tuple[str, ...] = ()


class FindsJobs(Protocol):
    """The part of a broker that finds jobs."""

    async def find(
        self, ids: Collection[str], *, queue: str = "", failed: bool = True, beginnings: bool = False
    ) -> FoundJobs:
        """Find the jobs with these ids, or with `beginnings` those whose ids start with one of these texts.

        The search is complete on SQLite and Redis. On RabbitMQ, which has no lookup by id, it is bounded, and `unseen`
        names the places that were left out. `queue` is where a job would wait, if known. Without `failed`, failed jobs
        are left out. A job that moves during the search may be missed. Changes nothing. Raises BrokerUnavailable,
        BrokerRefused.
        """


def is_wanted(ids: Collection[str], *, beginnings: bool) -> Callable[[str], bool]:
    """A predicate for the ids that match."""
    if beginnings:
        return lambda id: id.startswith(tuple(ids))
    return frozenset(ids).__contains__


def waiting_at(message: Message, *, scheduled: bool = False, cancelled: bool = False) -> JobLocation:
    """The location of a job in its queue, or of a scheduled job."""
    state = SCHEDULED if scheduled else JobState.PENDING
    if message.failure is not None:
        state = JobState.RETRYING
    return JobLocation(state=CANCELLED if cancelled else state, message=message)


def failed_at(message: Message) -> JobLocation:
    """The location of a failed job."""
    return JobLocation(state=JobState.FAILED, message=message, worker=message.worker)


def running_at(workers: Iterable[WorkerInfo], wanted: Callable[[str], bool]) -> Iterator[JobLocation]:
    """The locations of the jobs that workers report."""
    for worker in workers:
        for job in worker.jobs:
            if wanted(job.id):
                yield JobLocation(state=JobState.WORKING, running=job, worker=worker.id, silent=worker.is_silent)


def with_reports(found: Iterable[JobLocation], workers: Iterable[WorkerInfo]) -> tuple[JobLocation, ...]:
    """The same locations in order, with running jobs as their workers report them."""
    found = tuple(found)
    held = {place.id for place in found if place.state == JobState.WORKING}
    reports = {place.id: place for place in running_at(workers, held.__contains__)}
    order = (JobState.WORKING, JobState.FAILED)
    return tuple(
        reports.get(place.id, place) if place.state == JobState.WORKING else place
        for place in sorted(found, key=lambda place: order.index(place.state) + 1 if place.state in order else 0)
    )
