"""The pages that the navigation leads to, in the order in which they are shown.

A page appears once its route does: Clients has its place here.
"""

from typing import NamedTuple


class Entry(NamedTuple):
    """One page."""

    route: str
    title: str
    #: The key that leads there after `g`.
    key: str


SECTIONS: tuple[tuple[str, tuple[Entry, ...]], ...] = (
    (
        "Jobs",
        (
            Entry("overview", "Overview", "o"),
            Entry("queues", "Queues", "q"),
            Entry("failures", "Failures", "f"),
            Entry("scheduled", "Scheduled", "s"),
            Entry("retries", "Retries", "r"),
            Entry("recurring", "Recurring", "c"),
            Entry("limits", "Limits", "m"),
            Entry("unique", "Unique jobs", "u"),
            Entry("history", "History", "h"),
            Entry("statistics", "Statistics", "i"),
        ),
    ),
    (
        "Processes",
        (
            Entry("workers", "Workers", "w"),
            Entry("topics", "Topics", "t"),
            Entry("clients", "Clients", "l"),
            Entry("audit", "Audit", "a"),
        ),
    ),
)


def sections(routes: frozenset[str]) -> list[tuple[str, list[Entry]]]:
    """The sections with the pages that exist, by the names of their routes."""
    found = [(title, [entry for entry in entries if entry.route in routes]) for title, entries in SECTIONS]
    return [(title, entries) for title, entries in found if entries]
