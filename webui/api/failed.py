"""The API for failed jobs: list, requeue and discard them, and follow these long operations."""

import math
from typing import Annotated, Any, Literal

from fastapi import Body, Depends, Response
from pydantic import BaseModel, ConfigDict, Field

from palermo.contract.row_types import JobRow
from palermo.contract.rows import iso_instant
from palermo.views.filter import JobFilter
from palermo.webui import actions, tuning
from palermo.webui.api.rows import PROBLEM_RESPONSES, UNSERVED_MEANS, Chosen, Id, PageLimit, PageNumber, Rows, Text
from palermo.webui.failed.failed_jobs import failed_jobs
from palermo.webui.failed.operations import Operation
from palermo.webui.failed.operations import operations as known_operations
from palermo.webui.filters import asked_filter
from palermo.webui.site import Visiting
from palermo.webui.threads import Router

router = Router(prefix="/failed", tags=["failed"], responses=PROBLEM_RESPONSES)
operations_router = Router(prefix="/operations", tags=["operations"], responses=PROBLEM_RESPONSES)


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

    args: list[Any] | None = Field(default=None, description="Other positional arguments.")
    kwargs: dict[str, Any] | None = Field(default=None, description="Other named arguments.")
    queue: str | None = Field(default=None, description="A queue other than its own.")
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


def asked(
    filter: Text = None,
    queue: Text = None,
    job: Text = None,
    error: Text = None,
    text: Text = None,
    since: Text = None,
    until: Text = None,
    group: Text = None,
    requeued: bool | None = None,
    worker: Text = None,
    tenant: Text = None,
) -> JobFilter:
    """The filter of a request: a text such as `error:Timeout since:1h "no answer"`, or separate conditions."""
    given = {
        "filter": filter,
        "queue": queue,
        "job": job,
        "error": error,
        "text": text,
        "since": since,
        "until": until,
        "group": group,
    }
    return asked_filter({**given, "requeued": requeued, "worker": worker, "tenant": tenant})


Asked = Annotated[JobFilter, Depends(asked)]


@router.get("", name="api_failed")
def failed(
    visit: Visiting, filter: Asked, page: PageNumber = 1, limit: PageLimit = 100, newest: bool = False
) -> Rows[JobRow]:
    """Failed jobs, oldest failure first, or newest first with `newest`."""
    found = failed_jobs(visit.site)
    found.wait_until_read()
    index = found.view.index
    rows = index.page(filter, offset=(page - 1) * limit, limit=limit, newest=newest)
    shown = [found.row(each.message) for each in rows]
    return Rows[JobRow].of(shown, total=index.count(filter), page=page, limit=limit)


@router.get("/groups", name="api_failed_groups")
def groups(visit: Visiting, filter: Asked, page: PageNumber = 1, limit: PageLimit = 100) -> Groups:
    """Groups of failed jobs with the same job, exception and place in the code, largest group first."""
    found = failed_jobs(visit.site)
    found.wait_until_read()
    rows, total = found.view.index.groups(filter, offset=(page - 1) * limit, limit=limit, parts=tuning.PARTS)
    shown = [
        Group(
            fingerprint=each.fingerprint,
            count=each.count,
            job=each.sample.job or None,
            error=each.sample.failure.exception_class if each.sample.failure else "",
            message=each.sample.failure.message if each.sample.failure else "",
            first_seen=iso_instant(each.first),
            last_seen=iso_instant(each.last),
            id=each.sample.id,
            history=list(each.history),
        )
        for each in rows
    ]
    return Groups.of(shown, total=total, page=page, limit=limit)


@router.post("/requeue", responses=_BEGUN, name="api_failed_requeue_many")
def requeue_many(visit: Visiting, chosen: ChosenForRequeue, response: Response) -> OperationRow:
    """Run failed jobs again: the jobs with these ids, or all that match a filter ({} for all)."""
    return _row(actions.requeue(visit, chosen.meant(), queue=chosen.queue, unserved=chosen.unserved), response)


@router.post("/discard", responses=_BEGUN, name="api_failed_discard_many")
def discard_many(visit: Visiting, chosen: Chosen, response: Response) -> OperationRow:
    """Discard failed jobs: the jobs with these ids, or all that match a filter ({} for all)."""
    return _row(actions.discard(visit, chosen.meant()), response)


@router.get("/{id:palermo}", name="api_failed_job")
def failed_job(visit: Visiting, id: Id) -> JobRow:
    """One failed job."""
    found = failed_jobs(visit.site)
    found.view.update(visit.site.client.settings.publish_timeout)
    return found.row(found.message(id))


@router.post("/{id:palermo}/requeue", responses=_BEGUN, name="api_failed_requeue")
def requeue(
    visit: Visiting, id: Id, response: Response, change: Annotated[Change | None, Body()] = None
) -> OperationRow:
    """Run one failed job again, optionally with other arguments or in another queue."""
    change = change or Change()
    return _row(actions.requeue(visit, id, **change.model_dump()), response)


@router.delete("/{id:palermo}", responses=_BEGUN, name="api_failed_discard")
def discard(visit: Visiting, id: Id, response: Response) -> OperationRow:
    """Discard one failed job."""
    return _row(actions.discard(visit, id), response)


@operations_router.get("", name="api_operations")
def operations(visit: Visiting) -> Operations:
    """The running and waiting operations."""
    return Operations.whole([_shown(each) for each in known_operations(visit.site).running()])


@operations_router.get("/{id:palermo}", name="api_operation")
def operation(visit: Visiting, id: Id) -> OperationRow:
    """The progress or outcome of an operation."""
    return _shown(known_operations(visit.site).get(id))


@operations_router.post("/{id:palermo}/stop", name="api_stop_operation")
def stop(visit: Visiting, id: Id) -> OperationRow:
    """Stop an operation before its next job. The remaining jobs stay unchanged."""
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
