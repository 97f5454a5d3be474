"""Statistics: what workers and clients counted, as the page of statistics and `palermo stats` show it."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from palermo.errors import NotFound
from palermo.history.reporting import report_row
from palermo.history.windows import Window
from palermo.webui.api.rows import PROBLEM_RESPONSES, Instant
from palermo.webui.errors import Refused
from palermo.webui.journaled import journaled
from palermo.webui.site import Visiting
from palermo.webui.watching import watching

router = APIRouter(tags=["statistics"], responses=PROBLEM_RESPONSES)

Name = Annotated[str | None, Query(max_length=1_000)]


class Times(BaseModel):
    """How long something took, in seconds; percentiles are exact to 19 per cent, the rest is exact."""

    count: int
    min: float
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


class Counted(BaseModel):
    """What was counted."""

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
    """A queue, and what was counted of it."""

    name: str | None = Field(description="Null for those that are known only together.")
    pending: int
    in_progress: int
    workers: int
    paused: bool


class CountedJob(Counted):
    """A job, and what was counted of it."""

    name: str | None


class CountedWorker(Counted):
    """A worker, and what it counted."""

    id: str | None
    state: str | None = Field(description="Null for one that has ended.")
    started_at: Instant | None
    slots: int | None


class CountedThen(Counted):
    """What was counted in a part of the time."""

    at: Instant = Field(description="Where it begins.")
    seconds: float = Field(description="How long it is.")


class Deployed(BaseModel):
    """The first worker of another release came up."""

    at: Instant
    release: str


class Stats(Counted):
    """A window of time up to now."""

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
    visit: Visiting, window: Window = Window.DAY, queue: Name = None, job: Name = None, worker: Name = None
) -> Stats:
    """What was processed and failed in the last hour, day, week or month, and how long it took.

    Of everything, by queue, job and worker, or of the one that is named. Workers and clients count it, and the journal
    keeps it; 409 where the setting `journal` is off.
    """
    chosen = {by: name for by, name in (("queue", queue), ("job", job), ("worker", worker)) if name}
    if len(chosen) > 1:
        raise Refused(422, f"statistics are of one queue, job or worker, and not of {' and '.join(chosen)} at once.")
    known = journaled(visit.site)
    known.check_ready()
    report = known.report(window, **chosen)
    if report is None:
        [(by, name)] = chosen.items()
        raise NotFound(f"nothing has been counted of {by} {name[:80]!r} in the last 30 days.")
    if chosen:
        return Stats.model_validate(report_row(report, (), ()))
    snapshot = watching(visit.site).snapshot()
    return Stats.model_validate(report_row(report, snapshot.queues, snapshot.workers))
