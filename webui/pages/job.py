"""The page of one job with its state, history and actions, including running it again and editing it."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Depends, Form, Query
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, create_model
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from palermo.client.handle import Conflict, Job
from palermo.client.prepare import plain_note
from palermo.client.recorded_jobs import RecordedJob
from palermo.client.status import INSTANTS, WAITING, JobStatus
from palermo.contract.finding import DEPTH
from palermo.contract.row_types import Instant, JobRow
from palermo.contract.rows import Row
from palermo.core.journal_records import RUN_ENDS, Record, RecordKind
from palermo.core.topology import MAX_PRIORITY
from palermo.errors import NotFound, PalermoError
from palermo.history.journal_reader import Progress
from palermo.history.listings import kept_result, life, recorded
from palermo.inspector.jobs import REASONS
from palermo.jobs import option_kinds
from palermo.jobs.option_kinds import Choice, Flag, Headers, Kind, UniqueFor
from palermo.jobs.options import ENQUEUE_OPTIONS, OPTIONS, EnqueueOptions
from palermo.webui import actions, audit, tuning
from palermo.webui.api.rows import UNSERVED_MEANS, Enqueued
from palermo.webui.filters import instant_of
from palermo.webui.pages.forms import FORM_ERRORS, ShownForm, TimeFields
from palermo.webui.pages.job_form import FormPage, JobForm, job_form, missing_row
from palermo.webui.render.formats import PrettyJson, pretty_json
from palermo.webui.render.job_life import again_of, attempts, children_of, final_state, origin_of, timeline
from palermo.webui.render.rendering import page, path, redirect
from palermo.webui.render.tracebacks import parts_of
from palermo.webui.site import Refused, Visit, Visiting
from palermo.webui.state.deaths import fatal_runs
from palermo.webui.state.job import (
    FoundJob,
    find_job,
    job_result,
    job_row,
    job_status,
    key_facts,
    message_headers,
    recorded_as,
)
from palermo.webui.state.journal_views import JournalViews, journal_views, recorded_job
from palermo.webui.state.live_state import live_state
from palermo.webui.state.workflows import workflow_of
from palermo.webui.threads import Router

router = Router()

#: The message for a command that takes long, for example for a job behind many other failed jobs.
_GOING_ON = "This takes a while: the job is still being searched for."

#: Messages for the outcomes of a cancellation.
_CANCELLED = {
    "marked": "Cancelled. If it is still waiting, it will not run.",
    "cancelled": "Cancelled while running.",
    "cancelling": "Cancelled while running. It is killed if it does not stop by itself.",
    "done": "Too late to cancel: the job has finished.",
    "failed": "Too late to cancel: the job has failed.",
}


@router.get("/jobs/{id:palermo}", name="job")
def job(
    request: Request,
    visit: Visiting,
    id: str,
    queue: Annotated[str, Query(max_length=500)] = "",
    result: Annotated[bool, Query()] = False,
) -> Response:
    known = journal_views(visit.site)
    state = known.wait_until_read()
    records = life(known.index, known.audit, id)
    last = next((row for row in reversed(records) if row["kind"] in RUN_ENDS), None)
    named: Row = next((row for row in reversed(records) if row.get("queue")), {"queue": ""})
    found = find_job(visit.site, id, queue or named["queue"])
    found = replace(found, queue=found.queue or named["queue"], name=found.name or named.get("job"))
    unseen = not found.state and _waits(visit, records)
    if unseen:
        found = replace(found, state="pending")
    kept = kept_result(known.index, id) if last is not None and last.get("result") and not found.state else None
    returned, no_result = _returned(visit, id, kept) if (result or kept) and not found.state else (None, "")
    if not (found.state or records or returned):
        return _not_found(request, found, known, state, no_result)
    written = None if found.message is not None else recorded(known.index, known.audit, id)
    # If the job was found, its current state is newer than the journal's.
    row = found.row
    if written is not None and not found.state:
        created = next((step["at"] for step in records if step["kind"] == RecordKind.ENQUEUED), None)
        retries = last["attempt"] - 1 if last and last["attempt"] else None
        row = {**recorded_as(visit.site, written)[0], "created_at": created, "retries": retries}
    if written is not None and found.row is None:
        found = replace(found, row=row)
    message = found.message or (written.message if written else None)
    parts = parts_of(found.error["traceback"]) if found.error and found.error["traceback"] else []
    ended = "" if found.state else final_state(records) or ""
    origin_known = origin_of(message, row, records)
    lines = [row for row in records if row["kind"] == RecordKind.LOG]
    return page(
        request,
        "job.html",
        watched={"of": "job", "id": id},
        job=found,
        ended=ended,
        last=last,
        lines=lines[-tuning.LIMIT :],
        lines_cut=len(lines) > tuning.LIMIT,
        progress=[row for row in records if row["kind"] == RecordKind.PROGRESS][-tuning.LIMIT :],
        journal=state,
        level=known.level.value,
        returned=returned,
        no_result=no_result,
        row=row,
        written=None if found.state else written,
        reason=REASONS.get(written.inexact, "") if written and not found.state else "",
        args=pretty_json(row["args"]) if row and row["args"] else None,
        kwargs=pretty_json(row["kwargs"]) if row and row["kwargs"] else None,
        attempts=attempts(found, records),
        origin=origin_known,
        flow=workflow_of(id, message, origin_known.parent, records),
        children=children_of(known.index, id, limit=tuning.ROWS),
        most_children=tuning.ROWS,
        key=key_facts(visit.site, found, message),
        again=again_of(id, records),
        parts=parts,
        folds=any(part.kind == "folded" for part in parts),
        events=timeline(found, records, fatal_runs(visit.site, id)),
        depth=DEPTH,
        unseen=unseen,
        wire=message_headers(visit.site, message) if message else (),
        form=ShownForm("move", TimeFields().values),
    )


def _waits(visit: Visit, records: Sequence[Row]) -> bool:
    """Whether the job is waiting according to the journal, in a queue too long for the pages to search."""
    steps = [row for row in records if row["kind"] != "action"]
    if not steps or steps[-1]["kind"] not in WAITING:
        return False
    queues = {row["name"]: row["pending"] for row in live_state(visit.site).snapshot().queues}
    return bool(queues.get(steps[-1]["queue"], 0) > 2 * DEPTH)


def _not_found(request: Request, job: FoundJob, known: JournalViews, journal: Progress, no_result: str) -> Response:
    """Show the page for an unknown id. It becomes the job's page once the job exists."""
    return page(
        request,
        "job_not_found.html",
        status=404,
        watched={"of": "job", "id": job.id},
        id=job.id,
        queue=job.queue,
        journal=journal,
        off=known.off,
        no_result=no_result,
        depth=DEPTH,
    )


def _returned(visit: Visit, id: str, kept: Record | None) -> tuple[PrettyJson | None, str]:
    """Return the job's result, or the reason why it has none. `kept` is the record that contains it, if available."""
    try:
        return pretty_json(job_result(visit, id, kept).value), ""
    except PalermoError as error:
        return None, str(error)
    except Refused as refused:
        return None, refused.detail


@router.post("/jobs/{id:palermo}/requeue", name="requeue_job")
def requeue(request: Request, visit: Visiting, id: str, queue: Annotated[str, Form()] = "") -> Response:
    done = actions.requeue(visit, id)
    to = path(request, "job", {"queue": queue}, id=id)
    return redirect(request, to, "Requeued. This page shows its new run." if done.over else _GOING_ON, level="done")


@router.post("/jobs/{id:palermo}/discard", name="discard_job")
def discard(request: Request, visit: Visiting, id: str) -> Response:
    done = actions.discard(visit, id)
    return redirect(request, path(request, "failures"), f"Discarded job {id}." if done.over else _GOING_ON)


@router.post("/jobs/{id:palermo}/cancel", name="cancel_job")
def cancel(request: Request, visit: Visiting, id: str, queue: Annotated[str, Form()] = "") -> Response:
    row = actions.cancel(visit, id)
    text = _CANCELLED.get(row["state"], f"{row['worker']} is stopping it.")
    return redirect(request, path(request, "job", {"queue": queue}, id=id), text)


# -- run again and edit


@router.post("/jobs/{id:palermo}/again", name="run_again")
def run_again(request: Request, visit: Visiting, id: str) -> Response:
    """Enqueue a finished job again, unchanged. If the journal lacks its exact arguments, show the form."""
    known = recorded_job(visit.site, id)
    if known.inexact:
        return RedirectResponse(path(request, "again_form", id=id), status_code=303)
    return _to_new(request, actions.run_again(visit, id, known))


@router.get("/jobs/{id:palermo}/again", name="again_form")
def again_form(request: Request, visit: Visiting, id: str) -> Response:
    """Show the form to enqueue a finished job again with other arguments, queue, priority or time."""
    known = recorded_job(visit.site, id)
    row, _ = recorded_as(visit.site, known)
    return _again_form(request, id, known).show(request, row, JobForm.of(row))


@router.post("/jobs/{id:palermo}/again/edited", name="run_edited")
def run_edited(request: Request, visit: Visiting, id: str, form: Annotated[JobForm, Depends(job_form)]) -> Response:
    """Enqueue a finished job again with the form's changes."""
    known = recorded_job(visit.site, id)
    row, bare = recorded_as(visit.site, known)
    try:
        done = actions.run_again(visit, id, known, **form.changes(row, bare, whole=bool(known.inexact)))
    except FORM_ERRORS as error:
        return _again_form(request, id, known).show(request, row, form, error)
    return _to_new(request, done)


@router.get("/jobs/{id:palermo}/edit", name="edit_job")
def edit_form(
    request: Request, visit: Visiting, id: str, queue: Annotated[str, Query(max_length=500)] = ""
) -> Response:
    """Show the form to change a waiting, scheduled or retrying job."""
    row, _ = _waiting(visit, id, queue)
    return _edit_form(request, row).show(request, row, JobForm.of(row))


@router.post("/jobs/{id:palermo}/edit", name="save_job")
def save(
    request: Request,
    visit: Visiting,
    id: str,
    form: Annotated[JobForm, Depends(job_form)],
    in_queue: Annotated[str, Query(alias="queue", max_length=500)] = "",
) -> Response:
    """Change a waiting job with the form's values."""
    row = missing_row(id, in_queue)
    try:
        row, bare = _waiting(visit, id, in_queue)
        done = actions.edit(visit, id, **form.changes(row, bare), waits_in=row["queue"])
    except (*FORM_ERRORS, NotFound) as error:
        return _edit_form(request, row).show(request, row, form, error)
    return redirect(request, path(request, "job", {"queue": done.queue}, id=id), "Changed 1 job.")


def _waiting(visit: Visit, id: str, queue: str) -> tuple[Row, Row]:
    """Return the row of a waiting job, masked and unmasked. Raises NotFound."""
    found = find_job(visit.site, id, queue)
    if found.bare is None or found.row is None or found.state not in ("pending", "scheduled", "retrying"):
        text = (
            f"job {id[:80]!r} was not found among the waiting jobs. It may be running, have ended, or be in the middle"
            " of a long queue."
        )
        raise audit.gone(visit, id, NotFound(text))
    return found.row, found.bare


def _to_new(request: Request, done: Job) -> Response:
    return redirect(request, path(request, "job", {"queue": done.queue}, id=done.id), "Enqueued again as this new job.")


def _again_form(request: Request, id: str, known: RecordedJob) -> FormPage:
    why = REASONS.get(known.inexact, "")
    return FormPage(
        title="Run again",
        button="Enqueue",
        note=f"{why[0].upper()}{why[1:]}. Check and complete both fields." if why else "",
        section="history",
        crumb="Job",
        action=path(request, "run_edited", id=id),
        back=path(request, "job", id=id),
        time_hint="now",
    )


def _edit_form(request: Request, row: Row) -> FormPage:
    queue = {"queue": row["queue"]}
    waits = row["state"] == "pending"
    return FormPage(
        title="Edit",
        button="Save",
        section="queues" if waits else "retries" if row["state"] == "retrying" else "scheduled",
        crumb="Job",
        action=path(request, "save_job", queue, id=row["id"]),
        back=path(request, "job", queue, id=row["id"]),
        time_hint="now" if waits else "unchanged",
    )


# -- the API

api = Router(prefix="/jobs", tags=["jobs"])


if TYPE_CHECKING:
    JobStatusRow = dict[str, Any]
else:
    JobStatusRow = create_model(
        "JobStatusRow",
        __doc__="The attributes of palermo.JobStatus, with instants as ISO 8601.",
        **{each.name: (Instant | None if each.name in INSTANTS else each.type, ...) for each in fields(JobStatus)},
    )


class JobResult(BaseModel):
    """The return value of a job."""

    id: str
    job: str
    result: Any = Field(description="The value as JSON, with redacted values masked.")


#: Strict, because true is not a duration.
Seconds = Annotated[float, Field(strict=True, gt=0)]
Number = Annotated[float, Field(strict=True)]
Count = Annotated[int, Field(strict=True)]


def _type_of(kind: Kind) -> Any:
    """Return the JSON type of an option."""
    match kind:
        case UniqueFor(words):
            return Literal[words] | Seconds
        case Choice(words):
            return Literal[words]
        case option_kinds.Seconds():
            return Seconds
        case option_kinds.Count():
            return Count
        case option_kinds.Number():
            return Number
        case Flag():
            return bool
        case Headers():
            return dict[str, str | int | float | bool]
        case _:
            return str


def option_fields(names: Iterable[str]) -> dict[str, Any]:
    """Return optional fields for these job options, for `create_model`."""
    rows = ((name, OPTIONS[name]) for name in names)
    return {name: (_type_of(row.kind) | None, Field(default=None, description=row.help)) for name, row in rows}


if TYPE_CHECKING:
    _Options = BaseModel
else:
    #: The options of `.options()`, except those that NewJob declares itself.
    _Options = create_model(
        "_Options",
        **option_fields(name for name in ENQUEUE_OPTIONS if name not in ("queue", "id", "delay", "run_at")),
    )


class NewJob(_Options):
    """A job to enqueue. Its options are as in `.options()`; a missing option has its declared value."""

    model_config = ConfigDict(extra="forbid")

    job: str = Field(min_length=1, max_length=255, description="Its wire name, such as shop.tasks.resize.")
    args: list[Any] = Field(default_factory=list)
    kwargs: dict[str, Any] = Field(default_factory=dict)
    queue: str | None = Field(default=None, description="By default the job's own, or the default queue.")
    id: str | None = Field(default=None, description="By default a new one.")
    delay: Seconds | None = Field(default=None, description="Seconds from now.")
    run_at: str | Number | None = Field(default=None, description="ISO 8601 with a time zone, or Unix seconds.")


class EnqueuedJob(Enqueued):
    """A stored job, possibly with a warning."""

    conflict: Conflict | None = Field(description="The job that already had its key.")
    note: str | None = Field(description="The consequences, if its code is not imported here.")


class JobChanges(BaseModel):
    """Changes to a job. Missing values are not changed."""

    model_config = ConfigDict(extra="forbid")

    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None
    queue: str | None = None
    priority: Count | None = Field(default=None, description=f"From 0 to {MAX_PRIORITY}; the highest runs first.")
    run_at: str | Number | None = Field(default=None, description="ISO 8601 with a time zone, or Unix seconds.")
    unserved: bool = Field(default=False, description=UNSERVED_MEANS)

    def given(self) -> dict[str, Any]:
        """Return the changes as arguments for the inspector."""
        at = None if self.run_at is None else instant_of(self.run_at, "run_at")
        return {**self.model_dump(exclude={"run_at"}), "at": at}


class Cancelled(BaseModel):
    """The result of cancelling a job."""

    id: str
    state: str = Field(description="marked, cancelled, cancelling, done, failed or interrupted.")
    worker: str | None
    job: str | None
    queue: str | None


@api.post("", status_code=201)
def api_enqueue(visit: Visiting, new: NewJob) -> EnqueuedJob:
    """Enqueue a job. Responds once the broker has stored it.

    If the job's code is imported here (`palermo web MODULE`), its arguments are checked against its signature, its
    hooks run, and its declared options apply. Role: operator.
    """
    options: EnqueueOptions = new.model_dump(exclude={"job", "args", "kwargs"}, exclude_none=True)  # type: ignore[assignment]
    if new.run_at is not None:
        options["run_at"] = instant_of(new.run_at, "run_at")
    job = actions.enqueue(visit, new.job, new.args, new.kwargs, **options)
    served = live_state(visit.site).is_served
    note = plain_note(new.job, options, visit.site.client.unique_job, served, job.queue)
    return EnqueuedJob(id=job.id, job=job.job, queue=job.queue, conflict=job.conflict, note=note or None)


@api.get("/{id:palermo}")
def api_job(visit: Visiting, id: str, queue: str = "") -> JobRow:
    """A running, waiting or failed job.

    Waiting jobs are searched for among the first and last jobs of `queue`, or of each queue.
    """
    return job_row(visit, id, queue=queue)


@api.get("/{id:palermo}/status")
def api_status(visit: Visiting, id: str) -> JobStatusRow:
    """The status of a job, from the broker and the journal.

    It has a reason if neither contains the job (`unknown`), or if no worker takes jobs from the queue where it waits.
    """
    return dict(job_status(visit, id))


@api.get("/{id:palermo}/result")
def api_result(visit: Visiting, id: str) -> JobResult:
    """The result of a finished job. 409 if the job isn't done or its result isn't kept. Does not wait."""
    found = job_result(visit, id)
    return JobResult(id=id, job=found.job, result=found.value)


@api.post("/{id:palermo}/cancel")
def api_cancel(visit: Visiting, id: str) -> Cancelled:
    """Cancel a waiting or running job. Failed jobs are unchanged. Role: operator."""
    return Cancelled.model_validate(actions.cancel(visit, id))


@api.post("/{id:palermo}/again", status_code=201)
def api_run_again(visit: Visiting, id: str, changes: JobChanges) -> Enqueued:
    """Enqueue a finished job again, as a new job with the recorded arguments and options.

    422 if the journal lacks the exact arguments, and `args` and `kwargs` aren't given. Role: operator.
    """
    done = actions.run_again(visit, id, recorded_job(visit.site, id), **changes.given())
    return Enqueued(id=done.id, job=done.job, queue=done.queue)


@api.post("/{id:palermo}/edit")
def api_edit(visit: Visiting, id: str, changes: JobChanges) -> Enqueued:
    """Change a waiting, scheduled or retrying job. It keeps its id. Role: operator."""
    done = actions.edit(visit, id, **changes.given())
    return Enqueued(id=done.id, job=done.job, queue=done.queue)
