"""`/metrics`: the whole system for Prometheus.

What is so at this moment comes from the sampled state that the pages have too, so that scrapers cost the broker
nothing more; what has happened comes from the journal, as it is written from the first scrape on.
"""

import threading
from collections.abc import Iterable
from datetime import UTC, datetime

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from palermo.core.topology import is_failed
from palermo.crew import STATES
from palermo.errors import PalermoError, SettingInvalid
from palermo.history.following import Following
from palermo.metrics import check_installed
from palermo.metrics.totals import JournalTotals, Names
from palermo.rows import Row
from palermo.webui.sampler import Snapshot
from palermo.webui.site import Site
from palermo.webui.watching import Watching, totals_of, watching

router = APIRouter()

#: Seconds that what is told may be old, and that the first scrape waits for what the journal holds.
_MAX_AGE, _PATIENCE = 2.0, 1.0

#: Queues that are told apart.
_MOST_QUEUES = 500

_lock = threading.Lock()


class Metered:
    """What one site keeps to be measured with."""

    def __init__(self, site: Site) -> None:
        self.watching: Watching = watching(site)
        self.following = Following(site.client.settings, [])
        self.journal = JournalTotals(lambda: self.following.progress.ready)
        self.following.add(self.journal)
        self.queues = Names(_MOST_QUEUES)

    def snapshot(self) -> Snapshot | None:
        """Queues and workers; None while the broker does not answer."""
        try:
            return self.watching.sampler.snapshot(_MAX_AGE, by_person=False)
        except PalermoError:
            return None


@router.api_route("/metrics", methods=["GET", "HEAD"])
def metrics(request: Request) -> Response:
    """All that palermo.metrics.catalogue has for the web process; 501 where prometheus_client is not installed."""
    try:
        check_installed()
    except SettingInvalid as error:
        return PlainTextResponse(f"{error}\n", 501)
    from palermo.metrics.catalogue import WEB
    from palermo.metrics.exposition import Families, expose

    site: Site = request.app.state.site
    metered = _metered(site)
    families = Families(WEB)
    families.info("palermo_info", version=site.version)
    snapshot = metered.snapshot()
    families.set("palermo_broker_up", snapshot is not None)
    if snapshot is not None:
        _queues(families, snapshot.queues, metered)
        _workers(families, snapshot)
    ready = metered.following.wait(_PATIENCE)
    families.set("palermo_journal_up", ready and not metered.following.progress.error)
    families.tallies(metered.journal.totals.copy(), prefix="palermo_")
    families.set("palermo_journal_lost_records_total", metered.journal.lost)
    accept, encoding = (request.headers.get(name, "") for name in ("accept", "accept-encoding"))
    body, headers = expose(families, accept=accept, encoding=encoding)
    return Response(body, headers=headers)


def close(site: Site) -> None:
    """Read the journal no more."""
    metered: Metered | None = site.kept.get("metered")
    if metered is not None:
        metered.following.close()
