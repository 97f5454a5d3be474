"""The page of events: a picture of the groups and the topics they subscribe to, with the counts of each queue."""

import hashlib
from typing import Annotated, Any

from fastapi import APIRouter, Form
from starlette.requests import Request
from starlette.responses import Response

from palermo.contract.rows import Row
from palermo.errors import TopicInvalid
from palermo.webui import actions
from palermo.webui.actions import AGES
from palermo.webui.base.errors import Refused
from palermo.webui.base.site import Visit, Visiting
from palermo.webui.render.formats import plural
from palermo.webui.render.rendering import page, path, redirect
from palermo.webui.render.topology_picture import topology_picture
from palermo.webui.state.topology_view import topology_view

router = APIRouter()

Text = Annotated[str, Form(max_length=1_000)]


@router.get("/topics", name="topics")
def topics(request: Request, visit: Visiting) -> Response:
    """All groups, by name, and the way of events to them."""
    return _page(request, visit)


@router.post("/topics/{group:palermo}/replay", name="replay_topics")
def replay(request: Request, visit: Visiting, group: str, topic: Text = "", age: Text = "all") -> Response:
    """Replay old events to one group."""
    if age not in AGES:
        raise Refused(422, f"{age[:40]!r} is none of {', '.join(AGES)}.")
    try:
        told = actions.replay(visit, group, topic=topic.strip() or None, age=AGES[age][1])
    except TopicInvalid as error:
        return _page(request, visit, here=path(request, "topics"), asked=f"replay-{_key(group)}", problem=str(error))
    text = f"Telling {group} old events again goes on; its queue shows how far it is."
    if told is not None:
        text = f"Told {group} {plural(told, 'event')} again."
    return redirect(request, path(request, "topics"), text, level="done" if told else "note")


@router.post("/topics/{group:palermo}/remove", name="remove_topics")
def remove(request: Request, visit: Visiting, group: str) -> Response:
    """Unsubscribe a group."""
    actions.unsubscribe(visit, group)
    return redirect(request, path(request, "topics"), f"No more events come to {group}.")


def _page(request: Request, visit: Visit, *, problem: str = "", **more: Any) -> Response:
    wiring = topology_view(visit.site).row()
    rows = [_shown(row) for row in wiring["groups"]]
    return page(
        request,
        "topics.html",
        status=422 if problem else 200,
        wiring=wiring,
        rows=rows,
        picture=topology_picture(rows),
        ages={name: words for name, (words, _) in AGES.items()},
        problem=problem,
        **more,
    )


def _shown(row: Row) -> Row:
    """The row with a key for the ids of page elements."""
    return {**row, "key": _key(row["group"])}


def _key(group: str) -> str:
    return hashlib.blake2b(group.encode(), digest_size=6).hexdigest()
