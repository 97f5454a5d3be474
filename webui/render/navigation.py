"""The navigation: its sections and pages, in the order in which they are shown."""

from typing import NamedTuple


class Entry(NamedTuple):
    """One page in the navigation."""

    route: str
    title: str
    #: The key that opens the page after `g`.
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
