"""The pages of scheduled jobs, which are due later, and of retries, which have failed and wait for their next try.

Other pages here change such jobs: they show the number of jobs that are meant, ask, act, and tell the outcome.
"""

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode

from fastapi import Depends, Form, Query
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from palermo.contract.rows import Listing, Row
from palermo.contract.scheduled import CANCEL, GIVE_UP, MOVE, RUN
from palermo.core.text import count
from palermo.inspector.scheduled import GONE, Which, counted
from palermo.views.filter import JobFilter
from palermo.webui import actions
from palermo.webui.filters import field_text, known_names
from palermo.webui.pages.choice import NAMES, Chosen, list_query
from palermo.webui.pages.failures import UNTYPED, check_typed
from palermo.webui.pages.forms import NO_PROBLEMS, Problems, ShownForm, TimeFields, later_of
from palermo.webui.pages.job_form import Time
from palermo.webui.render.rendering import page, path, redirect
from palermo.webui.site import Refused, Visiting, visit_of
from palermo.webui.state import listings
from palermo.webui.state.live_state import live_state
from palermo.webui.state.scheduled_view import PAGE_SIZE, RETRY, StillReading, scheduled_view
from palermo.webui.threads import Router

router = Router()

#: The options of the choice of kinds on the page of scheduled jobs.
KINDS = (("", "all"), ("no", "without retries"), ("yes", "retries only"))

Name = Annotated[str, Query(max_length=1_000)]
Kind = Annotated[str, Query(max_length=10)]
Number = Annotated[int, Query(alias="page", ge=1, le=10_000)]

#: The names of the filters by the instant at which a job is due.
_DUE = ("due_from", "due_until")

_CHOICE = known_names(*NAMES, "queue", "job", *_DUE, "retries", "page")

#: Seconds that a form waits for its command, before it redirects to the list.
PATIENCE = 5.0

#: The outcome of each action, in a word or two.
_DONE = {CANCEL: "Cancelled", RUN: "Enqueued", MOVE: "Moved", RETRY: "Enqueued", GIVE_UP: "Gave up"}

Texts = Annotated[list[str] | None, Form()]
Act = Annotated[str, Form(max_length=20)]


class JobList(Struct, frozen=True):
    """One of the two pages."""

    #: The name of its route, and the value of `of` with which the page's stream watches its list.
    name: str
    title: str
    #: The name of a row, for people.
    noun: str
    #: The actions on its rows.
    actions: tuple[str, ...]


SCHEDULED = JobList("scheduled", "Scheduled", "scheduled job", (RUN, MOVE, CANCEL))
RETRIES = JobList("retries", "Retries", "retrying job", (RETRY, MOVE, GIVE_UP, CANCEL))
JOB_LISTS = {each.name: each for each in (SCHEDULED, RETRIES)}


class ListFilter(Struct, frozen=True):
    """The filter that an address asks for, as it was written."""

    job_list: JobList
    queue: str = ""
    job: str = ""
    #: The first and the last instant at which the jobs are due, as later_of reads them, to the minute.
    due_from: str = ""
    due_until: str = ""
    retries: str = ""

    @property
    def chosen(self) -> JobFilter:
        """The jobs that the filter means. Raises Refused (422), OptionInvalid."""
        state = "retrying" if self.job_list is RETRIES else {"yes": "retrying", "no": "scheduled"}.get(self.retries)
        # Whole minutes: a list from now on stays the same for a minute, and is not read again for each look.
        first, last = (later_of(text) // 60 * 60 if text else None for text in (self.due_from, self.due_until))
        return JobFilter(queue=self.queue or None, job=self.job or None, state=state, due_from=first, due_until=last)

    @property
    def written(self) -> dict[str, str]:
        """The text of each filter by name. Empty texts are ignored."""
        due = {"due_from": self.due_from, "due_until": self.due_until}
        return {"queue": self.queue, "job": self.job, **due, "retries": self.retries}

    @property
    def query(self) -> str:
        """The filter as the query of an address."""
        return urlencode([(name, text) for name, text in self.written.items() if text])


def list_filter(job_list: JobList, given: Any) -> ListFilter:
    """The filter with these texts by name. Blank texts, unknown names and unknown kinds are ignored."""
    values = {name: field_text(name, given.get(name)) for name in ("queue", "job", *_DUE)}
    kind = str(given.get("retries") or "")
    return ListFilter(job_list, **values, retries=kind if job_list is SCHEDULED and kind in ("yes", "no") else "")


def _listed(request: Request) -> JobList:
    """The page that a route belongs to: the last word of the route's name."""
    return JOB_LISTS[request.scope["route"].name.rpartition("_")[2]]


Listed = Annotated[JobList, Depends(_listed)]


@router.get("/scheduled", name="scheduled", dependencies=[known_names()])
@router.get("/retries", name="retries", dependencies=[known_names()])
def jobs(
    request: Request,
    visit: Visiting,
    job_list: Listed,
    queue: Name = "",
    job: Name = "",
    due_from: Name = "",
    due_until: Name = "",
    retries: Kind = "",
    number: Number = 1,
) -> Response:
    """All jobs that are due later, or those that have failed and wait for their next try, soonest first."""
    given = {"queue": queue, "job": job, "due_from": due_from, "due_until": due_until, "retries": retries}
    wanted = list_filter(job_list, given)
    reading, progress = False, None
    try:
        listing = listings.scheduled(visit, wanted.chosen, page=number, limit=PAGE_SIZE, soon=True)
    except StillReading:
        listing, reading, progress = Listing([], None), True, scheduled_view(visit.site).progress()
    live = live_state(visit.site)
    live.recent_jobs.add(listing.rows)
    pages = f"{wanted.query}&page=" if wanted.query else "page="
    return page(
        request,
        f"{job_list.name}.html",
        job_list=job_list,
        watched={"of": job_list.name, **wanted.written, "page": number},
        asks=wanted.written,
        query=wanted.query,
        listed=f"{pages}{number}" if number > 1 else wanted.query,
        kinds=KINDS,
        names=sorted({row["name"] for row in live.snapshot(5.0).queues} | {row["queue"] for row in listing.rows}),
        rows=listing.rows,
        total=listing.total or 0,
        reading=reading,
        progress=progress,
        number=number,
        limit=PAGE_SIZE,
        at=f"?{pages}",
    )


# -- cancel, run, move and give up


@router.api_route("/scheduled/confirm", methods=["GET", "POST"], name="confirm_scheduled", dependencies=[_CHOICE])
@router.api_route("/retries/confirm", methods=["GET", "POST"], name="confirm_retries", dependencies=[_CHOICE])
def confirm(request: Request, visit: Visiting, job_list: Listed, choice: Chosen) -> Response:
    """Show how many jobs are meant, and ask."""
    _check(job_list, choice.act)
    wanted, number = list_filter(job_list, request.query_params), len(choice.ids)
    if choice.every:
        number = scheduled_view(visit.site).page(wanted.chosen, limit=PAGE_SIZE).total or 0
    if not number:
        text = f"No {job_list.noun} matches that any more." if choice.every else "Select some jobs first."
        return redirect(request, path(request, job_list.name, list_query(request)), text, level="note")
    return _ask(request, wanted, choice.act, choice.ids, number)


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
    number: Annotated[int, Form(ge=0)] = 0,
    typed: Annotated[str, Form(max_length=50)] = "",
) -> Response:
    """Do what was confirmed: cancel, run or move jobs, try them again, or give them up.

    The query is that of the list, which is shown again.
    """
    _check(job_list, act)
    ids = list(dict.fromkeys(id or ()))
    which: Which = ids or _filter(job_list, filter).chosen
    check_typed(typed, number, len(ids))
    problems = Problems()
    at, later = time.read_move(problems) if act == MOVE else (None, None)
    if problems:
        return _ask(request, list_filter(job_list, request.query_params), act, ids, number, time, problems)
    retries = True if job_list is RETRIES else None
    rows = actions.alter_scheduled(visit, act, which, at=at, later=later, retries=retries, wait=PATIENCE)
    text, level = outcome(act, rows, id=ids[0] if len(ids) == 1 else "")
    return redirect(request, path(request, job_list.name, request.url.query), text, level=level)


@router.post("/jobs/{id:palermo}/due/{act}", name="act_on_due_job")
def act_on_job(
    request: Request,
    visit: Visiting,
    id: str,
    act: str,
    time: Time,
    queue: Annotated[str, Form(max_length=500)] = "",
) -> Response:
    """Act on one job from its own page, which is shown again. Errors are shown on the page that asks for the time."""
    job_list = RETRIES if act in RETRIES.actions else SCHEDULED
    _check(job_list, act)
    problems = Problems()
    at, later = time.read_move(problems) if act == MOVE else (None, None)
    if problems:
        return _ask(request, ListFilter(job_list), act, [id], 1, time, problems)
    rows = actions.alter_scheduled(visit, act, id, at=at, later=later, wait=PATIENCE)
    text, level = outcome(act, rows, id=id)
    to = path(request, "job", {"queue": queue}, id=id)
    return redirect(request, to, text, level=level)


def _ask(
    request: Request,
    wanted: ListFilter,
    act: str,
    ids: list[str],
    number: int,
    time: TimeFields | None = None,
    problems: Mapping[str, str] = NO_PROBLEMS,
) -> Response:
    retries: int | None = 0
    if wanted.job_list is SCHEDULED:
        retries = scheduled_view(visit_of(request).site).count_retries(ids or wanted.chosen)
    return page(
        request,
        "scheduled_confirm.html",
        status=422 if problems else 200,
        form=ShownForm("confirm", (time or TimeFields()).values, problems),
        job_list=wanted.job_list,
        act=act,
        ids=ids,
        number=number,
        asks=None if ids else {name: text for name, text in wanted.written.items() if text},
        typed=f"{number}" if number > UNTYPED else "",
        what=counted(number, retries or 0) if wanted.job_list is SCHEDULED else count(number, wanted.job_list.noun),
        uncounted=retries is None,
        query=wanted.query,
        listed=list_query(request),
        back=path(request, wanted.job_list.name, list_query(request)),
    )


def outcome(act: str, rows: list[Row] | None, *, id: str = "") -> tuple[str, str]:
    """The outcome in a sentence, and the level of its message. `id` is given for a single job."""
    if rows is None:
        return "This takes a while and continues by itself: the list shows the progress.", "note"
    gone = sum(row["state"] == GONE for row in rows)
    if id and gone:
        return f"Too late: job {id[:80]} has become due, or doesn't exist. Nothing was changed.", "note"
    now = act == MOVE and any(row["state"] == "enqueued" for row in rows)
    text = f"{'Enqueued' if now else _DONE[act]} {count(len(rows) - gone, 'job')}"
    if gone:
        return f"{text}. {gone:,} had become due, or didn't exist.", "note"
    return f"{text}.", "done" if rows else "note"


def _filter(job_list: JobList, text: str) -> ListFilter:
    """The filter that a form sends back. What no page has written is refused, so that it cannot widen the filter.

    Raises Refused (422).
    """
    every, _, query = text.partition("&")
    given = dict(parse_qsl(query, keep_blank_values=True))
    wanted = list_filter(job_list, given)
    if every != "all" or given != {name: text for name, text in wanted.written.items() if text}:
        raise Refused(422, "the form selects no jobs. Go back and select some.")
    return wanted


def _check(job_list: JobList, act: str) -> None:
    if act not in job_list.actions:
        raise Refused(
            422, f"{act[:40]!r} is not an action of this page; the actions are {', '.join(job_list.actions)}."
        )
