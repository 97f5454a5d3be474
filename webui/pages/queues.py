"""The page of all queues, and of one: its jobs, and what can be done to it."""

import json
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query
from starlette.requests import Request
from starlette.responses import Response

from palermo.errors import NotBrowsable, NotFound
from palermo.rows import Row
from palermo.webui import actions, looks
from palermo.webui.errors import Refused
from palermo.webui.formats import plural
from palermo.webui.rendering import page, path, redirect
from palermo.webui.site import Visit, Visiting
from palermo.webui.watching import running_of, watching

router = APIRouter()

#: Jobs on a page, and jobs that a search looks at.
LIMIT, SEARCHED = 25, 500

#: Running jobs of a queue that are listed.
_RUNNING = 20

Text = Annotated[str, Query(max_length=200)]
Number = Annotated[int, Query(ge=1, le=400, alias="page")]


@router.get("/queues", name="queues")
def queues(request: Request, visit: Visiting, name: Text = "") -> Response:
    look = watching(visit.site)
    snapshot = look.snapshot()
    rows = [row for row in snapshot.queues if name.casefold() in row["name"].casefold()]
    return page(request, "queues.html", looked=snapshot.version, rows=look.lines(rows), name=name)


@router.get("/queues/{name:palermo}", name="queue")
def queue(
    request: Request, visit: Visiting, name: str, text: Text = "", newest: bool = False, number: Number = 1
) -> Response:
    look = watching(visit.site)
    snapshot = look.snapshot()
    rows = [row for row in snapshot.queues if row["name"] == name]
    if not rows:
        raise NotFound(f"there is no queue {name!r}. It is made when the first job is enqueued to it.")
    [line] = look.lines(rows)
    jobs, unseen = [], ""
    try:
        jobs = _jobs(visit, name, text=text, newest=newest, number=number) if line.pending else []
    except NotBrowsable as error:
        unseen = str(error)
    look.seen.rows(jobs)
    kept = {"text": text, "newest": "1" if newest else ""}
    return page(
        request,
        "queue.html",
        looked=snapshot.version,
        queue=line,
        jobs=jobs,
        unseen=unseen,
        running=running_of(snapshot, name)[:_RUNNING],
        text=text,
        newest=newest,
        number=number,
        limit=LIMIT,
        searched=min(SEARCHED, line.pending),
        at="?" + urlencode({key: value for key, value in kept.items() if value} | {"page": ""}),
    )


def _jobs(visit: Visit, name: str, *, text: str, newest: bool, number: int) -> list[Row]:
    if not text:
        return looks.jobs(visit, name, page=number, limit=LIMIT, newest=newest).rows
    wanted = text.casefold()
    # Searched as they are shown: nobody finds out by searching what is hidden.
    rows = looks.jobs(visit, name, page=1, limit=SEARCHED, newest=newest).rows
    return [{**row, "position": nth} for nth, row in enumerate(rows, start=1) if _says(row, wanted)][:LIMIT]


def _says(row: Row, wanted: str) -> bool:
    texts = (row["id"], row["job"], row["preview"], json.dumps([row["args"], row["kwargs"]], ensure_ascii=False))
    return any(wanted in text.casefold() for text in texts if text)


@router.post("/queues/{name:palermo}/purge", name="purge_queue")
def purge(request: Request, visit: Visiting, name: str) -> Response:
    removed = actions.purge(visit, name)
    return redirect(request, path(request, "queue", name=name), f"Removed {plural(removed, 'job')} from {name}.")


@router.post("/queues/{name:palermo}/delete", name="delete_queue")
def delete(request: Request, visit: Visiting, name: str) -> Response:
    removed = actions.delete_queue(visit, name)
    return redirect(request, path(request, "queues"), f"Deleted {name}, and {plural(removed, 'job')} in it.")


@router.post("/queues/{name:palermo}/pause", name="pause_queue")
def pause(request: Request, visit: Visiting, name: str) -> Response:
    actions.pause(visit, name)
    text = f"Paused {name}: no worker takes a job from it until it is resumed. What runs goes on."
    return redirect(request, path(request, "queue", name=name), text)


@router.post("/queues/{name:palermo}/resume", name="resume_queue")
def resume(request: Request, visit: Visiting, name: str) -> Response:
    actions.resume(visit, name)
    return redirect(request, path(request, "queue", name=name), f"Resumed {name}.")


@router.post("/enqueue", name="enqueue")
def enqueue(
    request: Request,
    visit: Visiting,
    job: Annotated[str, Form()],
    args: Annotated[str, Form()] = "[]",
    kwargs: Annotated[str, Form()] = "{}",
    queue: Annotated[str, Form()] = "",
) -> Response:
    """Enqueue a job by hand."""
    made = actions.enqueue(
        visit,
        job.strip(),
        read_json(args, list, 'the positional arguments must be a JSON list, such as [1, "a"]'),
        read_json(kwargs, dict, 'the named arguments must be a JSON object, such as {"width": 640}'),
        queue=queue.strip() or None,
    )
    to = path(request, "job", id=made.id) + "?" + urlencode({"queue": made.queue})
    return redirect(request, to, f"Enqueued {made.job} to {made.queue}.")


def read_json(text: str, kind: type, otherwise: str) -> Any:
    """What a form's field holds, if it is JSON of this kind; nothing is an empty one. Raises Refused (422)."""
    if not text.strip():
        return kind()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(422, f"{otherwise}; this is no JSON: {error}.") from None
    if not isinstance(value, kind):
        raise Refused(422, f"{otherwise}.")
    return value
