"""What was, for the inspector: read from the journal to its end each time, some 100,000 records a second.

These are methods of palermo.inspector.Inspector, which names them.
"""

import time
from typing import TYPE_CHECKING

from palermo.core.topology import check_id
from palermo.errors import NotFound
from palermo.failed import Progress
from palermo.history.filters import ANYTHING, FINISHED, AuditFilter, HistoryFilter
from palermo.moments import Instant, instant
from palermo.rows import Listing, Row

if TYPE_CHECKING:
    from palermo.inspector import Inspector

#: How far statistics look back unless they are told.
_A_DAY = 86_400.0


def history(
    inspector: "Inspector",
    filter: HistoryFilter = FINISHED,
    *,
    offset: int = 0,
    limit: int = 100,
    progress: Progress | None = None,
) -> Listing:
    """Finished jobs, newest first; the total is None where not all of the journal had to be read."""
    from palermo.history import listing

    return listing.history(inspector._client, filter, offset=offset, limit=limit, progress=progress)


def life(inspector: "Inspector", id: str, *, progress: Progress | None = None) -> list[Row]:
    """All that the journal tells of one job, oldest first, by `kind` and `at`. Raises NotFound."""
    from palermo.history import listing

    rows = listing.life_of(inspector._client, check_id(id), progress=progress)
    if not rows:
        raise NotFound(
            f"the journal tells nothing of a job {id!r}. What is written down the setting journal says; see"
            " docs/journal.md."
        )
    return rows


def statistics(inspector: "Inspector", since: Instant | None = None, *, progress: Progress | None = None) -> Row:
    """What was counted since an instant, or in the last 24 hours: docs/statistics.md has the row.

    Reads that part of the journal; `progress` is told how far it is.
    """
    from palermo.history import reporting, summary

    begin = time.time() - _A_DAY if since is None else instant(since)
    report = summary.summarize(inspector._client, begin, progress)
    return reporting.report_row(report, inspector.queues(), inspector.workers())


def audit(
    inspector: "Inspector",
    filter: AuditFilter = ANYTHING,
    *,
    offset: int = 0,
    limit: int = 100,
    progress: Progress | None = None,
) -> Listing:
    """What people did, newest first."""
    from palermo.history import listing

    return listing.audit(inspector._client, filter, offset=offset, limit=limit, progress=progress)
