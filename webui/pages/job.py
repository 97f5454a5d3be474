"""The page of one job: its state, its history and the actions on it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from palermo.client.status import DEPTH, WAITING
from palermo.contract.rows import Row
from palermo.core.journal_records import RUN_ENDS, RecordKind
from palermo.errors import PalermoError
from palermo.history.journal_reader import Progress
from palermo.history.listings import life
from palermo.webui import actions
from palermo.webui.render.formats import PrettyJson, pretty_json
from palermo.webui.render.rendering import page, path, redirect
from palermo.webui.render.timeline import final_state, timeline
from palermo.webui.render.tracebacks import parts_of
from palermo.webui.site import Refused, Visit, Visiting
from palermo.webui.state.job import FoundJob, find_job, job_result
from palermo.webui.state.journal_views import JournalViews, journal_views
from palermo.webui.state.live_state import live_state

router = APIRouter()

#: The most lines of a job's log that are shown, the last ones.
LINES = 200

#: The message for a command that takes long, as for a job behind many other failed jobs.
_GOING_ON = "This takes a while: Palermo is still looking for the job."

#: The messages for the outcomes of a cancel.
_CANCELLED = {
    "marked": "Cancelled: if it still waits, it will not run.",
    "cancelled": "Cancelled: it was running, and was stopped.",
    "cancelling": "Cancelled: it is being stopped, and is killed if it does not stop by itself.",
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
    told = [] if known.off else life(known.index, known.audit, id)
    last = next((row for row in reversed(told) if row["kind"] in RUN_ENDS), None)
    named: Row = next((row for row in reversed(told) if row.get("queue")), {"queue": ""})
    found = find_job(visit.site, id, queue or named["queue"])
    found = replace(found, queue=found.queue or named["queue"], name=found.name or named.get("job"))
    unseen = not found.state and _waits(visit, told)
    if unseen:
        found = replace(found, state="pending")
    returned, no_result = _returned(visit, id) if result and not found.state else (None, "")
    if not (found.state or found.remembered or told or returned):
        return _not_found(request, found, known, state, no_result)
    parts = parts_of(found.error["traceback"]) if found.error and found.error["traceback"] else []
    row = found.row
    return page(
        request,
        "job.html",
        watched={"of": "job", "id": id},
        job=found,
        ended="" if found.state else final_state(told) or "",
        last=last,
        lines=[row for row in told if row["kind"] == RecordKind.LOG][-LINES:],
        journal=state,
        level=known.level.value,
        returned=returned,
        no_result=no_result,
        row=row,
        args=pretty_json(row["args"]) if row and row["args"] else None,
        kwargs=pretty_json(row["kwargs"]) if row and row["kwargs"] else None,
        parts=parts,
        folds=any(part.kind == "folded" for part in parts),
        events=timeline(found, told),
        depth=DEPTH,
        unseen=unseen,
        wire=found.headers,
    )


def _waits(visit: Visit, told: Sequence[Row]) -> bool:
    """Whether the journal tells that the job waits, and its queue is so long that these pages do not see all of it."""
    steps = [row for row in told if row["kind"] != "action"]
    if not steps or steps[-1]["kind"] not in WAITING:
        return False
    queues = {row["name"]: row["pending"] for row in live_state(visit.site).snapshot().queues}
    return bool(queues.get(steps[-1]["queue"], 0) > 2 * DEPTH)


def _not_found(request: Request, job: FoundJob, known: JournalViews, journal: Progress, no_result: str) -> Response:
    """The page of an id that no job has. It becomes the job's page once there is one."""
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


def _returned(visit: Visit, id: str) -> tuple[PrettyJson | None, str]:
    """The job's result, or the reason why there is none."""
    try:
        return pretty_json(job_result(visit, id).value), ""
    except PalermoError as error:
        return None, str(error)
    except Refused as refused:
        return None, refused.detail


@router.get("/find", name="find")
def find_page(request: Request, visit: Visiting, q: Annotated[str, Query(max_length=500)] = "") -> Response:
    """Redirect to the queue with this name, else to the job with this id."""
    wanted = q.strip()
    if not wanted:
        return RedirectResponse(path(request, "overview"), status_code=303)
    names = {row["name"] for row in live_state(visit.site).snapshot(5.0).queues}
    to = path(request, "queue", name=wanted) if wanted in names else path(request, "job", id=wanted)
    return RedirectResponse(to, status_code=303)


@router.post("/jobs/{id:palermo}/requeue", name="requeue_job")
def requeue(request: Request, visit: Visiting, id: str) -> Response:
    known = live_state(visit.site).recent_jobs.get(id)
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
    text = _CANCELLED.get(row["state"], f"Told {row['worker']} to stop it.")
    to = path(request, "job", id=id) + (f"?{urlencode({'queue': queue})}" if queue else "")
    return redirect(request, to, text)
