"""`inspector.history`. A call reads the part of the journal that it needs, about 100,000 records a second."""

from palermo.contract import clock
from palermo.contract.row_types import ActionRow, FinishedRow, StatisticsRow
from palermo.contract.rows import Listing, Row
from palermo.core.times import Instant, unix_seconds
from palermo.core.topology import check_id
from palermo.errors import NotFound
from palermo.inspector.context import Context
from palermo.inspector.judges import Progress
from palermo.views.filter import ANYTHING, EVERYTHING, AuditFilter, JobFilter

#: Default period of statistics, in seconds.
_A_DAY = 86_400.0


class History(Context):
    """The records of the journal: ended jobs, the timeline of one, counts, and the actions of operators."""

    def timeline(self, id: str, *, progress: Progress | None = None) -> list[Row]:
        """All records of one job, oldest first, with `kind` and `at`. Raises NotFound."""
        from palermo.history import listings

        rows = listings.life_of(self._client, check_id(id), progress=progress)
        if not rows:
            raise NotFound(
                f"the journal has no record of job {id!r}. The setting journal decides what is recorded; see"
                " docs/guides/history.md."
            )
        return rows

    def statistics(self, since: Instant | None = None, *, progress: Progress | None = None) -> StatisticsRow:
        """The counts since a time, by default of the last 24 hours; docs/guides/history.md describes the row.

        Reads that part of the journal and calls `progress` with its progress.
        """
        from palermo.history.statistics import report_row, summarize

        begin = clock.now() - _A_DAY if since is None else unix_seconds(since)
        report = summarize(self._client, begin, progress)
        now = self._snapshot()
        return report_row(report, now.queues, now.workers)

    def audit(
        self,
        filter: AuditFilter = ANYTHING,
        *,
        offset: int = 0,
        limit: int = 100,
        progress: Progress | None = None,
    ) -> Listing[ActionRow]:
        """The actions of operators, newest first."""
        from palermo.history import listings

        return listings.audit(self._client, filter, offset=offset, limit=limit, progress=progress)

    def list(
        self,
        filter: JobFilter = EVERYTHING,
        *,
        offset: int = 0,
        limit: int = 100,
        progress: Progress | None = None,
    ) -> Listing[FinishedRow]:
        """Finished jobs, newest first; the total is None if not all of the journal had to be read.

        Runs that are retried are listed only if the filter asks for the state retrying.
        """
        from palermo.history import listings

        return listings.history(self._client, filter, offset=offset, limit=limit, progress=progress)
