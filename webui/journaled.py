"""What one site knows from the journal: jobs, actions, statistics; read from the first moment somebody asks.

`palermo web` begins to read when it starts, an application that is mounted when a page first asks.
Where the setting `journal` is "off" nothing is read.
"""

import threading
import time

from palermo.core.journal import Level
from palermo.errors import BrokerUnavailable
from palermo.history.audit import Audit
from palermo.history.following import Following, Progress
from palermo.history.index import Index
from palermo.history.statistics import Report, Statistics
from palermo.history.windows import Window
from palermo.metrics.totals import JournalTotals
from palermo.webui.errors import Refused
from palermo.webui.site import Site

_lock = threading.Lock()

#: Seconds that a report of statistics is shown, and how many are kept.
_FRESH, _REPORTS = 1.0, 64


class Journaled:
    """One site's views of the journal, and the reading that keeps them."""

    def __init__(self, site: Site) -> None:
        settings = site.client.settings
        self._patience = settings.publish_timeout
        self.level = Level(settings.journal)
        self.index = Index()
        self.audit = Audit()
        #: What is told to Prometheus: see webui/metrics.py.
        self.totals = JournalTotals(lambda: self.following.progress.ready)
        self.statistics = Statistics()
        self._reports: dict[tuple[object, ...], tuple[float, Report | None]] = {}
        self._reporting = threading.Lock()
        self.following = Following(settings, (self.index, self.audit, self.statistics, self.totals))
        if not self.off:
            self.following.begin()

    @property
    def off(self) -> bool:
        """Whether nothing is read, since the settings say so."""
        return self.level is Level.OFF

    @property
    def progress(self) -> Progress:
        """How far reading has come."""
        return self.following.progress

    def look(self, patience: float = 0.25) -> Progress:
        """How far reading has come; waits so many seconds at most for it to have read all."""
        if not self.off:
            self.following.wait(patience)
        return self.progress

    def check_ready(self) -> None:
        """Raises Refused (409) where nothing is read, and BrokerUnavailable if reading takes above publish_timeout."""
        if self.off:
            raise Refused(409, 'the setting journal is "off" here, so nothing is known of what was.')
        if self.following.wait(self._patience):
            return
        state = self.progress
        raise BrokerUnavailable(
            state.error or f"the journal is still being read, {state.records:,} records so far. Ask again."
        )

    def report(self, window: Window, **chosen: str) -> Report | None:
        """As Statistics.report, at most a second old: however many look, it is made once."""
        key = (window, *sorted(chosen.items()))
        with self._reporting:
            at, known = self._reports.get(key, (0.0, None))
            if time.monotonic() - at < _FRESH:
                return known
            found = self.statistics.report(window, **chosen)
            if len(self._reports) >= _REPORTS:
                self._reports.clear()
            self._reports[key] = (time.monotonic(), found)
            return found

    def close(self) -> None:
        """Read no more, and throw all away. Nothing is lost by it."""
        self.following.close()
        self.index.close()
        self.audit.close()


def journaled(site: Site) -> Journaled:
    """What a site knows from the journal; the same for as long as it lives."""
    with _lock:
        found = site.kept.get("journaled")
        if found is None:
            found = site.kept["journaled"] = Journaled(site)
        assert isinstance(found, Journaled)
        return found


def close(site: Site) -> None:
    """What a site that ends does about it."""
    found = site.kept.pop("journaled", None)
    if isinstance(found, Journaled):
        found.close()
