"""The changes in a period, shown below charts: deaths of workers, deploys, new errors, and operators' actions.

They are based on known data, without asking the broker.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from palermo.contract.rows import iso_instant
from palermo.core.failure import printable
from palermo.core.text import count
from palermo.core.times import parse_instant
from palermo.history.statistics import Deploy
from palermo.views.filter import AuditFilter
from palermo.webui.site import Site
from palermo.webui.state.deaths import deaths
from palermo.webui.state.journal_views import JournalViews, journal_views

#: Maximum number of changes shown (the newest), and of actions read for them.
MOST, _ACTIONS = 8, 50


class Change(Struct, frozen=True, kw_only=True):
    """A change, or several consecutive ones of the same kind."""

    #: The time of the newest one in Unix seconds.
    at: float
    #: died, deployed, new error, or an action.
    kind: str
    #: The worker, the release, the error, or the object of the action.
    what: str
    #: The user and the interface: web, cli or python.
    by: str = ""
    source: str = ""
    times: int = 1

    @property
    def when(self) -> str | None:
        """The time in ISO 8601."""
        return iso_instant(self.at)


def changes(site: Site, since: float, until: float, deploys: Iterable[Deploy]) -> list[Change]:
    """Return the newest changes between two instants, newest first; empty while the journal is being read."""
    known = journal_views(site)
    if not known.ready:
        return []
    found = [
        *(Change(at=life.heard_at, kind="died", what=life.id) for life in deaths(site, since=since)),
        *(Change(at=each.at, kind="deployed", what=printable(each.release)) for each in deploys),
        *(Change(at=at, kind="new error", what=error) for error, at in known.index.first_errors().items()),
        *_actions(known, since, until),
    ]
    newest = sorted((each for each in found if since <= each.at <= until), key=attrgetter("at"), reverse=True)
    same = (list(group) for _, group in groupby(newest, key=attrgetter("kind", "what", "by")))
    return [replace(group[0], times=len(group)) for group in islice(same, MOST)]


def _actions(known: JournalViews, since: float, until: float) -> Iterator[Change]:
    for row in known.audit.page(AuditFilter(since=since, until=until), limit=_ACTIONS):
        if row["at"] and row["outcome"] in (None, "done") and row["action"] != "stack":
            jobs = count(row["count"], "job") if row["count"] else ""
            about = row["queue"] or row["what"] or jobs
            yield Change(
                at=parse_instant(row["at"]),
                kind=row["action"],
                what=about,
                by=row["by"] or "",
                source=row["source"] or "",
            )
