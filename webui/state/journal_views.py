"""A site's views of the journal: finished jobs, actions and statistics.

`palermo web` starts to read the journal immediately, and a mounted application when a page first needs it. If the
`journal` setting is "off", nothing is read.
"""

import math
from collections.abc import Iterable
from itertools import takewhile

from msgspec.structs import replace

from palermo.client.recorded_jobs import RecordedJob, SearchedArguments
from palermo.contract.row_types import ActionRow
from palermo.core.journal_records import JournalLevel
from palermo.errors import BrokerUnavailable, NotFound
from palermo.history.audit import AuditLog
from palermo.history.index import Index
from palermo.history.journal_reader import JournalFollower, Progress
from palermo.history.listings import recorded
from palermo.history.recurring_runs import RecurringRuns
from palermo.history.series import Window
from palermo.history.statistics import Rates, Report, Statistics, summarize_range
from palermo.history.worker_lives import WorkerLives
from palermo.metrics.totals import JournalTotals
from palermo.views.filter import AuditFilter
from palermo.webui import tuning
from palermo.webui.site import Refused, Site
from palermo.webui.state.refreshing import RefreshingByKey


class JournalViews:
    """A site's views of the journal, and the reader that fills them."""

    def __init__(self, site: Site) -> None:
        self._client = site.client
        settings = site.client.settings
        self._timeout = settings.publish_timeout
        self.level = JournalLevel(settings.journal)
        #: The arguments of finished jobs as text that may be shown and searched.
        self.arguments = SearchedArguments(site.client.serializers, site.hidden)
        self.index = Index(self.arguments.text)
        self.audit = AuditLog()
        self.statistics = Statistics()
        self.recurring_runs = RecurringRuns()
        self.lives = WorkerLives()
        self._reports: RefreshingByKey[Report | None] = RefreshingByKey(fresh=tuning.FRESH)
        self._ranges: RefreshingByKey[Report] = RefreshingByKey()
        #: The counters for Prometheus: see webui/monitoring.py.
        self.totals = JournalTotals(lambda: self.following.progress.ready)
        self.following = JournalFollower(
            settings, (self.index, self.audit, self.statistics, self.totals, self.recurring_runs, self.lives)
        )
        if not self.off:
            self.following.begin()

    @property
    def off(self) -> bool:
        """Whether the journal is off in the settings, so that nothing is read."""
        return self.level is JournalLevel.OFF

    @property
    def ready(self) -> bool:
        """Whether the journal has been read. Always false if it is off."""
        return self.progress.ready

    @property
    def progress(self) -> Progress:
        return self.following.progress

    def wait_until_read(self, timeout: float = 0.25) -> Progress:
        """Return the progress of reading, after waiting at most `timeout` seconds for its completion."""
        if not self.off:
            self.following.wait(timeout)
        return self.progress

    def check_ready(self) -> None:
        """Wait until the journal has been read.

        Raises Refused (409) if the journal is off, and BrokerUnavailable if reading takes longer than publish_timeout.
        """
        if self.off:
            raise Refused(409, 'there is no history, because the "journal" setting is "off".')
        if self.following.wait(self._timeout):
            return
        state = self.progress
        raise BrokerUnavailable(
            state.error or f"the journal is still being read ({state.records:,} records so far). Try again."
        )

    def report(self, window: Window, **chosen: str) -> Report | None:
        """Return Statistics.report, cached for a second for all readers.

        None if the journal is off or still being read.
        """
        if not self.ready:
            return None
        key = (window, *sorted(chosen.items()))
        return self._reports.of(key, lambda: self.statistics.report(window, **chosen)).get()

    def range_report(self, since: float, until: float, **chosen: str) -> Report | None:
        """Return the report between two instants in Unix seconds, reading that part of the journal.

        None if the journal is off or still being read. Raises BrokerError.
        """
        recent = self.report(Window.MONTH)
        if recent is None:
            return None
        key = (since, until, *sorted(chosen.items()))
        kept = self._ranges.of(key, lambda: summarize_range(self._client, since, until, **chosen))
        # A past period doesn't change once the last counts have arrived.
        known = kept.get(tuning.FRESH if until > recent.until - tuning.MINUTE else math.inf)
        begins = self.statistics.begins
        return replace(
            known,
            known=known.until if begins is None else max(known.since, begins),
            deploys=[each for each in recent.deploys if known.since <= each.at < known.until],
            parts={} if chosen else known.parts,
        )

    def rates(self, queues: Iterable[str]) -> dict[str, Rates]:
        """Return the known rates of these queues."""
        return self.statistics.rates(queues) if self.ready else {}

    def pause(self, queue: str | None = None) -> ActionRow | None:
        """Return the action that paused a queue, or all queues, with its user, time and reason, if it is in the
        journal.

        It is the last pause with a reason since the last resume, or else the last pause. Pausing a queue again without
        a reason therefore keeps the first reason.
        """
        if not self.ready:
            return None
        suffix = " all" if queue is None else ""
        rows = self.audit.page(AuditFilter(action=f"pause{suffix},resume{suffix}"), limit=tuning.LIMIT)
        own = (row for row in rows if row["queue"] == queue and row["outcome"] == "done")
        pauses = list(takewhile(lambda row: row["action"] == f"pause{suffix}", own))
        return next((row for row in pauses if row["what"]), pauses[0] if pauses else None)

    def close(self) -> None:
        """Stop reading and discard the views, which can be rebuilt."""
        self.following.close()
        self.index.close()
        self.audit.close()


def journal_views(site: Site) -> JournalViews:
    """Return a site's views of the journal, created on first use."""
    return site.component(JournalViews, lambda: JournalViews(site))


def by_whom(site: Site, id: str) -> str:
    """Describe the last user action on this job in the part of the journal that was read, or return ""."""
    views = site.existing(JournalViews)
    rows = [] if views is None else views.audit.of(id)
    done = [row for _, row in rows if row["outcome"] == "done"]
    return f" Last action: {done[-1]['action']} by {done[-1]['by']}, {done[-1]['at']}." if done else ""


def recorded_job(site: Site, id: str) -> RecordedJob:
    """Return a job's recorded arguments. Raises NotFound, and the errors of JournalViews.check_ready."""
    known = journal_views(site)
    known.check_ready()
    found = recorded(known.index, known.audit, id)
    if found is None:
        raise NotFound(f"the journal has no arguments of job {id[:80]!r}, so it cannot be run again here.")
    return found
