"""The picture of a workflow as numbers for an SVG: its steps in layers from left to right, and its edges.

A step's layer is the length of the longest path to it. An edge over several layers has a place in each. Barycentre
sweeps order the layers, and the order with the fewest crossings is kept, since a sweep may increase them. Each place is
then moved towards the middle of its predecessors. The picture needs no script and no style sheet.
"""

from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from palermo.contract.rows import Row
from palermo.core.text import shorter

#: Maximum number of steps and edges in a picture; above that, a table by layers is easier to read.
MOST_STEPS, MOST_EDGES = 300, 1_500

#: The size of a box, and the distances between layers and between boxes. A long edge needs less space.
BOX, HIGH = 160, 46
_LAYER, _ROOM, _EDGE = 48, 14, 10

#: The margin of the picture, and the maximum number of characters of a name.
_MARGIN, _NAME = 8, 18

#: Maximum number of sweeps over all layers, alternating in direction. Ends early after two without improvement.
_SWEEPS = 8

#: A place in a layer: a step, or an edge that passes through.
_Place = str | tuple[str, str, int]


class Node(Struct, frozen=True, kw_only=True):
    """A step's box, with its upper left corner."""

    row: Row
    name: str
    x: float
    y: float
    #: For a map, the widths of its bar's parts: members that succeeded, that failed, and that are running or queued.
    bar: tuple[float, float, float] | None = None


class Edge(Struct, frozen=True, kw_only=True):
    """An edge, with a cubic curve for each layer that it enters."""

    path: str
    #: How the step before must end: done, failed or over.
    when: str
    #: Whether the step before has ended.
    over: bool


class WorkflowPicture(Struct, frozen=True, kw_only=True):
    width: float
    height: float
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


def layers_of(steps: Sequence[Row]) -> dict[str, int]:
    """Return the layer of each step: the length of the longest path to it. Steps only depend on earlier ones."""
    found: dict[str, int] = {}
    for row in steps:
        found[row["name"]] = 1 + max((found.get(name, -1) for name, _ in before(row)), default=-1)
    return found


def before(row: Row) -> Iterator[tuple[str, str]]:
    """Yield the path of each step before a step, once, and how it must end."""
    prefix, slash, _ = row["name"].rpartition("/")
    seen = set[str]()
    for condition in row["after"]:
        for name in condition["steps"]:
            if name not in seen:
                seen.add(name)
                yield prefix + slash + name, condition["when"]


def workflow_picture(steps: Sequence[Row]) -> WorkflowPicture | None:
    """Return the picture of these steps; None if there are too many to be readable."""
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
    """Return the places of each layer, and the connections of each place to the previous layer."""
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
    """Return the layers in the order with the fewest crossings."""
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
    """Count the crossings of edges."""
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
    """Return the vertical middle of each place, as near as possible to the middle of its predecessors."""
    middles: dict[_Place, float] = {}
    for column in columns:
        wanted = []
        for nth, place in enumerate(column):
            those = [middles[each] for each in links[place]]
            wanted.append(sum(those) / len(those) if those else nth * (HIGH + _ROOM) - (len(column) - 1) * 30.0)
        tops = [0.0]
        for upper, lower in pairwise(column):
            tops.append(tops[-1] + (_size(upper) + _size(lower)) / 2)
        # Of all columns that keep the distances, choose the one with equal deviations upwards and downwards.
        low = [want - top for want, top in zip(wanted, tops, strict=True)]
        shifts = _least_moved(low)
        middles |= {place: top + shift for place, top, shift in zip(column, tops, shifts, strict=True)}
    return middles


def _least_moved(wanted: Sequence[float]) -> list[float]:
    """Return the nearest non-decreasing numbers to these."""
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
    """Return the curve from a step to a later one, horizontal where it passes the boxes of a layer."""
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
