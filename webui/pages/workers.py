"""The page of all workers by host, the page of each worker, and orders to workers."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from fastapi import Form
from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from palermo.contract.row_types import WorkerRow, WorkerUsageRow
from palermo.contract.rows import Row, iso_instant
from palermo.core.failure import printable
from palermo.core.text import count, exactly
from palermo.errors import NotFound
from palermo.history.series import Window
from palermo.history.worker_lives import WorkerLife
from palermo.inspector.workers import ACTIONS
from palermo.jobs.redaction import masked_worker
from palermo.views.filter import JobFilter
from palermo.webui import actions, tuning
from palermo.webui.api.rows import Rows
from palermo.webui.filters import Paging, filter_query, known_names, list_filter
from palermo.webui.pages.choice import NAMES, Choosing, check_act
from palermo.webui.render.charts import usage_plot, usage_spark
from palermo.webui.render.rendering import page, path, redirect
from palermo.webui.render.tracebacks import stacks_of
from palermo.webui.site import Refused, Visit, Visiting
from palermo.webui.state import listings, usage
from palermo.webui.state.deaths import deaths
from palermo.webui.state.journal_views import journal_views
from palermo.webui.state.live_state import live_state, totals_of
from palermo.webui.threads import Router

router = Router()


class Host(Struct, frozen=True):
    """A machine or container."""

    name: str
    workers: tuple[Row, ...]

    @property
    def slots(self) -> int:
        return sum(worker["slots"] or 0 for worker in self.workers)

    @property
    def busy(self) -> int:
        return sum(len(worker["jobs"]) for worker in self.workers)


def by_host(workers: Iterable[Row]) -> list[Host]:
    hosts: dict[str, list[Row]] = {}
    for worker in workers:
        hosts.setdefault(worker["host"], []).append(worker)
    return [Host(name, tuple(sorted(hosts[name], key=lambda row: row["pid"] or 0))) for name in sorted(hosts)]


def _deployed(visit: Visit) -> Row:
    """Return the newest release in the journal, and when it was deployed; empty texts if there is none."""
    known = journal_views(visit.site)
    newest = known.statistics.deploys.newest if known.ready else None
    if newest is None:
        return {"release": "", "at": None}
    return {"release": printable(newest.release), "at": iso_instant(newest.at)}


def _used(visit: Visit, worker: str, now: float) -> list[usage.Part]:
    """Return the samples of a worker's resource usage that this process took in the last ten minutes."""
    return usage.parts(live_state(visit.site).sampler.usage.answers(worker, now), now)


@router.get("/workers", name="workers")
def workers(request: Request, visit: Visiting) -> Response:
    snapshot = live_state(visit.site).snapshot()
    used = {row["id"]: _used(visit, row["id"], time.time()) for row in snapshot.workers}
    return page(
        request,
        "workers.html",
        watched={"of": "workers"},
        used={id: usage.newest(parts) for id, parts in used.items()},
        sparks={id: usage_spark([part.cpu for part in parts]) for id, parts in used.items()},
        hosts=by_host(snapshot.workers),
        totals=totals_of(snapshot),
        deaths=[life.row() for life in deaths(visit.site)[: tuning.SOME]],
        deployed=_deployed(visit),
        releases=Counter(row["release"] for row in snapshot.workers if row["release"]).most_common(),
    )


@router.api_route(
    "/workers/confirm", methods=["GET", "POST"], name="confirm_workers", dependencies=[known_names(*NAMES)]
)
def confirm(request: Request, visit: Visiting, choice: Choosing) -> Response:
    """Show the number of chosen workers, and ask for confirmation."""
    check_act(choice.act, _DONE, "a command for workers")
    alive = {row["id"]: row for row in live_state(visit.site).snapshot().workers}
    chosen = [alive[each] for each in choice.ids if each in alive]
    if not chosen:
        text = "None of these workers is alive any more." if choice.ids else "Select some workers first."
        return redirect(request, path(request, "workers"), text, level="note")
    return page(
        request,
        "workers_confirm.html",
        act=choice.act,
        workers=[row["id"] for row in chosen],
        busy=sum(len(row["jobs"]) for row in chosen),
        typed=f"{len(chosen)}" if choice.act in _TYPED and len(chosen) > 1 else "",
    )


@router.get("/workers/{id:palermo}", name="worker")
def worker(request: Request, visit: Visiting, id: str) -> Response:
    """Show one worker with its running jobs and those of the last hour; for a dead one, all that is known about it."""
    try:
        found = visit.inspector.workers.show(id)
    except NotFound:
        journal_views(visit.site).wait_until_read()
        if (life := journal_views(visit.site).lives.newest(id)) is None:
            raise
        return _gone(request, visit, life)
    row = masked_worker(found, visit.site.hidden)
    now = time.time()
    sampler = live_state(visit.site).sampler
    sampler.snapshot(5.0)  # From now on the sampler keeps asking the workers.
    if row["memory"] is not None:
        sampler.usage.add(id, row["memory"], row["cpu"], now)
    parts = _used(visit, id, now)
    known = journal_views(visit.site)
    # Whole seconds, so that requests within one second share a count.
    wanted = JobFilter(worker=exactly(id), since=float(int(time.time() - 3_600.0)))
    listing = listings.finished(visit, wanted, Paging(limit=tuning.MANY))
    return page(
        request,
        "worker.html",
        watched={"of": "workers"},
        worker=row,
        used=usage.newest(parts),
        **_charts(visit, parts, now),
        running=[{**job, "worker": id} for job in row["jobs"]],
        deployed=_deployed(visit),
        journal=known.progress,
        off=known.off,
        total=listing.total,
        finished=listing.rows,
        query=list_filter({"filter": f"since:1h {JobFilter(worker=exactly(id))}"}).query,
    )


def _gone(request: Request, visit: Visit, life: WorkerLife) -> Response:
    """Show the page of a worker that has ended or died."""
    wanted = JobFilter(worker=exactly(life.id))
    listing = listings.finished(visit, wanted, Paging(limit=tuning.MANY))
    return page(
        request,
        "worker_gone.html",
        watched={"of": "history"},
        worker=life.row(),
        total=listing.total,
        finished=listing.rows,
        query=filter_query(wanted),
    )


def _charts(visit: Visit, parts: Sequence[usage.Part], now: float) -> dict[str, Any]:
    """Return the charts of a worker's resource usage, with the deploys in that time."""
    known = journal_views(visit.site)
    report = known.report(Window.HOUR)
    deploys = report.deploys if report else []
    start = usage.begin(now)
    memory, cpu = [part.memory for part in parts], [part.cpu for part in parts]
    return {
        "memory_plot": usage_plot(memory, start=start, step=usage.PART, unit="bytes", deploys=deploys),
        "cpu_plot": usage_plot(cpu, start=start, step=usage.PART, unit="percent", deploys=deploys),
    }


#: The message after each order.
_DONE = {
    "quiet": "Asked {} to take no more jobs.",
    "resume": "Asked {} to take jobs again.",
    "stop": "Asked {} to finish the running jobs and end.",
    "kill": "Asked {} to kill the running jobs and end.",
}

#: The orders for which the number of workers must be typed if there are several.
_TYPED = ("quiet", "stop", "kill")


@router.post("/workers/{action}", name="control_workers")
def control(
    request: Request,
    visit: Visiting,
    action: str,
    worker: Annotated[list[str] | None, Form()] = None,
    number: Annotated[int, Form(ge=0)] = 0,
    job: Annotated[str, Form(max_length=1_000)] = "",
    typed: Annotated[str, Form(max_length=50)] = "",
) -> Response:
    """Send an order to these workers, or to all. `number` is the number of workers that the user saw.

    If the order is `stack`, only the stack of `job` is shown.
    """
    if action not in ACTIONS:
        raise Refused(404, f"{action[:80]!r} is not a worker command.")
    chosen = list(dict.fromkeys(each for each in worker or () if each))
    if number > 1 and not chosen:
        raise Refused(422, "no worker is selected. Go back and select at least one.")
    if len(chosen) > 1 and action in _TYPED and typed.strip() != str(len(chosen)):
        meant = count(len(chosen), "worker")
        raise Refused(422, f"{meant} are selected, but you typed {typed!r}. Go back and type {len(chosen)}.")
    rows = actions.control(visit, chosen or None, action)
    if action == "stack":
        return page(request, "stacks.html", job=job, answers=[_stacks(row, job) for row in rows if row["answered"]])
    silent = sum(not row["answered"] for row in rows)
    text = _DONE[action].format(chosen[0] if len(chosen) == 1 else count(len(rows), "worker"))
    if silent:
        text += f" {silent if len(chosen) != 1 else 'It'} did not answer yet, and may still execute the command."
    if gone := max(0, len(chosen) - len(rows)):
        text += f" {gone:,} had already ended."
    return redirect(request, path(request, "workers"), text, level="note" if silent or gone else "done")


def _stacks(row: Row, job: str) -> Row:
    """Return the stacks that a worker reported, by job, or only that of `job`."""
    stacks = [each for each in row.get("stacks", []) if "id" in each and job in ("", each["id"])]
    jobs = [{**each, "stacks": stacks_of(str(each["text"]))} for each in stacks]
    return {"worker": row["worker"], "text": row.get("text", ""), "jobs": jobs}


# -- the API

api = Router(prefix="/workers", tags=["workers"])

Order = Literal["quiet", "resume", "stop", "kill", "stack"]


class Answered(BaseModel):
    """The answer of one worker to an order."""

    model_config = ConfigDict(extra="allow")

    worker: str
    answered: bool = Field(description="False if it did not answer in time; it may still execute the command.")


@api.get("")
def api_workers(visit: Visiting) -> Rows[WorkerRow]:
    """All running workers, by id, with their running jobs."""
    return Rows[WorkerRow].whole([masked_worker(row, visit.site.hidden) for row in visit.inspector.workers.list()])


@api.get("/{id:palermo}")
def api_worker(visit: Visiting, id: str) -> WorkerUsageRow:
    """One running worker, by its id."""
    return masked_worker(visit.inspector.workers.show(id), visit.site.hidden)


@api.post("/{action}")
def api_control_all(visit: Visiting, action: Order) -> list[Answered]:
    """Send an order to all workers. Returns each worker's answer. Roles are as for one worker."""
    return [Answered.model_validate(row) for row in actions.control(visit, None, action)]


@api.post("/{id:palermo}/{action}")
def api_control(visit: Visiting, id: str, action: Order) -> Answered:
    """Send an order to a worker.

    `quiet`: take no more jobs. `resume`: take jobs again. `stop`: finish the running jobs and end. `kill`: requeue
    the running jobs and end. `stack`: return the stacks of its running jobs, as `text`. Role: operator; admin for
    stop and kill.
    """
    return Answered.model_validate(actions.control(visit, [id], action)[0])
