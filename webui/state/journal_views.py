"""The views of the journal that a site has: finished jobs, actions and statistics.

`palermo web` begins to read the journal when it starts; a mounted application begins when a page first asks.
If the setting `journal` is "off", nothing is read.
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
    """One site's views of the journal, and the reader that fills them."""

    def __init__(self, site: Site) -> None:
        self._client = site.client
        settings = site.client.settings
        self._timeout = settings.publish_timeout
        self.level = JournalLevel(settings.journal)
        #: The arguments of finished jobs as they may be shown and searched.
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
        """Whether the settings switch the journal off, so that nothing is read."""
        return self.level is JournalLevel.OFF

    @property
    def ready(self) -> bool:
        """Whether the journal has been read. It never is while the settings switch it off."""
        return self.progress.ready

    @property
    def progress(self) -> Progress:
        """How far the reading has come."""
        return self.following.progress

    def wait_until_read(self, timeout: float = 0.25) -> Progress:
        """How far the reading has come. Waits at most `timeout` seconds for it to be complete."""
        if not self.off:
            self.following.wait(timeout)
        return self.progress

    def check_ready(self) -> None:
        """Wait until the journal has been read.

        Raises Refused (409) if the journal is off, and BrokerUnavailable if reading takes longer than publish_timeout.
        """
        if self.off:
            raise Refused(409, 'there is no history, because the setting journal is "off".')
        if self.following.wait(self._timeout):
            return
        state = self.progress
        raise BrokerUnavailable(
            state.error or f"the journal is still being read ({state.records:,} records so far). Try again."
        )

    def report(self, window: Window, **chosen: str) -> Report | None:
        """The report of Statistics.report, at most a second old: all readers in that second share it.

        None while the journal is being read, or if it is off.
        """
        if not self.ready:
            return None
        key = (window, *sorted(chosen.items()))
        return self._reports.of(key, lambda: self.statistics.report(window, **chosen)).get()

    def range_report(self, since: float, until: float, **chosen: str) -> Report | None:
        """The report from one instant to another, in Unix seconds, for which that part of the journal is read.

        None while the journal is being read, or if it is off. Raises BrokerError.
        """
        recent = self.report(Window.MONTH)
        if recent is None:
            return None
        key = (since, until, *sorted(chosen.items()))
        kept = self._ranges.of(key, lambda: summarize_range(self._client, since, until, **chosen))
        # What is over stays as it is, once the last counts have come.
        known = kept.get(tuning.FRESH if until > recent.until - tuning.MINUTE else math.inf)
        begins = self.statistics.begins
        return replace(
            known,
            known=known.until if begins is None else max(known.since, begins),
            deploys=[each for each in recent.deploys if known.since <= each.at < known.until],
            parts={} if chosen else known.parts,
        )

    def rates(self, queues: Iterable[str]) -> dict[str, Rates]:
        """The rates of these queues, as far as they are known."""
        return self.statistics.rates(queues) if self.ready else {}

    def pause(self, queue: str | None = None) -> ActionRow | None:
        """The action that paused a queue, or all, with its user, time and reason; None if the journal does not know it.

        That is the last pause with a reason since the last resume, else the last pause: who pauses a queue again
        without a reason does not take away the reason of the first.
        """
        if not self.ready:
            return None
        suffix = " all" if queue is None else ""
        rows = self.audit.page(AuditFilter(action=f"pause{suffix},resume{suffix}"), limit=tuning.LIMIT)
        own = (row for row in rows if row["queue"] == queue and row["outcome"] == "done")
        pauses = list(takewhile(lambda row: row["action"] == f"pause{suffix}", own))
        return next((row for row in pauses if row["what"]), pauses[0] if pauses else None)

    def close(self) -> None:
        """Stop reading and throw the views away. Nothing is lost by that."""
        self.following.close()
        self.index.close()
        self.audit.close()


def journal_views(site: Site) -> JournalViews:
    """The views of the journal of a site; made by the first call and kept as long as the site."""
    return site.component(JournalViews, lambda: JournalViews(site))


def by_whom(site: Site, id: str) -> str:
    """A sentence on the last action of a user on this job, as far as the journal was read; "" if there was none."""
    views = site.existing(JournalViews)
    rows = [] if views is None else views.audit.of(id)
    done = [row for _, row in rows if row["outcome"] == "done"]
    return f" Last action: {done[-1]['action']} by {done[-1]['by']}, {done[-1]['at']}." if done else ""


def recorded_job(site: Site, id: str) -> RecordedJob:
    """What the journal recorded of a job's arguments. Raises NotFound, and as JournalViews.check_ready."""
    known = journal_views(site)
    known.check_ready()
    found = recorded(known.index, known.audit, id)
    if found is None:
        raise NotFound(f"the journal has no arguments of job {id[:80]!r}, so it cannot be run again here.")
    return found
