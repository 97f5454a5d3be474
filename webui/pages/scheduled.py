"""The pages of scheduled jobs and of retries.

Further pages change these jobs: they show the number of chosen jobs, ask for confirmation, act, and show the outcome.
"""

from collections.abc import Mapping
from typing import Annotated

from fastapi import Depends, Form, Query
from msgspec import Struct
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from palermo.contract import clock
from palermo.contract.row_types import AlteredRow, JobRow
from palermo.contract.rows import Listing
from palermo.contract.scheduled import CANCEL, GIVE_UP, MOVE, RUN
from palermo.core import times
from palermo.core.text import count
from palermo.errors import NotFound
from palermo.inspector.scheduled import GONE, Which
from palermo.jobs.redaction import masked_row
from palermo.views.filter import JobFilter
from palermo.webui import actions, tuning
from palermo.webui.api.rows import Chosen, Id, Rows
from palermo.webui.failed.index import FACETS
from palermo.webui.failed.operations import Operation
from palermo.webui.filters import (
    LISTED,
    ApiPage,
    Condition,
    ListFilter,
    PageNumber,
    Paging,
    asked_filter,
    instant_of,
    known_names,
    list_filter,
    state_filter,
)
from palermo.webui.pages.choice import NAMES, Choosing, check_act, list_query
from palermo.webui.pages.failures import check_typed
from palermo.webui.pages.forms import NO_PROBLEMS, Problems, ShownForm, TimeFields
from palermo.webui.pages.job_form import Time
from palermo.webui.render.facets import facets_of_rows
from palermo.webui.render.rendering import listed, page, path, redirect
from palermo.webui.site import Refused, Visit, Visiting
from palermo.webui.state import listings
from palermo.webui.state.live_state import live_state
from palermo.webui.state.scheduled_view import RETRY, StillReading, scheduled_view
from palermo.webui.threads import Router

router = Router()


_WHAT = "an action of this page"

_CHOICE = known_names(*NAMES, *LISTED, "page")

#: The outcome of each action, in a word or two.
_DONE = {CANCEL: "Cancelled", RUN: "Enqueued", MOVE: "Moved", RETRY: "Enqueued", GIVE_UP: "Gave up"}

Texts = Annotated[list[str] | None, Form()]
Act = Annotated[str, Form(max_length=20)]


class JobList(Struct, frozen=True):
    """One of the two pages."""

    #: Its route's name, also sent as `of` by its stream.
    name: str
    state: str
    actions: tuple[str, ...]
    facets: tuple[str, ...]


SCHEDULED = JobList("scheduled", "scheduled", (RUN, MOVE, CANCEL), ("job", "queue", "tenant"))
RETRIES = JobList("retries", "retrying", (RETRY, MOVE, GIVE_UP, CANCEL), FACETS)
JOB_LISTS = {each.name: each for each in (SCHEDULED, RETRIES)}


def asked_jobs(job_list: JobList, given: Mapping[str, str]) -> ListFilter[JobFilter]:
    """Return the filter in a page's URL, with the state of its jobs. Raises Refused (422), OptionInvalid."""
    asked = state_filter(given)
    # Round to minutes, so that a list starting now stays the same for a minute and isn't read again for each request.
    first, last = (None if at is None else at // 60 * 60 for at in (asked.filter.due_from, asked.filter.due_until))
    return replace(asked, filter=replace(asked.filter, state=job_list.state, due_from=first, due_until=last))


def _listed(request: Request) -> JobList:
    """Return the page of a route, which is the last word of the route's name."""
    return JOB_LISTS[request.scope["route"].name.rpartition("_")[2]]


Listed = Annotated[JobList, Depends(_listed)]


@router.get("/scheduled", name="scheduled", dependencies=[known_names(*LISTED)])
@router.get("/retries", name="retries", dependencies=[known_names(*LISTED)])
def jobs(request: Request, visit: Visiting, job_list: Listed, number: PageNumber = 1) -> Response:
    """Show scheduled jobs or retries, soonest first."""
    wanted = asked_jobs(job_list, request.query_params)
    paging, reading, progress = Paging(number), False, None
    try:
        listing = listings.scheduled(visit, wanted.filter, paging, soon=True)
    except StillReading:
        listing, reading, progress = Listing([], None), True, scheduled_view(visit.site).progress()
    return page(
        request,
        f"{job_list.name}.html",
        job_list=job_list,
        watched={"of": job_list.name, "filter": wanted.text, "page": number},
        asked_for=wanted,
        query=wanted.query,
        facets=facets_of_rows(wanted, listing.rows, job_list.facets),
        names=sorted(
            {row["name"] for row in live_state(visit.site).snapshot(5.0).queues}
            | {row["queue"] for row in listing.rows}
        ),
        reading=reading,
        progress=progress,
        **listed(listing, paging, wanted.query),
    )


# -- cancel, run, move and give up


@router.api_route("/scheduled/confirm", methods=["GET", "POST"], name="confirm_scheduled", dependencies=[_CHOICE])
@router.api_route("/retries/confirm", methods=["GET", "POST"], name="confirm_retries", dependencies=[_CHOICE])
def confirm(request: Request, visit: Visiting, job_list: Listed, choice: Choosing) -> Response:
    """Show the number of chosen jobs, and ask for confirmation."""
    check_act(choice.act, job_list.actions, _WHAT)
    wanted, number = asked_jobs(job_list, request.query_params), len(choice.ids)
    if choice.every:
        number = scheduled_view(visit.site).page(wanted.filter, limit=tuning.ROWS).total or 0
    if not number:
        text = f"No {job_list.state} job matches any more." if choice.every else "Select some jobs first."
        return redirect(request, path(request, job_list.name, list_query(request)), text, level="note")
    return _ask(request, job_list, wanted, choice.act, choice.ids, number)


@router.post("/scheduled/act", name="act_on_scheduled")
@router.post("/retries/act", name="act_on_retries")
def act(
    request: Request,
    visit: Visiting,
    job_list: Listed,
    act: Act,
    time: Time,
    id: Texts = None,
    filter: Annotated[str, Form(max_length=10_000)] = "",
    all: Annotated[bool, Form()] = False,
    number: Annotated[int, Form(ge=0)] = 0,
    typed: Annotated[str, Form(max_length=50)] = "",
) -> Response:
    """Carry out the confirmed action: cancel, run, move, retry or give up on jobs.

    The URL contains the list's query, and the response leads back to the list.
    """
    check_act(act, job_list.actions, _WHAT)
    ids = list(dict.fromkeys(id or ()))
    if not ids and not all:
        raise Refused(422, "no job is selected. Go back and select at least one.")
    which: Which = ids or asked_jobs(job_list, {"filter": filter}).filter
    check_typed(typed, number, len(ids))
    problems = Problems()
    at, later = time.read_move(problems) if act == MOVE else (None, None)
    if problems:
        return _ask(request, job_list, asked_jobs(job_list, request.query_params), act, ids, number, time, problems)
    retries = True if job_list is RETRIES else None
    done = actions.alter_scheduled(visit, act, which, at=at, later=later, retries=retries, wait=tuning.LONG_WAIT)
    text, level = outcome(act, done, id=ids[0] if len(ids) == 1 else "")
    return redirect(request, path(request, job_list.name, request.url.query), text, level=level)


@router.post("/jobs/{id:palermo}/due/{act}", name="act_on_due_job")
def act_on_job(
    request: Request,
    visit: Visiting,
    id: str,
    act: str,
    time: Time,
    queue: Annotated[str, Form(max_length=500)] = "",
    back: Annotated[str, Form(max_length=20)] = "",
) -> Response:
    """Act on one job from its own page, and show that page again. Errors are shown on the page that asks for a time.

    A cancelled job no longer exists, and its record reaches the journal later, so then the list `back` is shown.
    """
    job_list = RETRIES if act in RETRIES.actions else SCHEDULED
    check_act(act, job_list.actions, _WHAT)
    problems = Problems()
    at, later = time.read_move(problems) if act == MOVE else (None, None)
    if problems:
        return _ask(request, job_list, list_filter({}), act, [id], 1, time, problems)
    done = actions.alter_scheduled(visit, act, id, at=at, later=later, wait=tuning.LONG_WAIT)
    text, level = outcome(act, done, id=id)
    to = path(request, "job", {"queue": queue}, id=id)
    if act == CANCEL and level == "done":
        to, text = path(request, JOB_LISTS.get(back, SCHEDULED).name), f"Cancelled job {id}."
    return redirect(request, to, text, level=level)


def _ask(
    request: Request,
    job_list: JobList,
    wanted: ListFilter[JobFilter],
    act: str,
    ids: list[str],
    number: int,
    time: TimeFields | None = None,
    problems: Mapping[str, str] = NO_PROBLEMS,
) -> Response:
    return page(
        request,
        "scheduled_confirm.html",
        status=422 if problems else 200,
        form=ShownForm("confirm", (time or TimeFields()).values, problems),
        job_list=job_list,
        act=act,
        ids=ids,
        number=number,
        asks=None if ids else wanted.text,
        typed=f"{number}" if number > tuning.UNTYPED else "",
        what=count(number, f"{job_list.state} job"),
        listed=list_query(request),
        back=path(request, job_list.name, list_query(request)),
    )


def outcome(act: str, done: Operation, *, id: str = "") -> tuple[str, str]:
    """Return a message about the outcome, and its level. `id` is given for a single job."""
    rows = done.rows
    if not done.over:
        return "This takes a while and continues in the background. The list shows the progress.", "note"
    gone = sum(row["state"] == GONE for row in rows)
    if id and gone:
        return f"Nothing was changed: job {id[:80]} has become due, or doesn't exist.", "note"
    now = act == MOVE and any(row["state"] == "enqueued" for row in rows)
    text = f"{'Enqueued' if now else _DONE[act]} {count(len(rows) - gone, 'job')}"
    if gone:
        return f"{text}. {gone:,} had become due or didn't exist.", "note"
    return f"{text}.", "done" if rows else "note"


# -- the API

api = Router(prefix="/scheduled", tags=["scheduled"])
retries_api = Router(prefix="/retries", tags=["retries"])

Due = Annotated[str | None, Query(max_length=100, description="ISO 8601 with a time zone, or from now, as 90s or 2h.")]


class Moment(BaseModel):
    """The new time. Set one of at, delay and later."""

    model_config = ConfigDict(extra="forbid", strict=True)

    at: str | float | None = Field(default=None, description="ISO 8601 with a time zone, or Unix seconds.")
    delay: float | None = Field(default=None, description="Seconds from now.")
    later: float | None = Field(default=None, description="Seconds to add to each job's time.")


class ChosenForMove(Chosen, Moment):
    """The chosen scheduled jobs, and their new time."""


class AlteredRows(BaseModel):
    """The result for each job, including ids that were not found."""

    rows: list[AlteredRow]
    total: int


@api.get("")
def api_scheduled(
    visit: Visiting,
    paging: ApiPage,
    filter: Condition = None,
    queue: Condition = None,
    job: Condition = None,
    retries: bool | None = None,
    due_from: Due = None,
    due_until: Due = None,
) -> Rows[JobRow]:
    """Scheduled jobs, soonest first. Names match in part; `=mail` is exactly `mail`.

    The state "retrying" means that a job has failed and is waiting for a retry. `retries` selects only such jobs, or
    only others. The list may be cached for ten times as long as reading it took. Conditions in `filter` on the queue,
    job, due time and these two states are compared with all jobs; others with the soonest 10,000.
    """
    state = None if retries is None else "retrying" if retries else "scheduled"
    given = {"filter": filter, "queue": queue, "job": job, "due_from": due_from, "due_until": due_until}
    return _page(visit, paging, state=state, **given)


@api.post("/cancel")
def api_cancel_scheduled_many(visit: Visiting, chosen: Chosen) -> AlteredRows:
    """Cancel jobs: the jobs with these ids, or all that match a filter ({} for all). Role: operator."""
    return _altered(visit, CANCEL, chosen.meant())


@api.post("/run")
def api_run_scheduled_many(visit: Visiting, chosen: Chosen) -> AlteredRows:
    """Enqueue jobs now: the jobs with these ids, or all that match a filter ({} for all). Role: operator."""
    return _altered(visit, RUN, chosen.meant())


@api.post("/move")
def api_move_scheduled_many(visit: Visiting, chosen: ChosenForMove) -> AlteredRows:
    """Reschedule jobs: the jobs with these ids, or all that match a filter ({} for all). Role: operator.

    A time in the past means now, with the resulting state "enqueued".
    """
    return _altered(visit, MOVE, chosen.meant(), **_moment(chosen))


@api.get("/{id:palermo}")
def api_scheduled_job(visit: Visiting, id: Id) -> JobRow:
    """One scheduled job."""
    row = scheduled_view(visit.site).find(id)
    if row is None:
        raise NotFound(f"job {id[:80]!r} is not scheduled. It may have started already, or never existed.")
    return masked_row(row, visit.site.hidden)


@api.post("/{id:palermo}/cancel")
def api_cancel_scheduled(visit: Visiting, id: Id) -> AlteredRow:
    """Cancel one scheduled job. Role: operator."""
    return _altered(visit, CANCEL, id).rows[0]


@api.post("/{id:palermo}/run")
def api_run_scheduled(visit: Visiting, id: Id) -> AlteredRow:
    """Enqueue one scheduled job now. Role: operator."""
    return _altered(visit, RUN, id).rows[0]


@api.post("/{id:palermo}/move")
def api_move_scheduled(visit: Visiting, id: Id, moment: Moment) -> AlteredRow:
    """Reschedule one job. A time in the past means now. Role: operator."""
    return _altered(visit, MOVE, id, **_moment(moment)).rows[0]


@retries_api.get("")
def api_retries(
    visit: Visiting,
    paging: ApiPage,
    filter: Condition = None,
    queue: Condition = None,
    job: Condition = None,
    due_from: Due = None,
    due_until: Due = None,
) -> Rows[JobRow]:
    """Failed jobs that are waiting for a retry, soonest first.

    `error` is the last error, `attempts` contains the errors of all runs, and `retries` is the number of retries so
    far.
    """
    given = {"filter": filter, "queue": queue, "job": job, "due_from": due_from, "due_until": due_until}
    return _page(visit, paging, state="retrying", **given)


@retries_api.post("/run")
def api_run_retries_many(visit: Visiting, chosen: Chosen) -> AlteredRows:
    """Retry jobs now: the jobs with these ids, or all that match a filter ({} for all). Role: operator."""
    return _altered(visit, RETRY, chosen.meant())


@retries_api.post("/give-up")
def api_give_up_many(visit: Visiting, chosen: Chosen) -> AlteredRows:
    """Give up on jobs: the jobs with these ids, or all that match a filter ({} for all). Role: operator.

    They become failed jobs with all their attempts.
    """
    return _altered(visit, GIVE_UP, chosen.meant())


@retries_api.post("/{id:palermo}/run")
def api_run_retry(visit: Visiting, id: Id) -> AlteredRow:
    """Retry one job now. Role: operator."""
    return _altered(visit, RETRY, id).rows[0]


@retries_api.post("/{id:palermo}/give-up")
def api_give_up(visit: Visiting, id: Id) -> AlteredRow:
    """Give up on one job. It becomes a failed job with all its attempts, as if no retry were left. Role: operator."""
    return _altered(visit, GIVE_UP, id).rows[0]


def _page(visit: Visit, paging: Paging, **conditions: str | None) -> Rows[JobRow]:
    return Rows[JobRow].of(listings.scheduled(visit, asked_filter(conditions), paging), paging)


def _altered(
    visit: Visit, action: str, which: Which, *, at: float | None = None, later: float | None = None
) -> AlteredRows:
    done = actions.alter_scheduled(visit, action, which, at=at, later=later)
    if not done.over:
        text = f"the operation is still running; GET /api/operations/{done.id} shows its progress and outcome."
        raise Refused(503, text)
    return AlteredRows(rows=list(done.rows), total=len(done.rows))


def _moment(moment: Moment) -> dict[str, float]:
    """Return the new time in Unix seconds, or the seconds by which to postpone each job, as a keyword argument.

    Raises Refused (422), OptionInvalid.
    """
    if [moment.at, moment.delay, moment.later].count(None) != 2:
        raise Refused(
            422,
            'give exactly one of "at", "delay" and "later", such as {"at": "2026-12-01T09:00Z"}, {"delay": 300} or'
            ' {"later": 3600}.',
        )
    if moment.later is not None:
        return {"later": times.delay_seconds(moment.later)}
    if moment.delay is not None:
        return {"at": times.unix_seconds(clock.now() + times.delay_seconds(moment.delay))}
    assert moment.at is not None
    return {"at": instant_of(moment.at, "at")}
