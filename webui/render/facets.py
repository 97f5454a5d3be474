"""The facets next to a list of jobs: names with the number of their jobs, and links that list only those."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from palermo.contract.rows import Row
from palermo.core.text import exactly
from palermo.core.topology import worker_of
from palermo.views.facts import facts_of_row
from palermo.views.filter import JobFilter
from palermo.webui.filters import ListFilter

#: Maximum number of names shown in a facet, those with the most jobs.
MOST = 6


class Facet(NamedTuple):
    """One condition of a filter, with its possible names here."""

    condition: str
    #: Each name with its number of jobs and the URL query that lists only these.
    names: list[tuple[str, int, str]]
    #: Number of names that aren't shown.
    more: int


def facets(asked: ListFilter[JobFilter], counts: Mapping[str, Counter[str]]) -> list[Facet]:
    """Return the facets that can narrow the list, which are those with more than one name.

    `counts` has the number of listed jobs by condition and name.
    """
    found = []
    for condition, names in counts.items():
        known = [(name, number) for name, number in names.most_common() if name]
        if len(known) > 1:
            # A worker's name stands for all its slots, and a state is a fixed word.
            only = str if condition in ("worker", "state") else exactly
            shown = [(name, number, asked.having(**{condition: only(name)})) for name, number in known[:MOST]]
            found.append(Facet(condition, shown, len(known) - len(shown)))
    return found


def facets_of_rows(asked: ListFilter[JobFilter], rows: Iterable[Row], conditions: tuple[str, ...]) -> list[Facet]:
    """Return the facets of the rows of a page."""
    shapes = ((tuple(getattr(facts_of_row(row), name) for name in conditions), 1) for row in rows)
    return facets(asked, count_names(shapes, conditions))


def count_names(rows: Iterable[tuple[tuple[str, ...], int]], conditions: tuple[str, ...]) -> dict[str, Counter[str]]:
    """Count jobs by condition and name. Each row has the names of its jobs by condition, and their number."""
    found: dict[str, Counter[str]] = {condition: Counter() for condition in conditions}
    for names, number in rows:
        for condition, name in zip(conditions, names, strict=True):
            found[condition][worker_of(name) if condition == "worker" else name] += number
    return found
