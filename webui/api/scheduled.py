"""The API of scheduled jobs and of retries: list them by due time, and change them."""

from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from palermo.contract import clock
from palermo.contract.row_types import AlteredRow, JobRow
from palermo.contract.scheduled import CANCEL, GIVE_UP, MOVE, RUN
from palermo.core import times
from palermo.errors import NotFound
from palermo.inspector.scheduled import Which
from palermo.jobs.redaction import masked_row
from palermo.webui import actions
from palermo.webui.api.rows import PROBLEM_RESPONSES, Chosen, Id, PageLimit, PageNumber, Rows, Text
from palermo.webui.filters import asked_filter, instant_of
from palermo.webui.site import Refused, Visit, Visiting
from palermo.webui.state import listings
from palermo.webui.state.scheduled_view import RETRY, scheduled_view
from palermo.webui.threads import Router

router = Router(prefix="/scheduled", tags=["scheduled"], responses=PROBLEM_RESPONSES)
retries_router = Router(prefix="/retries", tags=["retries"], responses=PROBLEM_RESPONSES)

Due = Annotated[str | None, Query(max_length=100, description="ISO 8601 with a time zone, or from now, as 90s or 2h.")]


class Moment(BaseModel):
    """The new time. Give one of at, delay and later."""

    model_config = ConfigDict(extra="forbid", strict=True)

    at: str | float | None = Field(default=None, description="ISO 8601 with a time zone, or Unix seconds.")
    delay: float | None = Field(default=None, description="Seconds from now.")
    later: float | None = Field(default=None, description="Seconds to add to each job's time.")


class ChosenForMove(Chosen, Moment):
    """The chosen scheduled jobs, and their new time."""


class AlteredRows(BaseModel):
    """The outcome for each job, including ids that were not found."""

    rows: list[AlteredRow]
    total: int


@router.get("", name="api_scheduled")
def scheduled(
    visit: Visiting,
    filter: Text = None,
    queue: Text = None,
    job: Text = None,
    retries: bool | None = None,
    due_from: Due = None,
    due_until: Due = None,
    page: PageNumber = 1,
    limit: PageLimit = 100,
) -> Rows[JobRow]:
    """Scheduled jobs, soonest first. A part of a name is enough; `=mail` is exactly `mail`.

    The state "retrying" means that a job has failed and waits for its retry. `retries` selects only retrying jobs,
    or only the others. The list may be as old as ten times the time that reading it takes. `filter` compares all
    jobs by their queue, job, due time and these two states, and the soonest 10,000 by anything else.
    """
    state = None if retries is None else "retrying" if retries else "scheduled"
    given = {"filter": filter, "queue": queue, "job": job, "due_from": due_from, "due_until": due_until}
    return _page(visit, page, limit, state=state, **given)


@router.post("/cancel", name="api_cancel_scheduled_many")
def cancel_many(visit: Visiting, chosen: Chosen) -> AlteredRows:
    """Cancel jobs: the jobs with these ids, or all that a filter matches ({} for all). Role: operator."""
    return _altered(visit, CANCEL, chosen.meant())


@router.post("/run", name="api_run_scheduled_many")
def run_many(visit: Visiting, chosen: Chosen) -> AlteredRows:
    """Enqueue jobs now: the jobs with these ids, or all that a filter matches ({} for all). Role: operator."""
    return _altered(visit, RUN, chosen.meant())


@router.post("/move", name="api_move_scheduled_many")
def move_many(visit: Visiting, chosen: ChosenForMove) -> AlteredRows:
    """Reschedule jobs: the jobs with these ids, or all that a filter matches ({} for all). Role: operator.

    A time in the past means now, and the state is then "enqueued".
    """
    return _altered(visit, MOVE, chosen.meant(), **_moment(chosen))


@router.get("/{id:palermo}", name="api_scheduled_job")
def scheduled_job(visit: Visiting, id: Id) -> JobRow:
    """One scheduled job."""
    row = scheduled_view(visit.site).find(id)
    if row is None:
        raise NotFound(f"job {id[:80]!r} is not scheduled. It may have started already, or never existed.")
    return masked_row(row, visit.site.hidden)


@router.post("/{id:palermo}/cancel", name="api_cancel_scheduled")
def cancel(visit: Visiting, id: Id) -> AlteredRow:
    """Cancel one scheduled job: it does not run. Role: operator."""
    return _altered(visit, CANCEL, id).rows[0]


@router.post("/{id:palermo}/run", name="api_run_scheduled")
def run(visit: Visiting, id: Id) -> AlteredRow:
    """Enqueue one scheduled job now. Role: operator."""
    return _altered(visit, RUN, id).rows[0]


@router.post("/{id:palermo}/move", name="api_move_scheduled")
def move(visit: Visiting, id: Id, moment: Moment) -> AlteredRow:
    """Reschedule one job. A time in the past means now. Role: operator."""
    return _altered(visit, MOVE, id, **_moment(moment)).rows[0]


@retries_router.get("", name="api_retries")
def retries(
    visit: Visiting,
    filter: Text = None,
    queue: Text = None,
    job: Text = None,
    due_from: Due = None,
    due_until: Due = None,
    page: PageNumber = 1,
    limit: PageLimit = 100,
) -> Rows[JobRow]:
    """Failed jobs that wait for a retry, soonest first.

    `error` is the last error, `attempts` are the errors of all runs, `retries` is the number of retries so far.
    """
    given = {"filter": filter, "queue": queue, "job": job, "due_from": due_from, "due_until": due_until}
    return _page(visit, page, limit, state="retrying", **given)


@retries_router.post("/run", name="api_run_retries_many")
def retry_many(visit: Visiting, chosen: Chosen) -> AlteredRows:
    """Retry jobs now: the jobs with these ids, or all that a filter matches ({} for all). Role: operator."""
    return _altered(visit, RETRY, chosen.meant())


@retries_router.post("/give-up", name="api_give_up_many")
def give_up_many(visit: Visiting, chosen: Chosen) -> AlteredRows:
    """Give jobs up: the jobs with these ids, or all that a filter matches ({} for all). Role: operator.

    They become failed jobs, with all their attempts.
    """
    return _altered(visit, GIVE_UP, chosen.meant())


@retries_router.post("/{id:palermo}/run", name="api_run_retry")
def retry(visit: Visiting, id: Id) -> AlteredRow:
    """Retry one job now. Role: operator."""
    return _altered(visit, RETRY, id).rows[0]


@retries_router.post("/{id:palermo}/give-up", name="api_give_up")
def give_up(visit: Visiting, id: Id) -> AlteredRow:
    """Give one job up: it becomes a failed job with all its attempts, as if no retry were left. Role: operator."""
    return _altered(visit, GIVE_UP, id).rows[0]


def _page(visit: Visit, page: int, limit: int, **conditions: str | None) -> Rows[JobRow]:
    listing = listings.scheduled(visit, asked_filter(conditions), page=page, limit=limit)
    return Rows[JobRow].of(listing.rows, total=listing.total, page=page, limit=limit)


def _altered(
    visit: Visit, action: str, which: Which, *, at: float | None = None, later: float | None = None
) -> AlteredRows:
    done = actions.alter_scheduled(visit, action, which, at=at, later=later)
    if not done.over:
        raise Refused(
            503, f"the operation is still running; GET /api/operations/{done.id} shows its progress and outcome."
        )
    return AlteredRows(rows=list(done.rows), total=len(done.rows))


def _moment(moment: Moment) -> dict[str, float]:
    """The time in a body, in Unix seconds, or the seconds by which to postpone each job, by its name here.

    Raises Refused (422), OptionInvalid.
    """
    if [moment.at, moment.delay, moment.later].count(None) != 2:
        raise Refused(422, 'give the time: {"at": "2026-12-01T09:00Z"}, {"delay": 300} or {"later": 3600}.')
    if moment.later is not None:
        return {"later": times.delay_seconds(moment.later)}
    if moment.delay is not None:
        return {"at": times.unix_seconds(clock.now() + times.delay_seconds(moment.delay))}
    assert moment.at is not None
    return {"at": instant_of(moment.at, "at")}
