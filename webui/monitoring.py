"""`/healthz`, which checks this server and its broker, and `/metrics` for Prometheus.

Gauges come from the sampled state that the pages use, so that scrapers add no load to the broker. Counters come from
the journal, and count from the start of this process.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fastapi import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from palermo.contract.rows import Row
from palermo.contract.worker_info import SILENT, STATES, UNASKED
from palermo.core.topology import is_failed
from palermo.errors import BrokerBlocked, PalermoError, SettingInvalid
from palermo.inspector.rates import Snapshot
from palermo.metrics import check_installed
from palermo.metrics.totals import Names
from palermo.webui import tuning
from palermo.webui.site import Site
from palermo.webui.state.journal_views import journal_views
from palermo.webui.state.live_state import live_state, totals_of
from palermo.webui.state.refreshing import Refreshing
from palermo.webui.state.workflows import live_workflows
from palermo.webui.threads import Router

if TYPE_CHECKING:
    from palermo.metrics.exposition import Families


router = Router()


def _answers(site: Site) -> bool:
    try:
        # A small request, regardless of the number of queues and workers.
        site.inspector.queues.all_paused()
    except BrokerBlocked:
        return True  # the broker answers, and a new process would get the same error
    except PalermoError:
        return False
    return True


@router.api_route("/healthz", methods=["GET", "HEAD"])
async def health(request: Request) -> Response:
    """Return 200 if the broker answers, otherwise 503, with no content."""
    site: Site = request.app.state.site
    broker = site.component("health", lambda: Refreshing(lambda: _answers(site), fresh=tuning.FRESH))
    asked = broker.begin()
    if not asked.done():
        patience = tuning.PATIENCE * site.client.settings.publish_timeout - broker.waiting
        await asyncio.wait({asyncio.wrap_future(asked)}, timeout=max(0.0, patience))
    healthy = asked.done() and asked.result()
    return JSONResponse({"status": "ok" if healthy else "broker unavailable"}, 200 if healthy else 503)


@router.api_route("/metrics", methods=["GET", "HEAD"])
def metrics(request: Request) -> Response:
    """Return the web process's metrics in palermo.metrics.catalogue; 501 if prometheus_client isn't installed."""
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
        _workflows(families, site)
    journal = journal_views(site)
    progress = journal.wait_until_read(tuning.WAIT)
    if not journal.off:
        families.set("palermo_journal_up", progress.ready and not progress.error)
    families.tallies(journal.totals.copy(), prefix="palermo_")
    families.set("palermo_journal_lost_records_total", journal.totals.lost)
    accept, encoding = (request.headers.get(name, "") for name in ("accept", "accept-encoding"))
    body, headers = expose(families, accept=accept, encoding=encoding)
    return Response(body, headers=headers)


def _snapshot(site: Site) -> Snapshot | None:
    """Return queues and workers, or None if the broker doesn't answer."""
    try:
        return live_state(site).sampler.snapshot(tuning.FRESH, by_person=False)
    except PalermoError:
        return None


def _queues(families: "Families", rows: Sequence[Row], site: Site) -> None:
    """Add the metrics of each queue.

    For queues with the same label, values are summed; for age, workers and paused, the maximum is used.
    """
    now = datetime.now(UTC)
    try:
        oldest = live_state(site).oldest.of(rows)
    except PalermoError:  # the broker became unavailable after the snapshot
        oldest = {}
    names = site.component(Names, lambda: Names(tuning.LIMIT))
    values: dict[tuple[str, str], float] = {}
    for row in rows:
        queue = names.of(row["name"])
        if is_failed(row["name"]):
            _add(values, "palermo_failed_jobs", queue, row["pending"])
            continue
        _add(values, "palermo_queue_pending_jobs", queue, row["pending"])
        _add(values, "palermo_queue_running_jobs", queue, row["in_progress"])
        _max(values, "palermo_queue_workers", queue, row["workers"])
        _max(values, "palermo_queue_paused", queue, row["paused"])
        first = oldest.get(row["name"])
        if not row["pending"] or first is not None:
            age = (now - datetime.fromisoformat(first)).total_seconds() if first and row["pending"] else 0.0
            _max(values, "palermo_queue_oldest_age_seconds", queue, max(0.0, age))
    for (name, queue), value in values.items():
        families.set(name, value, queue)


def _workers(families: "Families", snapshot: Snapshot) -> None:
    """Add the number of workers by state, and their total and used slots."""
    totals = totals_of(snapshot)
    states = Counter(worker["state"] for worker in snapshot.workers)
    for state in (*STATES, SILENT, UNASKED):
        families.set("palermo_workers", states[state], state)
    families.set("palermo_slots", totals.slots)
    families.set("palermo_slots_busy", totals.busy)


def _workflows(families: "Families", site: Site) -> None:
    """Add the number of live workflows by state, from the list used by the pages."""
    try:
        found = live_workflows(site).get()
    except PalermoError:  # the broker became unavailable after the snapshot
        return
    for state in ("running", "failed"):
        families.set("palermo_workflows", sum(info.state == state for info in found), state)
    families.set("palermo_workflow_jobs", sum(info.jobs for info in found))


def _add(values: dict[tuple[str, str], float], name: str, queue: str, value: float) -> None:
    values[name, queue] = values.get((name, queue), 0) + value


def _max(values: dict[tuple[str, str], float], name: str, queue: str, value: float) -> None:
    values[name, queue] = max(values.get((name, queue), 0), value)
