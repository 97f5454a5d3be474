"""The page of workflows, and the page of one with its graph, steps and actions."""

import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import Form, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from palermo.contract.row_types import Instant, RunErrorRow
from palermo.contract.rows import Row
from palermo.core.text import count, some_of
from palermo.core.workflow import workflows_above
from palermo.errors import NotFound, PalermoError, UsageError
from palermo.views.filter import JobFilter
from palermo.webui import actions, tuning
from palermo.webui.api.rows import Rows
from palermo.webui.filters import (
    LISTED,
    ApiPage,
    PageNumber,
    Paging,
    conditions,
    known_names,
    list_filter,
)
from palermo.webui.render.formats import element_key, pretty_json, readable_instants
from palermo.webui.render.rendering import listed, page, path, redirect
from palermo.webui.render.workflow_graph import BOX, HIGH, layers_of, workflow_picture
from palermo.webui.site import Refused, Visit, Visiting
from palermo.webui.state.journal_views import journal_views
from palermo.webui.state.workflows import workflow_detail, workflow_rows
from palermo.webui.threads import Router

router = Router()

#: Number of steps in the graph, or on a page of the list.
STEPS = 300

#: Maximum number of characters of an output in the list of steps.
_OUTPUT = 200

Typed = Annotated[str, Form(max_length=65_536)]
Inside = Annotated[str, Query(max_length=1_000)]


@router.get("/workflows", name="workflows", dependencies=[known_names(*LISTED)])
def workflows(request: Request, visit: Visiting, number: PageNumber = 1) -> Response:
    """Show running, failed and finished workflows, newest first."""
    asked = list_filter(request.query_params)
    state = journal_views(visit.site).wait_until_read()
    paging = Paging(number)
    listing = workflow_rows(visit, asked.filter, paging)
    return page(
        request,
        "workflows.html",
        watched={"of": "history"},
        asked_for=asked,
        journal=state,
        off=journal_views(visit.site).off,
        **listed(listing, paging, asked.query),
    )


@router.get("/workflows/{id:palermo}", name="workflow", dependencies=[known_names()])
def workflow(request: Request, visit: Visiting, id: str, inside: Inside = "", number: PageNumber = 1) -> Response:
    """Show one workflow, or only the steps that one of its steps added."""
    try:
        found = workflow_detail(visit, id, inside)
    except NotFound as error:
        to = _around(request, visit, id)
        if to is None:
            raise Refused(404, str(error)) from None
        return RedirectResponse(to, status_code=307)
    return _page(request, visit, found, number)


def _around(request: Request, visit: Visit, id: str) -> str | None:
    """Return the page of the workflow that contains this step, since a step that adds steps isn't a workflow itself."""
    for root, step in workflows_above(id):
        with suppress(NotFound):
            workflow_detail(visit, root, step)
            return path(request, "workflow", {"inside": step}, id=root)
    return None


def _page(request: Request, visit: Visit, found: Row, number: int = 1, **more: Any) -> Response:
    steps, layers = found["steps"], layers_of(found["steps"])
    picture = workflow_picture(steps)
    if picture is None:
        steps = sorted(steps, key=lambda row: layers[row["name"]])
    shown = [_shown(row, layers[row["name"]]) for row in steps[(number - 1) * STEPS : number * STEPS]]
    queues = {row["queue"] for row in steps if row["queue"]}
    query = {"inside": found["inside"]}
    return page(
        request,
        "workflow.html",
        **{
            "workflow": found,
            "picture": picture if number == 1 else None,
            "box": BOX,
            "high": HIGH,
            "steps": shown,
            "links": _links(request, found["id"], steps),
            "queues": {name: path(request, "queue", name=name) for name in queues},
            "number": number,
            "limit": STEPS,
            "at": path(request, "workflow", query, id=found["id"]) + ("&page=" if found["inside"] else "?page="),
            "most_members": tuning.SOME,
            "problem": "",
            "typed": {"name": "", "value": ""},
            **more,
        },
    )


#: The label and look of each state of a step.
_STATES = {
    "pending": ("in queue", ""),
    "working": ("running", "busy"),
    "expanded": ("running inside", "busy"),
    "done": ("done", "good"),
    "failed": ("failed", "bad"),
    "discarded": ("discarded", "warn"),
    "cancelled": ("cancelled", "warn"),
}

#: The text of each condition.
_WHEN = {"done": "", "failed": " (if one failed)", "over": " (however they ended)"}


def _shown(row: Row, layer: int) -> Row:
    """Return a step's row with all values needed by the template, prepared here because up to 300 are shown."""
    output = None if row["output"] is None else pretty_json(row["output"]).text
    cut = output is not None and len(output) > _OUTPUT
    word, look = _STATES.get(row["state"], (row["state"], ""))
    return {
        **row,
        "short": row["name"].rpartition("/")[2],
        "layer": layer + 1,
        "key": element_key(row["name"]),
        "word": "waits for signal" if row["kind"] == "signal" and row["state"] == "pending" else word,
        "look": look,
        "comes_after": "; ".join(some_of(one["steps"]) + _WHEN[one["when"]] for one in row["after"]),
        "why": "" if row["why"] in _shown_elsewhere(row) else readable_instants(row["why"]),
        "output": f"{output[:_OUTPUT]}…" if output is not None and cut else output,
    }


def _links(request: Request, id: str, rows: Iterable[Row]) -> dict[str, str]:
    """Return each step's link: to the steps that it added, to its job, or else to its row in the table."""
    # Path templates with a placeholder for the id.
    inside, job = path(request, "workflow", {"inside": "-"}, id=id)[:-1], path(request, "job", id="-")[:-1]
    return {row["name"]: _link(row, inside, job) for row in rows}


def _link(row: Row, inside: str, job: str) -> str:
    if row["kind"] == "workflow":
        return inside + quote(row["name"], safe="")
    if row["id"] is not None and row["state"] not in ("waiting", "skipped"):
        return job + quote(row["id"], safe="")
    return f"#step-{element_key(row['name'])}"


def _shown_elsewhere(row: Row) -> tuple[str, ...]:
    """Return the reasons that other columns of the row already show."""
    names = list(dict.fromkeys(name for condition in row["after"] for name in condition["steps"]))
    return f"comes after {some_of(names)}", "waits for its signal", f"in queue {row['queue']}"


@router.post("/workflows/{id:palermo}/retry", name="retry_workflow")
def retry(request: Request, visit: Visiting, id: str) -> Response:
    """Requeue a workflow's failed jobs."""
    try:
        taken = actions.retry_workflow(visit, id)
    except (NotFound, UsageError) as error:
        return redirect(request, path(request, "workflow", id=id), str(error), level="error")
    return redirect(request, path(request, "workflow", id=id), f"Requeued {count(len(taken), 'job')}.")


@router.post("/workflows/{id:palermo}/cancel", name="cancel_workflow")
def cancel(request: Request, visit: Visiting, id: str) -> Response:
    """Cancel a workflow with all its steps."""
    actions.cancel(visit, id)
    return redirect(request, path(request, "workflow", id=id), "Cancelled. Steps that clean up still run.")


@router.post("/workflows/{id:palermo}/signal", name="signal_workflow")
def signal(request: Request, visit: Visiting, id: str, name: Typed, value: Typed = "") -> Response:
    """Send a signal to a workflow, with a JSON value."""
    try:
        sent = json.loads(value) if value.strip() else None
    except ValueError as error:
        problem = f"The value is not valid JSON: {error}. Write text in quotes."
        found = workflow_detail(visit, id)
        here = path(request, "workflow", id=id)
        typed = {"name": name, "value": value}
        return _page(request, visit, found, here=here, asked="signal", problem=problem, typed=typed, status=422)
    try:
        note = actions.send_signal(visit, id, name.strip(), sent)
    except PalermoError as error:
        return redirect(request, path(request, "workflow", id=id), str(error), level="error")
    return redirect(request, path(request, "workflow", id=id), f"Sent {name.strip()}. {note}".rstrip())


# -- the API

api = Router(prefix="/workflows", tags=["workflows"])


class WorkflowRow(BaseModel):
    """One workflow."""

    id: str = Field(description="The id of its job.")
    job: str = Field(description="The wire name of its job.")
    queue: str
    state: Literal["running", "failed", "done", "cancelled"] = Field(description="A failed workflow can be retried.")
    since: Instant | None = Field(description="When it added its first steps.")
    ended_at: Instant | None = Field(description="Null while it runs or can be retried.")
    done: int = Field(description="Number of its steps that are done. Each member of a map counts as one.")
    failed: int = Field(description="Number of its steps that failed.")
    total: int = Field(description="Number of its steps, with those that steps added. They replace the step itself.")
    jobs: int = Field(description="Number of its jobs that are waiting or running.")
    waits_for: list[str] = Field(description="The signals that it waits for.")
    left_out: int = Field(description="Number of steps of a large workflow that the journal does not have.")


class Workflows(Rows[WorkflowRow]):
    """A page of workflows."""


class StepCondition(BaseModel):
    """How earlier steps must have ended."""

    steps: list[str]
    when: Literal["done", "failed", "over"]


class RunningMember(BaseModel):
    """A running member of a map."""

    id: str
    worker: str


class StepRow(BaseModel):
    """One step."""

    name: str = Field(description="Its name, after the steps that contain it: `pay/charge`.")
    state: Literal[
        "waiting", "pending", "working", "expanded", "done", "failed", "discarded", "cancelled", "skipped"
    ] = Field(description="waiting: a step before it has not ended. expanded: steps that it added have not ended.")
    kind: Literal["job", "map", "signal", "workflow"]
    id: str | None = Field(description="The id of its job; null for a map or a signal.")
    job: str | None
    queue: str | None
    after: list[StepCondition]
    why: str = Field(description="Why it has not ended, or did not run.")
    over: int | None = Field(description="For a map, the number of members that have ended.")
    failed: int | None = Field(description="For a map, the number of members that failed.")
    running: int | None = Field(description="For a map, the number of running members.")
    out: int | None = Field(description="For a map, the number of waiting or running members.")
    total: int | None = Field(description="For a map, the number of members.")
    output: Any = Field(description="Its result, if a later step takes it and it is short and can be decoded.")
    attempt: int | None
    took: float | None = Field(description="Seconds that its last run took.")
    ended_at: Instant | None
    error: RunErrorRow | None
    jobs: list[RunningMember] = Field(description="Some of the running members.")
    inner: list[str] = Field(description="Some of the members that added steps, for `inside`.")


class WorkflowDetail(WorkflowRow):
    """One workflow with its steps."""

    inside: str
    steps: list[StepRow]
    cleaned_up: list[str] = Field(description='The steps with `when="failed"` that have run.')


class Retried(BaseModel):
    """The jobs that run again."""

    requeued: list[str]


class Signal(BaseModel):
    """A signal."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=100)
    value: Any = None


class Sent(BaseModel):
    """The signal that was sent."""

    sent: str
    note: str = Field(description="Why its value is ignored, or that no step waits for it now; otherwise empty.")


@api.get("")
def api_workflows(
    visit: Visiting,
    filter: Annotated[JobFilter, conditions("filter", "queue", "job", "state", "text", "since", "until")],
    paging: ApiPage,
) -> Workflows:
    """Running and failed workflows, newest first, followed by finished ones in the journal."""
    return Workflows.of(workflow_rows(visit, filter, paging), paging)


@api.get("/{id:palermo}")
def api_workflow(
    visit: Visiting,
    id: str,
    inside: Annotated[str, Query(max_length=1_000, description="A step whose added steps to return.")] = "",
) -> WorkflowDetail:
    """One workflow with its steps, in the order in which they were added."""
    return WorkflowDetail.model_validate(workflow_detail(visit, id, inside))


@api.post("/{id:palermo}/retry")
def api_retry_workflow(visit: Visiting, id: str) -> Retried:
    """Requeue the failed jobs of a workflow. The steps after them run again. Role: operator.

    Steps that have run because of the failure are named in `cleaned_up`; their effects are not reverted.
    """
    return Retried(requeued=[job.id for job in actions.retry_workflow(visit, id)])


@api.post("/{id:palermo}/signal")
def api_signal_workflow(visit: Visiting, id: str, signal: Signal) -> Sent:
    """Send a signal to a workflow. A second one with the same name has no effect. Role: operator."""
    return Sent(sent=signal.name, note=actions.send_signal(visit, id, signal.name, signal.value))
