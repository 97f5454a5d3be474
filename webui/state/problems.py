"""Current problems for the pages, from data already read by other pages, and from a check of the broker.

Only if no worker leads, the due jobs are read for this, at most every ten seconds.

`palermo doctor` uses the same functions, `present` and `broker_findings`. The broker is checked when a user opens the
Problems page, at most once a minute, and not if the pages are read-only, because the check stores and takes a job in a
separate queue.
"""

import time
from collections.abc import Mapping
from contextlib import suppress

from msgspec import Struct

from palermo.contract.broker import Finding
from palermo.errors import PalermoError
from palermo.inspector.doctor import away, broker_findings
from palermo.inspector.problems import COUNTED, DEATHS, Outcomes, PresentProblem, outcomes, overdue, present
from palermo.inspector.rates import Snapshot
from palermo.webui import tuning
from palermo.webui.site import Site
from palermo.webui.state.deaths import deaths
from palermo.webui.state.journal_views import JournalViews
from palermo.webui.state.live_state import LiveState, ages, live_state
from palermo.webui.state.refreshing import Refreshing
from palermo.webui.state.scheduled_view import scheduled_view


class BrokerLook(Struct, frozen=True):
    findings: tuple[Finding, ...] = ()
    #: When it ended, in Unix seconds; None if there has been none.
    at: float | None = None

    def of_level(self, level: str) -> list[Finding]:
        """Return the findings of one level. Warnings about a broker may be intended, and aren't counted."""
        return [finding for finding in self.findings if finding.level == level]


class Problems:
    """The problems of a site. Thread-safe."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._look = Refreshing(self._examine, fresh=tuning.MINUTE)
        self._counted = Refreshing(self._count, fresh=tuning.FRESH)
        self._due = Refreshing(self._overdue, fresh=tuning.RECENT, slow=tuning.SLOW, longest=tuning.WINDOW)

    def now(self) -> list[PresentProblem]:
        """Return the problems of queues, workers and jobs. Raises BrokerError."""
        live = live_state(self._site)
        snapshot = live.snapshot()
        due = 0.0
        with suppress(TimeoutError):
            due = self._due.get(wait=tuning.BRIEF)
        return self._present(snapshot, live.oldest.of(snapshot.queues), due)

    def count(self) -> int:
        """Return the number of known problems, without asking the broker."""
        return self._counted.get()

    def _count(self) -> int:
        live = self._site.existing(LiveState)
        snapshot = live.sampler.last if live else None
        due = self._due.last if self._due.age < tuning.WINDOW else None
        number = len(self._present(snapshot, live.oldest.known(), due or 0.0)) if live and snapshot else 0
        look = self._look.last
        if look is not None and look.at is not None and time.time() - look.at < tuning.WINDOW:
            number += len(look.of_level("problem"))
        return number

    def look(self) -> BrokerLook:
        """Return the last check of the broker. Starts another one if it is due, and waits for it a moment."""
        with suppress(TimeoutError):
            return self._look.get(wait=tuning.WAIT, patience=tuning.WAIT)
        return BrokerLook()

    def _examine(self) -> BrokerLook:
        try:
            found = tuple(broker_findings(self._site.client))
        except PalermoError as error:
            found = (away(error),)
        return BrokerLook(found, time.time())

    def _overdue(self) -> float:
        view = scheduled_view(self._site)
        return overdue(live_state(self._site).snapshot(), lambda due: view.soon(due, limit=1), view.recurring)

    def _present(self, snapshot: Snapshot, oldest: Mapping[str, str | None], due: float) -> list[PresentProblem]:
        return present(
            snapshot.queues,
            snapshot.workers,
            all_paused=snapshot.all_paused,
            ages=ages(oldest, snapshot.at),
            jobs=self._outcomes(),
            deaths=deaths(self._site, since=snapshot.at - DEATHS),
            trouble=snapshot.trouble,
            overdue=due,
        )

    def _outcomes(self) -> dict[str, Outcomes]:
        views = self._site.existing(JournalViews)
        if views is None or not views.ready:
            return {}
        return outcomes(views.statistics.recent_jobs(COUNTED))


def problems(site: Site) -> Problems:
    """Return a site's problems, created on first use."""
    return site.component(Problems, lambda: Problems(site))
