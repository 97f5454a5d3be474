"""The page of failed jobs as a list or in groups, and the pages that requeue and discard them.

The latter show the number of chosen jobs, ask for confirmation, act, and show the outcome.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import parse_qsl, urlencode

from fastapi import Body, Depends, Form, Query
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from palermo.contract import clock
from palermo.contract.row_types import JobRow
from palermo.contract.rows import Listing, Row, iso_instant
from palermo.core.journal_records import JournalLevel
from palermo.core.message import Message
from palermo.core.text import count
from palermo.errors import NotFound
from palermo.inspector.judges import Which
from palermo.views.filter import JobFilter
from palermo.webui import actions, audit, tuning
from palermo.webui.api.rows import UNSERVED_MEANS, Chosen, Id, Rows
from palermo.webui.failed.failed_jobs import failed_jobs
from palermo.webui.failed.index import FACETS
from palermo.webui.failed.operations import DONE, Operation, operations
from palermo.webui.filters import (
    LISTED,
    ApiPage,
    PageLimit,
    PageNumber,
    Paging,
    conditions,
    known_names,
    list_filter,
)
from palermo.webui.pages.choice import NAMES, Choosing, check_act, list_query
from palermo.webui.pages.forms import FORM_ERRORS, NO_PROBLEMS, Problems, ShownForm
from palermo.webui.pages.job_form import FormPage, JobForm, job_form, missing_row
from palermo.webui.render.charts import sparkline
from palermo.webui.render.facets import count_names, facets
from palermo.webui.render.rendering import listed, page, path, redirect
from palermo.webui.site import Refused, Visit, Visiting
from palermo.webui.state.journal_views import journal_views
from palermo.webui.threads import Router

router = Router()

#: The list's URL parameters other than the filter.
_KEPT = ("by", "limit", "page")

#: The fields of the question before input.
_NO_QUEUE: Mapping[str, str] = MappingProxyType({"queue": "", "unserved": ""})

#: The possible actions on chosen jobs.
_ACTIONS = ("requeue", "discard")


class Results(NamedTuple):
    """The results of requeued jobs, from the journal."""

    operation: Operation
    succeeded: int
    failed: int
    #: Number of discarded and cancelled jobs.
    dropped: int
    #: Number of waiting, running and retrying jobs.
    open: int


@router.get("/failures", name="failures", dependencies=[known_names(*LISTED)])
def page_of_failures(
    request: Request,
    visit: Visiting,
    by: Annotated[Literal["", "jobs", "groups"], Query()] = "",
    number: PageNumber = 1,
    limit: Annotated[int, Query(ge=1, le=max(tuning.SIZES))] = tuning.SIZES[0],
) -> Response:
    """Show all failed jobs, newest first, or in groups.

    The default is groups if there is more than one page and errors repeat.
    """
    wanted, found, commands = list_filter(request.query_params), failed_jobs(visit.site), operations(visit.site)
    state, index = found.view.update(), found.view.index
    total = index.count(wanted.filter) if state.ready else 0
    if not by and total > limit and wanted.filter.everything:
        _, kinds = index.groups(wanted.filter, limit=tuning.SOME, parts=tuning.PARTS)
        by = "groups" if kinds < total // 2 and not request.query_params else "jobs"
    kept = {"by": by, "limit": "" if limit == tuning.SIZES[0] or by == "groups" else str(limit)}
    kept = {name: value for name, value in kept.items() if value}
    paging = Paging(number, tuning.SOME if by == "groups" else limit)
    groups, listing = Listing[Row]([], 0), Listing[JobRow]([], total)
    if state.ready and by == "groups":
        groups = found.groups(wanted.filter, paging)
    elif state.ready:
        listing = found.page(wanted.filter, paging, newest=True)
    results = _results(visit, commands.last_requeue())
    # The results of a requeue are in the journal and not in the queues' counts.
    watched: dict[str, Any] = {"watched": {"of": "history"}} if results else {}
    return page(
        request,
        "failures.html",
        state=state,
        as_of=iso_instant(state.at),
        asked_for=wanted,
        by=by,
        facets=facets(wanted, count_names(index.shapes(wanted.filter), FACETS)) if state.ready else [],
        operations=[each for each in commands.running() if each.place == "failures"],
        results=results,
        groups=groups.rows,
        kinds=groups.total,
        sparkline=sparkline,
        group_name=found.group_name(wanted.filter.group) if wanted.filter.group else "",
        query=wanted.query,
        kept=kept,
        paged=f"page={number}" if number > 1 else "",
        sizes=[(size, f"?{_joined(wanted.query, f'limit={size}')}") for size in tuning.SIZES],
        **listed(listing, paging, _joined(wanted.query, urlencode(kept))),
        **watched,
    )


def _joined(*queries: str) -> str:
    return "&".join(filter(None, queries))


def _results(visit: Visit, operation: Operation | None) -> Results | None:
    """Return the results of a requeue; None if the journal doesn't record all of them, or is still being read."""
    known = journal_views(visit.site)
    if operation is None or not operation.requeued or known.level is not JournalLevel.ALL or not known.ready:
        return None
    ends = known.index.ends(operation.requeued, since=operation.asked_at)
    dropped = ends["discarded"] + ends["cancelled"]
    return Results(operation, ends["done"], ends["failed"], dropped, len(operation.requeued) - ends.total())


@router.post("/failures/read", name="read_failures")
def read_again(request: Request, visit: Visiting) -> Response:
    """Read the failed jobs again now, even if no reading is due."""
    actions.read_failures(visit)
    return redirect(request, path(request, "failures", request.url.query))


def chosen_filter(request: Request, visit: Visiting) -> JobFilter:
    """Return the filter in a URL, limited to now so that it excludes jobs that failed after the user saw a number."""
    wanted = list_filter(request.query_params).filter
    newest = failed_jobs(visit.site).view.index.newest() or 0
    if wanted.until is None:
        wanted = replace(wanted, until=float(max(int(clock.now()), newest)))
    return replace(wanted, since=None if wanted.since is None else float(int(wanted.since)))


# -- requeue and discard


@router.api_route(
    "/failures/confirm",
    methods=["GET", "POST"],
    name="confirm_failures",
    dependencies=[known_names(*NAMES, *LISTED, *_KEPT)],
)
def confirm(request: Request, visit: Visiting, choice: Choosing) -> Response:
    """Show the number of chosen jobs, and ask for confirmation."""
    check_act(choice.act, _ACTIONS, "an action for failed jobs")
    back = list_query(request)
    if request.query_params.get("by") == "groups":
        # The filter of the group whose button was pressed isn't part of the list's query.
        rest = urlencode([(name, value) for name, value in parse_qsl(back) if name not in LISTED])
        back = _joined(list_filter(request.query_params).having(group=""), rest)
    meant: dict[str, Any] = {"ids": choice.ids, "filter": "", "number": len(choice.ids)}
    asks = None
    if choice.every:
        found = failed_jobs(visit.site)
        # A completed reading is good enough here, because reading again takes long with many jobs.
        if not found.view.update().ready:
            found.wait_until_read()
        chosen = chosen_filter(request, visit)
        meant |= {"filter": str(chosen), "number": found.view.index.count(chosen)}
        asks = list_filter(request.query_params).text
        if chosen.group is not None:
            asks = asks.replace(chosen.group, found.group_name(chosen.group))
    if not meant["number"]:
        text = "No failed job matches any more." if choice.every else "Select some jobs first."
        return redirect(request, path(request, "failures", back), text, level="note")
    return _ask(request, choice.act, meant, back, asks=asks)


def _ask(
    request: Request,
    act: str,
    meant: Mapping[str, Any],
    back: str,
    *,
    asks: str | None = None,
    values: Mapping[str, str] = _NO_QUEUE,
    problems: Mapping[str, str] = NO_PROBLEMS,
) -> Response:
    return page(
        request,
        "failures_confirm.html",
        status=422 if problems else 200,
        form=ShownForm("confirm", values, problems),
        act=act,
        meant=meant,
        asks=asks,
        typed=f"{meant['number']}" if meant["number"] > tuning.UNTYPED else "",
        back=path(request, "failures", back),
        listed=back,
    )


@router.post("/failures/act", name="act_on_failures")
def act(
    request: Request,
    visit: Visiting,
    act: Annotated[str, Form(pattern="^(requeue|discard)$")],
    id: Annotated[list[str] | None, Form()] = None,
    filter: Annotated[str, Form(max_length=10_000)] = "",
    number: Annotated[int, Form(ge=0)] = 0,
    typed: Annotated[str, Form(max_length=50)] = "",
    queue: Annotated[str, Form(max_length=500)] = "",
    unserved: Annotated[str, Form(max_length=500)] = "",
) -> Response:
    """Carry out the confirmed action. The URL contains the list's query, and the response leads back to the list."""
    ids = list(dict.fromkeys(id or ()))
    which: Which = ids or _filter(filter)
    check_typed(typed, number, len(ids))
    if act == "requeue":
        problems, to = Problems(), queue.strip()
        with problems.at("queue"):
            done = actions.requeue(
                visit,
                which,
                queue=to or None,
                unserved=unserved == to,
                expected=number or None,
                wait=tuning.WAIT,
            )
        if problems:
            meant = {"ids": ids, "filter": "" if ids else filter, "number": number}
            values = {"queue": to, "unserved": unserved}
            return _ask(request, act, meant, request.url.query, values=values, problems=problems)
    else:
        done = actions.discard(visit, which, expected=number or None, wait=tuning.WAIT)
    return outcome_response(request, done, path(request, "failures", request.url.query))


@router.post("/failures/{id:palermo}/requeue", name="requeue_failed")
def requeue_one(request: Request, visit: Visiting, id: str) -> Response:
    """Run one job again, unchanged."""
    done = actions.requeue(visit, id, wait=tuning.WAIT)
    return outcome_response(request, done, path(request, "failures", request.url.query))


@router.get("/failures/{id:palermo}/edit", name="edit_failed")
def edit(request: Request, visit: Visiting, id: str) -> Response:
    """Show the form to run one job again with other arguments or in another queue."""
    found = failed_jobs(visit.site)
    found.view.update()
    row = found.row(_message(visit, id))
    return _form(request, id).show(request, row, JobForm.of(row))


@router.post("/failures/{id:palermo}/edit", name="save_failed")
def save(request: Request, visit: Visiting, id: str, form: Annotated[JobForm, Depends(job_form)]) -> Response:
    """Run one job again with the form's changes."""
    found = failed_jobs(visit.site)
    row = missing_row(id)
    try:
        message = _message(visit, id)
        row = found.row(message)
        changes = form.changes(row, found.unmasked_row(message))
        done = actions.requeue(visit, id, **changes, wait=tuning.WAIT)
    except (*FORM_ERRORS, NotFound) as error:
        return _form(request, id).show(request, row, form, error)
    if not done.over or not done.taken:
        return outcome_response(request, done, path(request, "failures", request.url.query))
    to = path(request, "job", {"queue": changes["queue"] or row["queue"]}, id=id)
    return redirect(request, to, "Requeued. This page shows its new run.")


def _message(visit: Visit, id: str) -> Message:
    """Return the message of a failed job. Raises NotFound, naming the user who acted on it first."""
    try:
        return failed_jobs(visit.site).message(id)
    except NotFound as error:
        raise audit.gone(visit, id, error) from None


def _form(request: Request, id: str) -> FormPage:
    return FormPage(
        title="Edit and requeue",
        button="Requeue",
        section="failures",
        crumb="Failed jobs",
        action=path(request, "save_failed", request.url.query, id=id),
        back=path(request, "failures", request.url.query),
        time_hint="at once",
    )


@router.get("/failures/operations/{id:palermo}", name="operation")
def operation(request: Request, visit: Visiting, id: str) -> Response:
    """Show the progress or outcome of an operation. The URL contains the query of the list from which it was
    started.
    """
    found = operations(visit.site).get(id)
    return page(
        request,
        "failures_operation.html",
        operation=found,
        results=_results(visit, found),
        did=DONE[found.action],
        query=request.url.query,
        asked_at=iso_instant(found.asked_at),
        ended=iso_instant(found.ended_at),
    )


@router.post("/failures/operations/{id:palermo}/stop", name="stop_operation")
def stop(request: Request, visit: Visiting, id: str) -> Response:
    """Stop a long command before its next job."""
    actions.stop_operation(visit, id).wait(tuning.WAIT)
    return redirect(request, path(request, "operation", request.url.query, id=id))


def outcome_response(request: Request, done: Operation, back: str) -> Response:
    """Redirect to the list with the outcome, or to the page with the operation's progress, which leads back there."""
    if not done.over:
        return redirect(request, path(request, "operation", back.partition("?")[2], id=done.id))
    fine = done.status == "done" and not done.gone and not done.problems
    return redirect(request, back, done.outcome(), level="done" if fine else "note")


def _filter(text: str) -> JobFilter:
    wanted = list_filter({"filter": text}).filter
    if wanted.until is None:
        raise Refused(422, "no job is selected. Go back and select at least one.")
    return wanted


def check_typed(typed: str, number: int, chosen: int) -> None:
    """Raise Refused (422) if the number of jobs must be typed for confirmation and is wrong."""
    if max(number, chosen) > tuning.UNTYPED and "".join(char for char in typed if char.isdecimal()) != str(number):
        raise Refused(422, f"{count(number, 'job')} would change, but you typed {typed!r}. Go back and type {number}.")


# -- the API

api = Router(prefix="/failed", tags=["failed"])
operations_api = Router(prefix="/operations", tags=["operations"])


class Group(BaseModel):
    """Failures of one kind."""

    fingerprint: str = Field(description="The fingerprint, for the filter `group`.")
    count: int
    job: str | None
    error: str
    message: str = Field(description="The error of the newest one.")
    first_seen: str | None
    last_seen: str | None
    id: str = Field(description="Ids of the newest ones.")
    history: list[int] = Field(description="Number of failures in each interval, oldest interval first.")


class Groups(Rows[Group]):
    """A page of groups."""


class ChosenForRequeue(Chosen):
    """The chosen failed jobs, and another queue for them if wanted."""

    queue: str | None = None
    unserved: bool = Field(default=False, description=UNSERVED_MEANS)


class Change(BaseModel):
    """Changes to a requeued job."""

    model_config = ConfigDict(extra="forbid")

    args: list[Any] | None = Field(default=None, description="New positional arguments.")
    kwargs: dict[str, Any] | None = Field(default=None, description="New keyword arguments.")
    queue: str | None = Field(default=None, description="The queue to requeue it to; its own if omitted.")
    unserved: bool = Field(default=False, description=UNSERVED_MEANS)


class OperationRow(BaseModel):
    """A long operation on jobs or events."""

    id: str
    action: str = Field(description="requeue, discard, cancel, move, run, retry, give up or replay.")
    status: Literal["waiting", "running", "done", "stopped", "failed"]
    by: str
    about: str
    expected: int | None = Field(description="How many jobs were meant, where that was known.")
    taken: int = Field(description="Number of jobs requeued, discarded, cancelled, moved or enqueued so far.")
    gone: int = Field(description="Number of chosen jobs that no longer existed.")
    seen: int = Field(description="Number of jobs checked so far.")
    total: int = Field(description="Number of jobs to check.")
    asked_at: str
    ended_at: str | None
    outcome: str | None = Field(description="The outcome, in a sentence; null while it runs.")
    problems: list[str]


class Operations(Rows[OperationRow]):
    """The running and waiting operations."""


#: The status codes of a long operation: 200 once it has ended, 202 while it is running.
_BEGUN: dict[int | str, dict[str, Any]] = {
    202: {"model": OperationRow, "description": "The operation continues: `/api/operations/{id}` shows its progress."}
}


#: The conditions of all addresses of failed jobs.
Asked = Annotated[
    JobFilter,
    conditions("filter", "queue", "job", "error", "text", "since", "until", "group", "requeued", "worker", "tenant"),
]


@api.get("")
def api_failed(
    visit: Visiting, filter: Asked, page: PageNumber = 1, limit: PageLimit = 100, newest: bool = False
) -> Rows[JobRow]:
    """Failed jobs, oldest failure first, or newest first with `newest`."""
    found = failed_jobs(visit.site)
    found.wait_until_read()
    paging = Paging(page, limit)
    return Rows[JobRow].of(found.page(filter, paging, newest=newest), paging)


@api.get("/groups")
def api_failed_groups(visit: Visiting, paging: ApiPage, filter: Asked) -> Groups:
    """Groups of failed jobs with the same job, exception and place in the code, largest group first."""
    found = failed_jobs(visit.site)
    found.wait_until_read()
    return Groups.of(found.groups(filter, paging), paging)


@api.post("/requeue", responses=_BEGUN)
def api_failed_requeue_many(visit: Visiting, chosen: ChosenForRequeue, response: Response) -> OperationRow:
    """Run failed jobs again: the jobs with these ids, or all that match a filter ({} for all)."""
    return _row(actions.requeue(visit, chosen.meant(), queue=chosen.queue, unserved=chosen.unserved), response)


@api.post("/discard", responses=_BEGUN)
def api_failed_discard_many(visit: Visiting, chosen: Chosen, response: Response) -> OperationRow:
    """Discard failed jobs: the jobs with these ids, or all that match a filter ({} for all)."""
    return _row(actions.discard(visit, chosen.meant()), response)


@api.get("/{id:palermo}")
def api_failed_job(visit: Visiting, id: Id) -> JobRow:
    """One failed job."""
    found = failed_jobs(visit.site)
    found.view.update(visit.site.client.settings.publish_timeout)
    return found.row(found.message(id))


@api.post("/{id:palermo}/requeue", responses=_BEGUN)
def api_failed_requeue(
    visit: Visiting, id: Id, response: Response, change: Annotated[Change | None, Body()] = None
) -> OperationRow:
    """Run one failed job again, optionally with other arguments or in another queue."""
    change = change or Change()
    return _row(actions.requeue(visit, id, **change.model_dump()), response)


@api.delete("/{id:palermo}", responses=_BEGUN)
def api_failed_discard(visit: Visiting, id: Id, response: Response) -> OperationRow:
    """Discard one failed job."""
    return _row(actions.discard(visit, id), response)


@operations_api.get("")
def api_operations(visit: Visiting) -> Operations:
    """The running and waiting operations."""
    return Operations.whole([_shown(each) for each in operations(visit.site).running()])


@operations_api.get("/{id:palermo}")
def api_operation(visit: Visiting, id: Id) -> OperationRow:
    """The progress or outcome of an operation."""
    return _shown(operations(visit.site).get(id))


@operations_api.post("/{id:palermo}/stop")
def api_stop_operation(visit: Visiting, id: Id) -> OperationRow:
    """Stop an operation before its next job. The remaining jobs are not changed."""
    operation = actions.stop_operation(visit, id)
    operation.wait(5)
    return _shown(operation)


def _row(operation: Operation, response: Response) -> OperationRow:
    response.status_code = 200 if operation.over else 202
    return _shown(operation)


def _shown(operation: Operation) -> OperationRow:
    return OperationRow(
        id=operation.id,
        action=operation.action,
        status=operation.status,
        by=operation.by,
        about=operation.about,
        expected=operation.expected,
        taken=operation.taken,
        gone=operation.gone,
        seen=operation.seen,
        total=operation.total,
        asked_at=iso_instant(math.floor(operation.asked_at)) or "",
        ended_at=iso_instant(math.floor(operation.ended_at)) if operation.ended_at else None,
        outcome=operation.outcome() if operation.over else None,
        problems=[f"{type(problem).__name__}: {problem}" for problem in operation.problems],
    )
