"""`/metrics`: the whole system for Prometheus.

What is so at this moment comes from the sampled state that the pages have too, so that scrapers cost the broker
nothing more; what has happened comes from the journal, as it is written from this process's start on.
"""

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from palermo.core.topology import is_failed
from palermo.crew import STATES
from palermo.errors import PalermoError, SettingInvalid
from palermo.metrics import check_installed
from palermo.metrics.totals import Names
from palermo.rows import Row
from palermo.sampling import Snapshot
from palermo.webui.journaled import journaled
from palermo.webui.site import Site
from palermo.webui.watching import totals_of, watching

if TYPE_CHECKING:
    from palermo.metrics.exposition import Families

router = APIRouter()

#: Seconds that what is told may be old, and that the first scrape waits for what the journal holds.
_MAX_AGE, _PATIENCE = 2.0, 1.0

#: Queues that are told apart.
_MOST_QUEUES = 500


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
    families = Families(WEB)
    families.info("palermo_info", version=site.version)
    snapshot = _snapshot(site)
    families.set("palermo_broker_up", snapshot is not None)
    if snapshot is not None:
        _queues(families, snapshot.queues, site)
        _workers(families, snapshot)
    known = journaled(site)
    progress = known.look(_PATIENCE)
    if not known.off:
        families.set("palermo_journal_up", progress.ready and not progress.error)
    families.tallies(known.totals.copy(), prefix="palermo_")
    families.set("palermo_journal_lost_records_total", known.totals.lost)
    accept, encoding = (request.headers.get(name, "") for name in ("accept", "accept-encoding"))
    body, headers = expose(families, accept=accept, encoding=encoding)
    return Response(body, headers=headers)


def _snapshot(site: Site) -> Snapshot | None:
    """Queues and workers; None while the broker does not answer."""
    try:
        return watching(site).sampler.snapshot(_MAX_AGE, by_person=False)
    except PalermoError:
        return None


def _queues(families: "Families", rows: list[Row], site: Site) -> None:
    """What each queue holds. Those that share a label are added up; the oldest age and the workers are the most."""
    now = datetime.now(UTC)
    try:
        oldest = watching(site).oldest.of(rows)
    except PalermoError:  # it went away meanwhile
        oldest = {}
    names: Names = site.kept.setdefault("metrics", Names(_MOST_QUEUES))
    told: dict[tuple[str, str], float] = {}
    for row in rows:
        queue = names.of(row["name"])
        if is_failed(row["name"]):
            _add(told, "palermo_failed_jobs", queue, row["pending"])
            continue
        _add(told, "palermo_queue_pending_jobs", queue, row["pending"])
        _add(told, "palermo_queue_running_jobs", queue, row["in_progress"])
        _most(told, "palermo_queue_workers", queue, row["workers"])
        _most(told, "palermo_queue_paused", queue, row["paused"])
        first = oldest.get(row["name"])
        if not row["pending"] or first is not None:
            age = (now - datetime.fromisoformat(first)).total_seconds() if first and row["pending"] else 0.0
            _most(told, "palermo_queue_oldest_age_seconds", queue, max(0.0, age))
    for (name, queue), value in told.items():
        families.set(name, value, queue)


def _workers(families: "Families", snapshot: Snapshot) -> None:
    """Who works, and how many slots are taken."""
    totals = totals_of(snapshot)
    states = Counter(worker["state"] for worker in snapshot.workers)
    for state in STATES:
        families.set("palermo_workers", states[state], state)
    families.set("palermo_slots", totals.slots)
    families.set("palermo_slots_busy", totals.busy)


def _add(told: dict[tuple[str, str], float], name: str, queue: str, value: float) -> None:
    told[name, queue] = told.get((name, queue), 0) + value


def _most(told: dict[tuple[str, str], float], name: str, queue: str, value: float) -> None:
    told[name, queue] = max(told.get((name, queue), 0), value)
