"""The API for workflows: list and show them, retry failed steps, send signals. To cancel one, use the API for jobs."""

from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from palermo.contract.row_types import Instant, RunErrorRow
from palermo.webui import workflow_actions
from palermo.webui.api.rows import PROBLEM_RESPONSES, PageLimit, PageNumber, Rows, Text
from palermo.webui.filters import asked_filter
from palermo.webui.site import Visiting
from palermo.webui.state.workflows import workflow_detail, workflow_rows
from palermo.webui.threads import Router

router = Router(prefix="/workflows", tags=["workflows"], responses=PROBLEM_RESPONSES)


class WorkflowRow(BaseModel):
    """One workflow."""

    id: str = Field(description="The id of its job.")
    job: str = Field(description="The wire name of its job.")
    queue: str
    state: Literal["running", "failed", "done", "cancelled"] = Field(description="A failed workflow can be retried.")
    since: Instant | None = Field(description="When it added its first steps.")
    ended_at: Instant | None = Field(description="Null while it runs or can be retried.")
    done: int = Field(description="Number of its own steps that are done.")
    failed: int = Field(description="Number of its own steps that failed.")
    total: int = Field(description="Number of its own steps, without those that steps added.")
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
    over: int | None = Field(description="Of a map: number of members that have ended.")
    failed: int | None = Field(description="Of a map: number of members that failed.")
    running: int | None = Field(description="Of a map: number of running members.")
    out: int | None = Field(description="Of a map: number of waiting or running members.")
    total: int | None = Field(description="Of a map: number of members.")
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


@router.get("", name="api_workflows")
def workflows(
    visit: Visiting,
    filter: Text = None,
    queue: Text = None,
    job: Text = None,
    state: Text = None,
    text: Text = None,
    since: Text = None,
    until: Text = None,
    page: PageNumber = 1,
    limit: PageLimit = 100,
) -> Workflows:
    """Running and failed workflows, newest first, followed by finished ones in the journal."""
    given = {"filter": filter, "queue": queue, "job": job, "state": state, "text": text, "since": since, "until": until}
    listing = workflow_rows(visit, asked_filter(given), page=page, limit=limit)
    rows = [WorkflowRow.model_validate(row) for row in listing.rows]
    return Workflows.of(rows, total=listing.total, page=page, limit=limit)


@router.get("/{id:palermo}", name="api_workflow")
def workflow(
    visit: Visiting,
    id: str,
    inside: Annotated[str, Query(max_length=1_000, description="A step whose added steps to return.")] = "",
) -> WorkflowDetail:
    """One workflow with its steps, in the order in which they were added."""
    return WorkflowDetail.model_validate(workflow_detail(visit, id, inside))


@router.post("/{id:palermo}/retry", name="api_retry_workflow")
def retry(visit: Visiting, id: str) -> Retried:
    """Requeue the failed jobs of a workflow. The steps after them run again. Role: operator.

    Steps that have run because of the failure are named in `cleaned_up`; their effects are not reverted.
    """
    return Retried(requeued=[job.id for job in workflow_actions.retry(visit, id)])


@router.post("/{id:palermo}/signal", name="api_signal_workflow")
def signal(visit: Visiting, id: str, signal: Signal) -> Sent:
    """Send a signal to a workflow. A second one with the same name has no effect. Role: operator."""
    workflow_actions.signal(visit, id, signal.name, signal.value)
    return Sent(sent=signal.name)
