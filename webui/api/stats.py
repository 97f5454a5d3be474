"""The API of statistics: the counts of workers and clients, as the page of statistics and `palermo stats` show them."""

from pydantic import BaseModel, Field

from palermo.contract.row_types import Instant
from palermo.errors import NotFound
from palermo.history.series import Window
from palermo.history.statistics import report_row
from palermo.webui.api.rows import PROBLEM_RESPONSES, Text
from palermo.webui.filters import only_one
from palermo.webui.site import Visiting
from palermo.webui.state.journal_views import journal_views
from palermo.webui.state.live_state import live_state
from palermo.webui.threads import Router

router = Router(tags=["statistics"], responses=PROBLEM_RESPONSES)


class Times(BaseModel):
    """Durations in seconds. Percentiles are exact to 19 per cent, the rest is exact."""

    count: int
    min: float
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


class Counted(BaseModel):
    """The counts."""

    enqueued: int
    processed: int = Field(description="Runs that ended by themselves, as workers count them.")
    failed: int = Field(description="Of those, runs that failed, tried again or not.")
    succeeded: int
    retried: int = Field(description="Of the failed runs, those that are tried again.")
    snoozed: int
    released: int = Field(description="Runs that were given back because their worker ended.")
    discarded: int
    cancelled: int
    wait: Times | None = Field(description="From when a job could have been started to when it was.")
    run: Times | None = Field(description="From there to its end.")


class CountedQueue(Counted):
    """A queue and its counts."""

    name: str | None = Field(description="Null for those that are known only together.")
    pending: int
    in_progress: int
    workers: int
    paused: bool


class CountedJob(Counted):
    """A job and its counts."""

    name: str | None


class CountedWorker(Counted):
    """A worker and its counts."""

    id: str | None
    state: str | None = Field(description="Null for one that has ended.")
    started_at: Instant | None
    slots: int | None


class CountedThen(Counted):
    """The counts of a part of the window."""

    at: Instant = Field(description="Where it begins.")
    seconds: float = Field(description="How long it is.")


class Deployed(BaseModel):
    """A deploy: the first worker of another release started."""

    at: Instant
    release: str


class Stats(Counted):
    """The statistics of a window of time up to now."""

    since: Instant
    until: Instant
    known_since: Instant | None = Field(description="The oldest that the journal tells of in it; null for nothing.")
    rate: float | None = Field(description="Jobs processed a second.")
    lost: int = Field(description="Records that were left out while the journal was away.")
    queues: list[CountedQueue] = Field(description="The busiest first; empty if one queue, job or worker was named.")
    jobs: list[CountedJob]
    workers: list[CountedWorker]
    deploys: list[Deployed]
    series: list[CountedThen] = Field(description="The window in parts, oldest first.")


@router.get("/stats", name="api_stats")
def stats(
    visit: Visiting, window: Window = Window.DAY, queue: Text = None, job: Text = None, worker: Text = None
) -> Stats:
    """What was processed and failed in the last hour, day, week or month, and how long it took.

    The statistics are of everything, by queue, job and worker, or of the one that is named. Workers and clients count,
    and the journal keeps the counts. 409 if the setting `journal` is off.
    """
    chosen = only_one(queue=queue, job=job, worker=worker)
    known = journal_views(visit.site)
    known.check_ready()
    report = known.report(window, **chosen)
    if report is None:
        of = "".join(f" of {by} {name[:80]!r}" for by, name in chosen.items())
        raise NotFound(f"nothing has been counted{of} in the last 30 days.")
    if chosen:
        return Stats.model_validate(report_row(report, (), ()))
    snapshot = live_state(visit.site).snapshot()
    return Stats.model_validate(report_row(report, snapshot.queues, snapshot.workers))
