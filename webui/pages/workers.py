"""The page of all workers, by host, and the orders to them."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Form
from starlette.requests import Request
from starlette.responses import Response

from palermo.contract.rows import Row
from palermo.history.filters import HistoryFilter
from palermo.inspector.masking import masked_worker
from palermo.webui import actions
from palermo.webui.render.formats import plural
from palermo.webui.render.rendering import page, path, redirect
from palermo.webui.render.stacks import stacks_of
from palermo.webui.site import Refused, Visiting
from palermo.webui.state.journal_views import journal_views
from palermo.webui.state.live_state import live_state, totals_of

router = APIRouter()


@dataclass(frozen=True, slots=True)
class Host:
    """One machine, or container."""

    name: str
    workers: tuple[Row, ...]

    @property
    def slots(self) -> int:
        return sum(worker["slots"] for worker in self.workers)

    @property
    def busy(self) -> int:
        return sum(len(worker["jobs"]) for worker in self.workers)


def by_host(workers: Iterable[Row]) -> list[Host]:
    hosts: dict[str, list[Row]] = {}
    for worker in workers:
        hosts.setdefault(worker["host"], []).append(worker)
    return [Host(name, tuple(sorted(hosts[name], key=lambda row: row["pid"]))) for name in sorted(hosts)]


@router.get("/workers", name="workers")
def workers(request: Request, visit: Visiting) -> Response:
    snapshot = live_state(visit.site).snapshot()
    return page(
        request,
        "workers.html",
        hosts=by_host(snapshot.workers),
        totals=totals_of(snapshot),
        queue_names={row["name"] for row in snapshot.queues},
    )


#: Seconds of finished jobs on the page of one worker, and the most of them.
_LAST_HOUR, _FINISHED = 3_600.0, 100


@router.get("/workers/{id:palermo}", name="worker")
def worker(request: Request, visit: Visiting, id: str) -> Response:
    """One worker, with the jobs that it runs and those that it ran in the last hour."""
    row = masked_worker(visit.inspector.worker(id), visit.site.hidden)
    known = journal_views(visit.site)
    state = known.wait_until_read()
    # Whole seconds, so that requests within one second share a count.
    wanted = HistoryFilter(worker=id, since=float(int(time.time() - _LAST_HOUR)))
    return page(
        request,
        "worker.html",
        worker=row,
        running=[{**job, "worker": id} for job in row["jobs"]],
        journal=state,
        level=known.level.value,
        off=known.off,
        total=known.index.count(wanted) if state.ready else 0,
        finished=[entry.row() for entry in known.index.page(wanted, limit=_FINISHED)] if state.ready else [],
        query=urlencode({"worker": id, "since": "1h"}),
    )


#: The message after an order, by order.
_DONE = {
    "quiet": "Told {} to take no more jobs.",
    "resume": "Told {} to take jobs again.",
    "stop": "Told {} to finish all running jobs, and to end.",
    "kill": "Told {} to kill all running jobs, and to end.",
}


@router.post("/workers/{action}", name="control_workers")
def control(request: Request, visit: Visiting, action: str, worker: Annotated[str, Form()] = "") -> Response:
    """Send an order to one worker, or to all."""
    if action not in actions.CONTROL_ROLES:
        raise Refused(404, f"workers do not know {action[:80]!r}.")
    rows = actions.control(visit, [worker] if worker else None, action)
    if action == "stack":
        return page(request, "stacks.html", answers=[_stacks(row) for row in rows if row["answered"]])
    silent = sum(not row["answered"] for row in rows)
    text = _DONE[action].format(worker or plural(len(rows), "worker"))
    if silent:
        text += f" {silent if not worker else 'It'} did not answer yet, and may obey later."
    return redirect(request, path(request, "workers"), text, level="note" if silent else "done")


def _stacks(row: Row) -> Row:
    """The stacks that a worker told, by job. A worker of an earlier version told them only as one text (`bare`)."""
    told = row.get("stacks", [])
    jobs = [{**each, "stacks": stacks_of(str(each["text"]))} for each in told if "id" in each]
    return {"worker": row["worker"], "text": row.get("text", ""), "jobs": jobs, "bare": not told}
