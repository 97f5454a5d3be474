"""Pages of what the journal tells, for whoever asks once: it is read, and forgotten again."""

import time

from palermo.client import Client
from palermo.history.audit import Audit
from palermo.history.filters import AuditFilter, HistoryFilter
from palermo.history.index import Index
from palermo.history.reading import OnProgress, read_to_end
from palermo.history.telling import life
from palermo.journal import FIRST, Start
from palermo.rows import Listing, Row

#: Seconds of the journal that are read for a page of its newest jobs; more, and in the end all, if they do not fill it.
_WINDOWS = (3_600.0, 86_400.0, None)


def history(
    client: Client, filter: HistoryFilter, *, offset: int, limit: int, progress: OnProgress | None = None
) -> Listing:
    """Finished jobs, newest first; how many there are in all is None where not all of the journal had to be read."""
    given = filter.since
    for window in _WINDOWS if given is None else (None,):
        since = given if window is None else time.time() - window
        index = Index()
        try:
            read_to_end(client, [index], FIRST if since is None else Start(since=since), progress=progress)
            found = index.page(filter, offset=offset, limit=limit)
            if len(found) >= limit or window is None:
                total = index.count(filter) if window is None else None
                return Listing([entry.row() for entry in found], total)
        finally:
            index.close()
    raise AssertionError("the last window is the whole journal")


def life_of(client: Client, id: str, *, progress: OnProgress | None = None) -> list[Row]:
    """All that the journal tells of one job, oldest first."""
    index, actions = Index(), Audit()
    try:
        read_to_end(client, [index, actions], progress=progress)
        return life(index, actions, id)
    finally:
        index.close()
        actions.close()


def audit(
    client: Client, filter: AuditFilter, *, offset: int, limit: int, progress: OnProgress | None = None
) -> Listing:
    """What people did, newest first."""
    found = Audit()
    try:
        start = FIRST if filter.since is None else Start(since=filter.since)
        read_to_end(client, [found], start, progress=progress)
        return Listing(found.page(filter, offset=offset, limit=limit), found.count(filter))
    finally:
        found.close()
