"""The picture of a workflow's graph, as numbers for an SVG: its steps in layers from left to right, and its edges.

The layer of a step is the longest path to it. An edge over several layers has a place in each of them. Sweeps by
barycentres order the layers, and the order with the fewest crossings is kept, since a sweep may make more. Each place
is then moved towards the middle of those before it. No script draws the picture, and no style sheet sizes it.
"""

from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from palermo.contract.rows import Row
from palermo.core.text import shorter

#: The most steps, and edges, of a picture: beyond them a table by layers is easier to read.
MOST_STEPS, MOST_EDGES = 300, 1_500

#: The size of a box, and the distances between layers and between boxes; a long edge needs less room.
BOX, HIGH = 160, 46
_LAYER, _ROOM, _EDGE = 48, 14, 10

#: The room around the picture; the most characters of a name.
_MARGIN, _NAME = 8, 18

#: The most sweeps over all layers, forth and back; two that make nothing better are the last ones.
_SWEEPS = 8

#: A place in a layer: a step, or an edge that passes through the layer.
_Place = str | tuple[str, str, int]


class Node(Struct, frozen=True, kw_only=True):
    """A step's box, with its left upper corner."""

    row: Row
    name: str
    x: float
    y: float
    #: Of a map, the widths of the parts of its bar: members that ended well, failed, and run or wait in their queue.
    bar: tuple[float, float, float] | None = None


class Edge(Struct, frozen=True, kw_only=True):
    """An edge: one cubic for each layer that it goes to."""

    path: str
    #: How the step before must end: done, failed or over.
    when: str
    #: Whether the step before is over.
    over: bool


class WorkflowPicture(Struct, frozen=True, kw_only=True):
    """The picture of a workflow."""

    width: float
    height: float
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


def layers_of(steps: Sequence[Row]) -> dict[str, int]:
    """The layer of each step by its name: the length of the longest path to it. A step names only earlier steps."""
    found: dict[str, int] = {}
    for row in steps:
        found[row["name"]] = 1 + max((found.get(name, -1) for name, _ in before(row)), default=-1)
    return found


def before(row: Row) -> Iterator[tuple[str, str]]:
    """The paths of the steps before a step, each once, and how it must end."""
    prefix, slash, _ = row["name"].rpartition("/")
    seen = set[str]()
    for condition in row["after"]:
        for name in condition["steps"]:
            if name not in seen:
                seen.add(name)
                yield prefix + slash + name, condition["when"]


def workflow_picture(steps: Sequence[Row]) -> WorkflowPicture | None:
    """The picture of these steps; None if there are too many to see anything."""
    layers = layers_of(steps)
    edges = [(name, row["name"], when) for row in steps for name, when in before(row) if name in layers]
    if not steps or len(steps) > MOST_STEPS or len(edges) > MOST_EDGES:
        return None
    columns, links = _columns(layers, edges)
    columns = _ordered(columns, links)
    middles = _straightened(columns, links)
    known = {row["name"]: row for row in steps}
    lowest = min(middles[name] for name in known)
    shift = _MARGIN + HIGH / 2 - lowest
    height = max(middles[name] for name in known) + shift + HIGH / 2 + _MARGIN
    left = {layer: _MARGIN + layer * (BOX + _LAYER) for layer in range(len(columns))}
    nodes = (
        Node(
            row=row,
            name=shorter(name.rpartition("/")[2], _NAME),
            x=left[layers[name]],
            y=round(middles[name] + shift - HIGH / 2, 1),
            bar=_bar(row),
        )
        for name, row in known.items()
    )
    drawn = (
        Edge(
            path=_path(first, last, layers, middles, left, shift),
            when=when,
            over=known[first]["state"] not in ("waiting", "pending", "working", "expanded"),
        )
        for first, last, when in edges
    )
    width = left[len(columns) - 1] + BOX + _MARGIN
    return WorkflowPicture(width=width, height=round(height, 1), nodes=tuple(nodes), edges=tuple(drawn))


_Links = dict[_Place, list[_Place]]


def _columns(layers: Mapping[str, int], edges: Sequence[tuple[str, str, str]]) -> tuple[list[list[_Place]], _Links]:
    """The places of each layer, and by place those that it is connected with in the layer before."""
    columns: list[list[_Place]] = [[] for _ in range(max(layers.values()) + 1)]
    for name, layer in layers.items():
        columns[layer].append(name)
    links: _Links = {name: [] for name in layers}
    for first, last, _ in edges:
        at: _Place = first
        for layer in range(layers[first] + 1, layers[last]):
            place = (first, last, layer)
            columns[layer].append(place)
            links[place] = [at]
            at = place
        links[last].append(at)
    return columns, links


def _ordered(columns: list[list[_Place]], links: _Links) -> list[list[_Place]]:
    """The layers in the order of the sweep with the fewest crossings."""
    after: _Links = {place: [] for column in columns for place in column}
    for place, those in links.items():
        for each in those:
            after[each].append(place)
    best, fewest, since = columns, _crossings(columns, links), 0
    for sweep in range(_SWEEPS):
        if not fewest or since == 2:
            break
        forth = sweep % 2 == 0
        columns = [*columns] if forth else columns[::-1]
        for nth in range(1, len(columns)):
            columns[nth] = _by_barycentre(columns[nth - 1], columns[nth], links if forth else after)
        columns = columns if forth else columns[::-1]
        crossings = _crossings(columns, links)
        since += 1
        if crossings < fewest:
            best, fewest, since = columns, crossings, 0
    return best


def _by_barycentre(fixed: list[_Place], column: list[_Place], links: _Links) -> list[_Place]:
    at = {place: nth for nth, place in enumerate(fixed)}
    own = {place: nth for nth, place in enumerate(column)}

    def centre(place: _Place) -> float:
        those = [at[each] for each in links[place]]
        return sum(those) / len(those) if those else float(own[place])

    return sorted(column, key=centre)


def _crossings(columns: Sequence[Sequence[_Place]], links: _Links) -> int:
    """How often two edges cross."""
    crossings = 0
    for first, second in pairwise(columns):
        at = {place: nth for nth, place in enumerate(first)}
        seen: list[int] = []
        for place in second:
            ends = sorted(at[each] for each in links[place])
            crossings += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return crossings


def _straightened(columns: Sequence[Sequence[_Place]], links: _Links) -> dict[_Place, float]:
    """The height of the middle of each place: as near as there is room to the middle of those before it."""
    middles: dict[_Place, float] = {}
    for column in columns:
        wanted = []
        for nth, place in enumerate(column):
            those = [middles[each] for each in links[place]]
            wanted.append(sum(those) / len(those) if those else nth * (HIGH + _ROOM) - (len(column) - 1) * 30.0)
        tops = [0.0]
        for upper, lower in pairwise(column):
            tops.append(tops[-1] + (_size(upper) + _size(lower)) / 2)
        # Of all columns that keep the distances, the one whose places are as far above as below what they want.
        low = [want - top for want, top in zip(wanted, tops, strict=True)]
        shifts = _least_moved(low)
        middles |= {place: top + shift for place, top, shift in zip(column, tops, shifts, strict=True)}
    return middles


def _least_moved(wanted: Sequence[float]) -> list[float]:
    """The nearest numbers to these of which none is less than the one before it."""
    blocks: list[tuple[float, int]] = []
    for want in wanted:
        total, size = want, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / size:
            before_total, before_size = blocks.pop()
            total, size = total + before_total, size + before_size
        blocks.append((total, size))
    return [total / size for total, size in blocks for _ in range(size)]


def _size(place: _Place) -> float:
    return HIGH + _ROOM if isinstance(place, str) else _EDGE


def _path(
    first: str,
    last: str,
    layers: Mapping[str, int],
    middles: Mapping[_Place, float],
    left: Mapping[int, float],
    shift: float,
) -> str:
    """The curve from a step to a later one, level where it passes the boxes of a layer."""
    x, y = left[layers[first]] + BOX, middles[first] + shift
    parts = [f"M{x:g} {y:.1f}"]
    for layer in range(layers[first] + 1, layers[last] + 1):
        place: _Place = last if layer == layers[last] else (first, last, layer)
        to, at = left[layer], middles[place] + shift
        parts.append(f"C{x + _LAYER / 2:g} {y:.1f} {to - _LAYER / 2:g} {at:.1f} {to:g} {at:.1f}")
        x, y = to + BOX, at
        if layer < layers[last]:
            parts.append(f"H{x:g}")
    return "".join(parts)


def _bar(row: Row) -> tuple[float, float, float] | None:
    total = row["total"]
    if not total:
        return None
    parts = (row["over"] - row["failed"], row["failed"], row["out"])
    done, failed, out = (round((BOX - 20) * part / total, 1) for part in parts)
    return done, failed, out
