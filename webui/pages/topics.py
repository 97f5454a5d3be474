"""The page of events, with a picture of the groups and their topics, and the counts of each queue."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Form, Path
from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from palermo.contract.row_types import TopicRow
from palermo.contract.rows import Row
from palermo.core.text import count, shorter
from palermo.core.topology import LITERAL
from palermo.errors import TopicInvalid
from palermo.webui import actions, tuning
from palermo.webui.actions import AGES
from palermo.webui.api.rows import Removed, Rows
from palermo.webui.render.formats import element_key
from palermo.webui.render.rendering import page, path, redirect
from palermo.webui.site import Refused, Visit, Visiting
from palermo.webui.state.listings import topology
from palermo.webui.threads import Router

router = Router()

Text = Annotated[str, Form(max_length=1_000)]


@router.get("/topics", name="topics")
def topics(request: Request, visit: Visiting) -> Response:
    """Show all groups by name, and how events reach them."""
    return _page(request, visit)


@router.post("/topics/{group:palermo}/replay", name="replay_topics")
def replay(request: Request, visit: Visiting, group: str, topic: Text = "", age: Text = "all") -> Response:
    """Replay old events to one group."""
    if age not in AGES:
        raise Refused(422, f"{age[:40]!r} is not one of {', '.join(AGES)}.")
    try:
        done = actions.replay(visit, group, topic=topic.strip() or None, age=AGES[age][1])
    except TopicInvalid as error:
        return _page(
            request, visit, here=path(request, "topics"), asked=f"replay-{element_key(group)}", problem=str(error)
        )
    text = f"The replay to {group} continues in the background. Its queue shows the progress."
    if done.over:
        text = f"Replayed {count(done.taken, 'event')} to {group}."
    return redirect(request, path(request, "topics"), text, level="done" if done.taken else "note")


@router.post("/topics/{group:palermo}/remove", name="remove_topics")
def remove(request: Request, visit: Visiting, group: str) -> Response:
    actions.unsubscribe(visit, group)
    return redirect(request, path(request, "topics"), f"Removed the subscription of {group}.")


def _page(request: Request, visit: Visit, *, problem: str = "", **more: Any) -> Response:
    wiring = topology(visit.site).get()
    rows = [_shown(row) for row in wiring["groups"]]
    # Programs with another prefix publish to another gateway, so their groups aren't part of this picture.
    drawn = [row for row in rows if row["queue"].removeprefix(LITERAL) == f"{wiring['prefix']}_{row['group']}"]
    return page(
        request,
        "topics.html",
        status=422 if problem else 200,
        wiring=wiring,
        rows=rows,
        picture=topology_picture(drawn),
        others=len(rows) - len(drawn),
        ages={name: words for name, (words, _) in AGES.items()},
        problem=problem,
        **more,
    )


def _shown(row: Row) -> Row:
    """Return the row with a key for the ids of page elements."""
    return {**row, "key": element_key(row["group"])}


# -- the picture
#
# All numbers are in SVG units. The picture needs no script and no style sheet.

#: The width of the picture, and the left edges of its columns: gateway, distributor, the groups' queues.
WIDTH = 940
_GATEWAY, _DISTRIBUTOR, _QUEUE = 8, 236, 640
_BOX, _QUEUE_BOX = 172, 292

#: The heights of a box and of a pattern's line, and the space between groups.
_HIGH, _LINE, _ROOM = 48, 17, 14

#: Maximum number of characters of a pattern, and of a name in a box. The title contains the whole text.
_PATTERN, _NAME = 30, 36


class Label(Struct, frozen=True, kw_only=True):
    """A pattern on its binding."""

    text: str
    whole: str
    y: float


class Branch(Struct, frozen=True, kw_only=True):
    """A group's queue and its binding."""

    row: Row
    #: The names of the queue and of the handler, shortened to fit.
    queue: str
    function: str
    x: int
    y: float
    path: str
    labels: tuple[Label, ...]


class TopologyPicture(Struct, frozen=True, kw_only=True):
    """The picture of the event topology: gateway, distributor, the groups' queues, and the bindings between them."""

    #: The width of the picture and of its boxes, the left edges of its columns, and the height of a box.
    width, box, queue_box, high = WIDTH, _BOX, _QUEUE_BOX, _HIGH
    gateway_x, distributor_x = _GATEWAY, _DISTRIBUTOR
    height: float
    #: The height at which gateway and distributor are centred.
    middle: float
    branches: tuple[Branch, ...]


def topology_picture(groups: Sequence[Row]) -> TopologyPicture:
    """Return the picture of these groups, in order. A group's height depends on the number of its patterns."""
    heights = [max(_HIGH, _LINE * len(group["topics"])) for group in groups]
    height = max(_HIGH + 2 * _ROOM + 40, sum(heights) + _ROOM * (len(groups) + 1))
    middle = height / 2
    top, branches = float(_ROOM), list[Branch]()
    for group, high in zip(groups, heights, strict=True):
        at = top + high / 2
        branches.append(_branch(group, at, middle))
        top += high + _ROOM
    return TopologyPicture(
        height=height,
        middle=middle,
        branches=tuple(branches),
    )


def _branch(group: Row, at: float, middle: float) -> Branch:
    begin, bend = _DISTRIBUTOR + _BOX, 40
    path = f"M{begin} {middle:g}C{begin + bend} {middle:g} {begin + 10} {at:g} {begin + bend + 10} {at:g}H{_QUEUE - 2}"
    topics = group["topics"]
    # A single pattern is above its line; several are stacked around it.
    first = at - 5 if len(topics) == 1 else at - _LINE * (len(topics) - 1) / 2 + 4
    labels = (
        Label(
            text=shorter(topic, _PATTERN),
            whole=topic,
            y=first + nth * _LINE,
        )
        for nth, topic in enumerate(topics)
    )
    return Branch(
        row=group,
        queue=shorter(group["queue"], _NAME),
        function=shorter(group["function"], _NAME),
        x=_QUEUE,
        y=at,
        path=path,
        labels=tuple(labels),
    )


# -- the API

api = Router(prefix="/topics", tags=["topics"])

Group = Annotated[str, Path(max_length=255)]


class Topics(Rows[TopicRow]):
    """All groups by name, and the exchanges that deliver events to them."""

    gateway: str = Field(description="The exchange that events are published to.")
    distributor: str = Field(description="The exchange that routes events to groups by their patterns.")
    unsubscribed: str = Field(description="What happens to events without a subscribed group: keep or refuse.")
    kept: int | None = Field(description="About how many events are kept; null where none are.")


class Replay(BaseModel):
    """The events to replay."""

    model_config = ConfigDict(extra="forbid")

    topic: str | None = Field(default=None, max_length=255, description="A pattern; by default the group's own.")
    age: float | None = Field(default=None, gt=0, description="Only events of the last `age` seconds.")


class Replayed(BaseModel):
    """The number of replayed events; null if the replay takes long and is still running."""

    replayed: int | None


@api.get("")
def api_topics(visit: Visiting) -> Topics:
    """All groups that subscribe to events, by name."""
    wiring = topology(visit.site).get()
    rows = wiring["groups"]
    return Topics.model_validate({**wiring, "rows": rows, "total": len(rows), "page": 1, "limit": len(rows)})


@api.post("/{group:palermo}/replay")
def api_replay_topics(visit: Visiting, group: Group, old: Replay) -> Replayed:
    """Replay kept events to this group, as jobs with new ids. Role: operator."""
    done = actions.replay(visit, group, topic=old.topic, age=old.age, wait=tuning.STALE)
    return Replayed(replayed=done.taken if done.over else None)


@api.delete("/{group:palermo}")
def api_remove_topics(visit: Visiting, group: Group) -> Removed:
    """Unsubscribe this group until one of its workers starts. Its queue is kept. Role: admin."""
    actions.unsubscribe(visit, group)
    return Removed(removed=1)
