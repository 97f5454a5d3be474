"""The drawing of what carries events: gateway, distributor, the groups' queues, and the bindings between them.

All of it in the SVG's own units; no script draws it, and no style sheet sizes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from palermo.rows import Row

#: How wide the drawing is, and where its columns begin: gateway, distributor, the groups' queues.
WIDTH = 940
_GATEWAY, _DISTRIBUTOR, _QUEUE = 8, 236, 640
_BOX, _QUEUE_BOX = 172, 292

#: The height of a box, what a pattern takes on its line, and the room between two groups.
_HIGH, _LINE, _ROOM = 48, 17, 14

#: Characters of a pattern, or of a name in a box, that have room; the whole of it is in the title.
_PATTERN, _NAME = 30, 36


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A pattern on its binding."""

    text: str
    whole: str
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A group: its queue, and how it is bound."""

    row: Row
    #: The queue's name and what handles it, as far as there is room.
    queue: str
    function: str
    x: int
    y: float
    path: str
    labels: tuple[Label, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """All of it."""

    width: int
    height: float
    #: The middle line, on which gateway and distributor are.
    middle: float
    gateway_x: int
    distributor_x: int
    box: int
    queue_box: int
    high: int
    branches: tuple[Branch, ...]


def drawing_of(groups: Sequence[Row]) -> Drawing:
    """The drawing of these groups, in their order; each is as high as its patterns."""
    heights = [max(_HIGH, _LINE * len(group["topics"])) for group in groups]
    height = max(_HIGH + 2 * _ROOM + 40, sum(heights) + _ROOM * (len(groups) + 1))
    middle = height / 2
    top, branches = float(_ROOM), list[Branch]()
    for group, high in zip(groups, heights, strict=True):
        at = top + high / 2
        branches.append(_branch(group, at, middle))
        top += high + _ROOM
    return Drawing(
        width=WIDTH,
        height=height,
        middle=middle,
        gateway_x=_GATEWAY,
        distributor_x=_DISTRIBUTOR,
        box=_BOX,
        queue_box=_QUEUE_BOX,
        high=_HIGH,
        branches=tuple(branches),
    )


def _branch(group: Row, at: float, middle: float) -> Branch:
    begin, bend = _DISTRIBUTOR + _BOX, 40
    path = f"M{begin} {middle:g}C{begin + bend} {middle:g} {begin + 10} {at:g} {begin + bend + 10} {at:g}H{_QUEUE - 2}"
    topics = group["topics"]
    # One stands on its line, several beside each other around it.
    first = at - 5 if len(topics) == 1 else at - _LINE * (len(topics) - 1) / 2 + 4
    labels = (
        Label(
            text=_cut(topic, _PATTERN),
            whole=topic,
            y=first + nth * _LINE,
        )
        for nth, topic in enumerate(topics)
    )
    return Branch(
        row=group,
        queue=_cut(group["queue"], _NAME),
        function=_cut(group["function"], _NAME),
        x=_QUEUE,
        y=at,
        path=path,
        labels=tuple(labels),
    )


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
