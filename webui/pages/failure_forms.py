"""The pages that requeue and discard failed jobs: they show the number of jobs, ask, act, and tell the outcome."""

import json
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Form, Query
from starlette.requests import Request
from starlette.responses import Response

from palermo.contract.rows import iso_instant
from palermo.errors import SerializationError, UsageError
from palermo.inspector.failed_filter import FailedFilter
from palermo.inspector.judges import Which
from palermo.webui import actions
from palermo.webui.base.errors import Refused
from palermo.webui.base.filters import FAILED, failed_filter, failed_query, requested_failed_filter
from palermo.webui.base.site import Visiting
from palermo.webui.failed.failed_jobs import failed_jobs
from palermo.webui.failed.operations import Operation
from palermo.webui.pages.failures import chosen_filter
from palermo.webui.render.formats import plural
from palermo.webui.render.rendering import page, path, redirect
from palermo.webui.security.masks import unmasked

router = APIRouter()

#: Above this number of jobs the user has to type the number.
UNTYPED = 1_000

#: Seconds that a form waits for its command, before it redirects to the page of the command's progress.
PATIENCE = 1.0

Action = Annotated[str, Query(pattern="^(requeue|discard)$")]


@router.get("/failures/confirm", name="confirm_failures")
def confirm(
    request: Request,
    visit: Visiting,
    act: Action,
    id: Annotated[list[str] | None, Query(max_length=500)] = None,
    every: Annotated[str, Query(alias="all", max_length=5)] = "",
) -> Response:
    """Show how many jobs are meant, and ask."""
    wanted = requested_failed_filter(request.query_params)
    meant: dict[str, Any] = {"ids": [], "filter": "", "number": 0}
    if every:
        found = failed_jobs(visit.site)
        found.wait_until_read()
        filter = chosen_filter(request, visit)
        meant |= {"filter": failed_query(filter), "number": found.view.index.count(filter)}
    elif id:
        ids = list(dict.fromkeys(id))
        meant |= {"ids": ids, "number": len(ids)}
    if not meant["number"]:
        text = "No failed job matches that any more." if every else "Select some jobs first."
        return redirect(request, _back(request, wanted.query), text, level="note")
    return page(
        request,
        "failures_confirm.html",
        act=act,
        meant=meant,
        typed=f"{meant['number']}" if meant["number"] > UNTYPED else "",
        back=_back(request, wanted.query),
        query=wanted.query,
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
    back: Annotated[str, Form(max_length=10_000)] = "",
) -> Response:
    """Do what was confirmed."""
    which: Which = list(dict.fromkeys(id)) if id else _filter(filter)
    if max(number, len(id or ())) > UNTYPED and _digits(typed) != str(number):
        raise Refused(422, f"{plural(number, 'job')} were meant, and {typed!r} was typed. Go back and type {number}.")
    if act == "requeue":
        done = actions.requeue(visit, which, queue=queue.strip() or None, expected=number or None, wait=PATIENCE)
    else:
        done = actions.discard(visit, which, expected=number or None, wait=PATIENCE)
    return _told(request, done, _back(request, back))


@router.post("/failures/{id:palermo}/requeue", name="requeue_failed")
def requeue_one(request: Request, visit: Visiting, id: str) -> Response:
    """Run one job again, unchanged."""
    done = actions.requeue(visit, id, wait=PATIENCE)
    return _told(request, done, _back(request, request.url.query))


@router.get("/failures/{id:palermo}/edit", name="edit_failed")
def edit(request: Request, visit: Visiting, id: str) -> Response:
    """The form to run one job again with other arguments, or in another queue."""
    found = failed_jobs(visit.site)
    found.view.update()
    message = found.message(id)
    row = found.row(message)
    readable = row["args"] is not None
    fields = {"args": _written(row["args"]), "kwargs": _written(row["kwargs"]), "queue": ""}
    return page(request, "failures_edit.html", row=row, fields=fields, readable=readable, problem="")


@router.post("/failures/{id:palermo}/edit", name="save_failed")
def save(
    request: Request,
    visit: Visiting,
    id: str,
    args: Annotated[str, Form()] = "",
    kwargs: Annotated[str, Form()] = "",
    queue: Annotated[str, Form(max_length=500)] = "",
) -> Response:
    """Run one job again with the arguments and the queue of the form."""
    found = failed_jobs(visit.site)
    message = found.message(id)
    row, bare = found.row(message), found.unmasked_row(message)
    try:
        given = _read("positional", args, list), _read("named", kwargs, dict)
        changed = (
            None if value is None or value == row[name] else unmasked(value, bare[name])
            for name, value in zip(("args", "kwargs"), given, strict=True)
        )
        new_args, new_kwargs = changed
        done = actions.requeue(visit, id, args=new_args, kwargs=new_kwargs, queue=queue.strip() or None, wait=PATIENCE)
    except (UsageError, SerializationError) as error:
        return _again(request, row, args, kwargs, queue, str(error))
    except Refused as error:
        if error.status_code != 422:
            raise
        return _again(request, row, args, kwargs, queue, str(error.detail))
    if not done.over or not done.taken:
        return _told(request, done, path(request, "failures"))
    to = path(request, "job", id=id) + "?" + urlencode({"queue": queue.strip() or row["queue"]})
    return redirect(request, to, "Requeued. This page shows its new run.")


@router.get("/failures/operations/{id:palermo}", name="operation")
def operation(request: Request, visit: Visiting, id: str) -> Response:
    """The progress of a long command, and its outcome."""
    found = failed_jobs(visit.site).operations.get(id)
    return page(
        request,
        "failures_operation.html",
        operation=found,
        asked_at=iso_instant(found.asked_at),
        ended=iso_instant(found.ended_at),
    )


@router.post("/failures/operations/{id:palermo}/stop", name="stop_operation")
def stop(request: Request, visit: Visiting, id: str) -> Response:
    """Stop a long command before its next job."""
    actions.stop_operation(visit, id).wait(PATIENCE)
    return redirect(request, path(request, "operation", id=id))


def _told(request: Request, done: Operation, back: str) -> Response:
    if not done.over:
        return redirect(request, path(request, "operation", id=done.id))
    fine = done.status == "done" and not done.gone and not done.problems
    return redirect(request, back, done.outcome(), level="done" if fine else "note")


def _back(request: Request, query: str) -> str:
    """The list that the user came from. Only its query is taken, so it cannot lead anywhere else."""
    return path(request, "failures") + (f"?{query}" if query else "")


def _filter(query: str) -> FailedFilter:
    given = dict(parse_qsl(query, keep_blank_values=True))
    if "until" not in given or not given.keys() <= set(FAILED):
        raise Refused(422, "the form does not say which jobs are meant. Go back and choose again.")
    return failed_filter(given)


def _digits(text: str) -> str:
    return "".join(char for char in text if char.isdecimal())


def _written(value: object) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False, indent=2)


def _read(which: str, text: str, kind: type) -> Any:
    if not text.strip():
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(422, f"the {which} arguments are not JSON: {error}.") from None
    if not isinstance(value, kind):
        shape = "a list, such as [1, true]" if kind is list else 'an object, such as {"width": 640}'
        raise Refused(422, f"the {which} arguments must be {shape}.")
    return value


def _again(request: Request, row: Any, args: str, kwargs: str, queue: str, problem: str) -> Response:
    fields = {"args": args, "kwargs": kwargs, "queue": queue}
    readable = row["args"] is not None
    return page(request, "failures_edit.html", status=422, row=row, fields=fields, readable=readable, problem=problem)
