"""Failed jobs: looking at them, running them again, throwing them away."""

import math
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Path, Query, Response

from palermo.filters import FailedFilter
from palermo.rows import instant
from palermo.verdicts import Which
from palermo.webui import actions
from palermo.webui.api.failed_rows import (
    Change,
    Chosen,
    ChosenForRequeue,
    Group,
    Groups,
    OperationRow,
    Operations,
)
from palermo.webui.api.rows import PROBLEM_RESPONSES, JobRow, Jobs
from palermo.webui.errors import Refused
from palermo.webui.failed import failures
from palermo.webui.failed.asking import filter_of
from palermo.webui.failed.operations import Operation
from palermo.webui.looks import MAX_LIMIT
from palermo.webui.site import Visiting

router = APIRouter(prefix="/failed", tags=["failed"], responses=PROBLEM_RESPONSES)
operations_router = APIRouter(prefix="/operations", tags=["operations"], responses=PROBLEM_RESPONSES)

#: Parts of the time that a group's history is told in.
PARTS = 24

_LONG = Query(max_length=1_000)

Text = Annotated[str | None, _LONG]
Number = Annotated[int, Query(ge=1, le=1_000_000_000)]
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT)]
Id = Annotated[str, Path(max_length=1_000)]

#: Answered with 200 when it is over, and with 202 when it goes on.
_BEGUN: dict[int | str, dict[str, Any]] = {
    202: {"model": OperationRow, "description": "It goes on: ask `/api/operations/{id}` how it fares."}
}


def asked(
    queue: Text = None,
    job: Text = None,
    error: Text = None,
    text: Text = None,
    since: Text = None,
    until: Text = None,
    group: Text = None,
) -> FailedFilter:
    """Filters: names may hold `*` and `?`; times are durations ago (`2h`) or instants (`2026-12-01T09:00Z`)."""
    given = {"queue": queue, "job": job, "error": error, "text": text, "since": since, "until": until, "group": group}
    return filter_of(given)


Asked = Annotated[FailedFilter, Depends(asked)]


@router.get("", name="api_failed")
def failed(visit: Visiting, filter: Asked, page: Number = 1, limit: Limit = 100, newest: bool = False) -> Jobs:
    """Failed jobs, the one that failed first on top; `newest` turns them round."""
    found = failures(visit.site)
    found.ready()
    index = found.view.index
    rows = index.page(filter, offset=(page - 1) * limit, limit=limit, newest=newest)
    return Jobs.model_validate(
        {
            "rows": [found.row(each.message) for each in rows],
            "total": index.count(filter),
            "page": page,
            "limit": limit,
        }
    )


@router.get("/groups", name="api_failed_groups")
def groups(visit: Visiting, filter: Asked, page: Number = 1, limit: Limit = 100) -> Groups:
    """Failed jobs of one kind together: same job, same exception, same place in the code; the largest group first."""
    found = failures(visit.site)
    found.ready()
    rows, total = found.view.index.groups(filter, offset=(page - 1) * limit, limit=limit, parts=PARTS)
    shown = [
        Group(
            fingerprint=each.fingerprint,
            count=each.count,
            job=each.sample.job or None,
            error=each.sample.failure.exception_class if each.sample.failure else "",
            message=each.sample.failure.message if each.sample.failure else "",
            first_seen=instant(each.first),
            last_seen=instant(each.last),
            id=each.sample.id,
            history=list(each.history),
        )
        for each in rows
    ]
    return Groups(rows=shown, total=total, page=page, limit=limit)


@router.post("/requeue", responses=_BEGUN, name="api_failed_requeue_many")
def requeue_many(visit: Visiting, chosen: ChosenForRequeue, response: Response) -> OperationRow:
    """Run failed jobs again: those named, or all that a filter matches ({} for all)."""
    return _row(actions.requeue(visit, _which(chosen), queue=chosen.queue), response)


@router.post("/discard", responses=_BEGUN, name="api_failed_discard_many")
def discard_many(visit: Visiting, chosen: Chosen, response: Response) -> OperationRow:
    """Throw failed jobs away: those named, or all that a filter matches ({} for all)."""
    return _row(actions.discard(visit, _which(chosen)), response)


@router.get("/{id:palermo}", name="api_failed_job")
def failed_job(visit: Visiting, id: Id) -> JobRow:
    """One failed job."""
    found = failures(visit.site)
    found.view.look(visit.site.client.settings.publish_timeout)
    return JobRow.model_validate(found.row(found.message(id)))


@router.post("/{id:palermo}/requeue", responses=_BEGUN, name="api_failed_requeue")
def requeue(
    visit: Visiting, id: Id, response: Response, change: Annotated[Change | None, Body()] = None
) -> OperationRow:
    """Run one failed job again, with other arguments or in another queue if some are given."""
    change = change or Change()
    operation = actions.requeue(visit, id, args=change.args, kwargs=change.kwargs, queue=change.queue)
    return _row(operation, response)


@router.delete("/{id:palermo}", responses=_BEGUN, name="api_failed_discard")
def discard(visit: Visiting, id: Id, response: Response) -> OperationRow:
    """Throw one failed job away."""
    return _row(actions.discard(visit, id), response)


@operations_router.get("", name="api_operations")
def operations(visit: Visiting) -> Operations:
    """The long commands that are under way."""
    rows = [_shown(each) for each in failures(visit.site).operations.running()]
    return Operations(rows=rows, total=len(rows), page=1, limit=len(rows))


@operations_router.get("/{id:palermo}", name="api_operation")
def operation(visit: Visiting, id: Id) -> OperationRow:
    """How a long command fares, or what it came to."""
    return _shown(failures(visit.site).operations.get(id))


@operations_router.post("/{id:palermo}/stop", name="api_stop_operation")
def stop(visit: Visiting, id: Id) -> OperationRow:
    """End it before its next job; those it has not come to stay as they are."""
    operation = actions.stop_operation(visit, id)
    operation.wait(5)
    return _shown(operation)


def _which(chosen: Chosen) -> Which:
    if chosen.ids is not None and chosen.filter is None:
        return chosen.ids
    if chosen.filter is not None and chosen.ids is None:
        return filter_of(chosen.filter.model_dump())
    raise Refused(422, 'say which jobs: {"ids": ["…"]}, or {"filter": {}} for all, and not both.')


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
        asked_at=instant(math.floor(operation.asked_at)) or "",
        ended_at=instant(math.floor(operation.ended_at)) if operation.ended_at else None,
        outcome=operation.outcome() if operation.over else None,
        problems=[f"{type(problem).__name__}: {problem}" for problem in operation.problems],
    )
