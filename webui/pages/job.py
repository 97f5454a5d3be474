"""The page of one job: where it is, what happened to it, and what can be done about it."""

from dataclasses import replace
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from palermo.core.journal import ENDS, Kind
from palermo.errors import PalermoError
from palermo.history.telling import life
from palermo.webui import actions, outcomes
from palermo.webui.errors import Refused
from palermo.webui.finding import DEPTH, find
from palermo.webui.journaled import journaled
from palermo.webui.pretty import Pretty, pretty
from palermo.webui.rendering import page, path, redirect
from palermo.webui.site import Visit, Visiting
from palermo.webui.timeline import end_of, timeline
from palermo.webui.tracebacks import parts_of
from palermo.webui.watching import watching

router = APIRouter()

#: Lines of a job's log that are shown, the last.
LINES = 200

#: Of an operation that takes its time, as one does at the end of many failed jobs.
_GOING_ON = "That takes a while: it is still looking for the job."

#: What came of an order to cancel.
_CANCELLED = {
    "marked": "Cancelled: if it still waits, it will not run.",
    "cancelled": "Cancelled: it ran, and was ended.",
    "cancelling": "Cancelled: it is being ended, and is killed if it does not heed that.",
    "done": "It was faster: it has finished.",
    "failed": "It was faster: it has failed.",
}


@router.get("/jobs/{id:palermo}", name="job")
def job(
    request: Request,
    visit: Visiting,
    id: str,
    queue: Annotated[str, Query(max_length=500)] = "",
    result: Annotated[bool, Query()] = False,
) -> Response:
    found = find(visit.site, id, queue)
    known = journaled(visit.site)
    state = known.look()
    told = [] if known.off else life(known.index, known.audit, id)
    last = next((row for row in reversed(told) if row["kind"] in ENDS), None)
    named = next((row for row in reversed(told) if row.get("queue")), None)
    if not found.queue and named:
        found = replace(found, queue=named["queue"])
    if not found.name and named:
        found = replace(found, name=named.get("job"))
    returned, no_result = _returned(visit, id) if result and not found.state else (None, "")
    parts = parts_of(found.error["traceback"]) if found.error and found.error["traceback"] else []
    row = found.row
    return page(
        request,
        "job.html",
        status=200 if found.state or found.remembered or told else 404,
        watched="job",
        seen=len(told),
        job=found,
        ended="" if found.state else end_of(told) or "",
        last=last,
        lines=[row for row in told if row["kind"] == Kind.LOG][-LINES:],
        journal=state,
        level=known.level.value,
        returned=returned,
        no_result=no_result,
        row=row,
        args=pretty(row["args"]) if row and row["args"] else None,
        kwargs=pretty(row["kwargs"]) if row and row["kwargs"] else None,
        parts=parts,
        folds=any(part.kind == "folded" for part in parts),
        events=timeline(found, told),
        depth=DEPTH,
        wire=found.headers,
    )


def _returned(visit: Visit, id: str) -> tuple[Pretty | None, str]:
    """What the job returned, or why there is nothing to show."""
    try:
        return pretty(outcomes.result(visit, id).value), ""
    except PalermoError as error:
        return None, str(error)
    except Refused as refused:
        return None, refused.detail


@router.get("/find", name="find")
def find_page(request: Request, visit: Visiting, q: Annotated[str, Query(max_length=500)] = "") -> Response:
    """The queue of this name, else the job with this id."""
    wanted = q.strip()
    if not wanted:
        return RedirectResponse(path(request, "overview"), status_code=303)
    names = {row["name"] for row in watching(visit.site).snapshot(5.0).queues}
    to = path(request, "queue", name=wanted) if wanted in names else path(request, "job", id=wanted)
    return RedirectResponse(to, status_code=303)


@router.post("/jobs/{id:palermo}/requeue", name="requeue_job")
def requeue(request: Request, visit: Visiting, id: str) -> Response:
    known = watching(visit.site).seen.job(id)
    done = actions.requeue(visit, id)
    to = path(request, "job", id=id) + (f"?{urlencode({'queue': known.queue})}" if known and known.queue else "")
    return redirect(request, to, "Requeued. This page shows its new run." if done.over else _GOING_ON, level="done")


@router.post("/jobs/{id:palermo}/discard", name="discard_job")
def discard(request: Request, visit: Visiting, id: str) -> Response:
    done = actions.discard(visit, id)
    return redirect(request, path(request, "failures"), f"Discarded job {id}." if done.over else _GOING_ON)


@router.post("/jobs/{id:palermo}/cancel", name="cancel_job")
def cancel(request: Request, visit: Visiting, id: str, queue: Annotated[str, Form()] = "") -> Response:
    row = actions.cancel(visit, id)
    text = _CANCELLED.get(row["state"], f"Told {row['worker']} to end it.")
    to = path(request, "job", id=id) + (f"?{urlencode({'queue': queue})}" if queue else "")
    return redirect(request, to, text)
