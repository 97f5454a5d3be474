"""`inspector.history`. Each call reads the necessary part of the journal, about 100,000 records per second."""

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
    """The journal's records: finished jobs, timelines, counts, and operators' actions."""

    def timeline(self, id: str, *, progress: Progress | None = None) -> list[Row]:
        """Return all records of one job, oldest first, with `kind` and `at`. Raises NotFound."""
        from palermo.history import listings

        rows = listings.life_of(self._client, check_id(id), progress=progress)
        if not rows:
            raise NotFound(
                f'the journal has no record of job {id!r}. The "journal" setting controls what is recorded; see'
                " docs/guides/history.md."
            )
        return rows

    def statistics(self, since: Instant | None = None, *, progress: Progress | None = None) -> StatisticsRow:
        """Return the counts since a time (default: 24 hours ago). docs/guides/history.md describes the row.

        Reads that part of the journal, and calls `progress`.
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
        """List operators' actions, newest first."""
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
        """List finished jobs, newest first. `total` is None unless the whole journal had to be read.

        Runs that were retried are listed only if the filter includes the state retrying.
        """
        from palermo.history import listings

        return listings.history(self._client, filter, offset=offset, limit=limit, progress=progress)
