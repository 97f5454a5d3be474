"""The overview, the pages of all queues and of one queue with its jobs and actions, and that of their tenants."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Form, Query
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from palermo.contract.row_types import JobRow, QueueRow, TenantRow
from palermo.contract.rows import Listing, Row, silent_text
from palermo.core.queue_selection import QueueSelection
from palermo.core.text import count, exactly
from palermo.core.topology import is_failed
from palermo.errors import NotBrowsable, NotFound, PalermoError
from palermo.history.series import Window, times
from palermo.history.statistics import Rates
from palermo.jobs import registry
from palermo.views.facts import facts_of_row
from palermo.views.filter import JobFilter
from palermo.webui import actions, tuning
from palermo.webui.api.rows import Removed, Rows
from palermo.webui.failed.failed_jobs import failed_jobs
from palermo.webui.failed.operations import operations
from palermo.webui.filters import (
    LISTED,
    ApiPage,
    Condition,
    PageLimit,
    PageNumber,
    Paging,
    asked_filter,
    checked_depth,
    filter_query,
    known_names,
    list_filter,
)
from palermo.webui.pages.enqueue import blank_form
from palermo.webui.pages.problems import shown_problem
from palermo.webui.render.charts import Spark, runs_plot, spark, throughput
from palermo.webui.render.rendering import listed, page, path, redirect
from palermo.webui.site import Refused, Visit, Visiting
from palermo.webui.state import listings
from palermo.webui.state.changes import changes
from palermo.webui.state.journal_views import journal_views
from palermo.webui.state.live_state import QueuePage, live_state, running_jobs, totals_of
from palermo.webui.state.problems import problems
from palermo.webui.threads import Router

#: Maximum number of problems and queues on the overview, and the seconds for which changes are shown.
_PROBLEMS, _QUEUES, _LAST_HOUR = 3, 10, 3_600.0


router = Router()

Name = Annotated[str, Query(max_length=200)]
Reason = Annotated[str, Form(max_length=500)]


@router.get("/", name="overview")
def overview(request: Request, visit: Visiting) -> Response:
    live = live_state(visit.site)
    snapshot = live.snapshot()
    known = journal_views(visit.site)
    shown = live.queue_page(snapshot, limit=_QUEUES)
    report, totals = known.report(Window.HOUR), totals_of(snapshot)
    chart = throughput(live.sampler.samples(), snapshot.at, report=report, jobs=path(request, "history"))
    waited = times(report.total.wait) if report else None
    present = problems(visit.site).now()
    return page(
        request,
        "overview.html",
        listed=shown,
        totals=totals,
        error_rate=chart.failed_count / chart.processed_count if chart.processed_count else None,
        waited=waited["p95"] if waited else None,
        drains=_drains(snapshot.queues, known.rates(row["name"] for row in snapshot.queues)),
        problems=[shown_problem(request, each) for each in present[:_PROBLEMS]],
        more_problems=max(0, len(present) - _PROBLEMS),
        running=running_jobs(snapshot)[: tuning.SOME],
        changes=changes(visit.site, snapshot.at - _LAST_HOUR, snapshot.at, report.deploys if report else ()),
        processed_rate=live.sampler.throughput()[0],
        all_paused=snapshot.all_paused,
        sparks=_sparks(visit, shown),
        pause_of_all=journal_views(visit.site).pause() if snapshot.all_paused else None,
        chart=chart,
    )


def _drains(queues: Iterable[Row], rates: Mapping[str, Rates]) -> float | None:
    """Return the seconds until all waiting jobs will have started at the current rates; None if a queue doesn't
    drain.
    """
    longest = 0.0
    for row in queues:
        enqueued, ended = (rate.enqueued, rate.ended) if (rate := rates.get(row["name"])) else (0.0, 0.0)
        # A queue with only a moment's work counts as empty.
        if not is_failed(row["name"]) and row["pending"] > ended:
            if ended <= enqueued:
                return None
            longest = max(longest, row["pending"] / (ended - enqueued))
    return longest


@router.get("/queues", name="queues", dependencies=[known_names()])
def queues(request: Request, visit: Visiting, name: Name = "", number: PageNumber = 1) -> Response:
    live = live_state(visit.site)
    snapshot = live.snapshot()
    shown = live.queue_page(snapshot, name=name, number=number)
    asks = {"name": name} if name else {}
    return page(
        request,
        "queues.html",
        listed=shown,
        at="?" + urlencode(asks | {"page": ""}),
        query=urlencode(asks | ({"page": number} if number > 1 else {})),
        name=name,
        sparks=_sparks(visit, shown),
        all_paused=snapshot.all_paused,
        pause_of_all=journal_views(visit.site).pause() if snapshot.all_paused else None,
        form=blank_form(),
    )


def _sparks(visit: Visit, listed: QueuePage) -> dict[str, Spark]:
    """Return the small charts of the last hour, by queue; empty if the journal is off or still being read."""
    known = journal_views(visit.site)
    if not known.ready:
        return {}
    counts = known.statistics.counts(Window.HOUR, "queue", [row.name for row in listed.rows])
    return {name: spark(parts, begun=True) for name, parts in counts.items()}


@router.get("/queues/{name:palermo}", name="queue", dependencies=[known_names(*LISTED)])
def queue(
    request: Request,
    visit: Visiting,
    name: str,
    newest: bool = False,
    number: PageNumber = 1,
    depth: int = tuning.DEPTHS[0],
) -> Response:
    checked_depth(depth)
    live = live_state(visit.site)
    snapshot = live.snapshot()
    rows = [row for row in snapshot.queues if row["name"] == name]
    if not rows:
        raise NotFound(
            f"there is no queue {name!r}. A queue is created when the first job is enqueued to it. A queue that another"
            " program created appears once a worker serves it."
        )
    line = live.queue_summary(snapshot, rows[0])
    if line.failed:
        return redirect(request, path(request, "failures"))
    found, unseen, paging = Listing[Row]([], 0), "", Paging(number)
    asked = list_filter(request.query_params)
    wanted = asked.filter
    try:
        if line.pending:
            found = _jobs(visit, name, wanted, paging, newest=newest, depth=depth)
    except NotBrowsable as error:
        unseen = str(error)
    jobs = found.rows
    searched = line.pending if wanted.everything else min(depth, line.pending)
    how = {"newest": "1" if newest else "", "depth": "" if depth == tuning.DEPTHS[0] else str(depth)}
    kept = {each: value for each, value in ({"filter": asked.text} | how).items() if value}
    # A page that reads thousands of jobs isn't updated after each change.
    updates: dict[str, Any] = {} if depth == tuning.DEPTHS[0] else {"watched": None}
    deeper = next((each for each in tuning.DEPTHS if each > depth), None) if searched < line.pending else None
    return page(
        request,
        "queue.html",
        queue=line,
        # A silent worker whose queues are unknown may serve this one.
        silent=silent_text(
            row for row in snapshot.workers if row["pid"] is None or any(job["queue"] == name for job in row["jobs"])
        ),
        all_paused=snapshot.all_paused,
        jobs=jobs,
        types=Counter(row["content_type"] for row in jobs).most_common(),
        unseen=unseen,
        running=running_jobs(snapshot, name)[: tuning.SOME],
        asked_for=asked,
        query=asked.query,
        operations=[each for each in operations(visit.site).running() if each.waits_in == name],
        newest=newest,
        searched=searched,
        deeper=deeper,
        search_deeper="?" + urlencode(kept | {"depth": deeper}),
        **listed(Listing(jobs, line.pending if wanted.everything else found.total), paging, kept),
        pause=journal_views(visit.site).pause(name) if line.paused else None,
        pause_of_all=journal_views(visit.site).pause() if snapshot.all_paused else None,
        consumers=_consumers(snapshot.workers, name)[: tuning.ROWS],
        form=blank_form(queue=name),
        **updates,
        **_sharing(visit, name),
        **_hour(request, visit, name),
    )


def _serves(worker: Row, queue: str) -> bool:
    """Whether a queue is in a worker's selection, by name, with a weight or by a pattern."""
    return bool(worker["queues"]) and queue in QueueSelection.parse(worker["queues"]).select([queue])


def _consumers(workers: Iterable[Row], queue: str) -> list[Row]:
    """Return the workers that serve a queue. `here` is the number of that queue's jobs that a worker is running."""
    return [
        {**worker, "here": sum(job["queue"] == queue for job in worker["jobs"])}
        for worker in workers
        if _serves(worker, queue)
    ]


def _sharing(visit: Visit, queue: str) -> dict[str, Any]:
    """Return the tenants with jobs in a queue, and the limits of its jobs, seen or declared."""
    found: dict[str, Any] = {"tenant_jobs": 0, "tenants": [], "limits": []}
    with suppress(PalermoError):
        tenants = visit.inspector.tenants.list(queue, limit=sys.maxsize).rows
        found |= {"tenant_jobs": sum(one["pending"] for one in tenants), "tenants": tenants[: tuning.SOME]}
    snapshot = live_state(visit.site).snapshot(5.0)
    jobs = {job["job"] for job in running_jobs(snapshot, queue)}
    jobs |= {job for job in registry.names() if registry.get(job).queue == queue}
    # Ask the leader only if there may be limits: without workers no limited job runs.
    if jobs and snapshot.workers:
        with suppress(PalermoError):
            # A key is a job's name, followed by a colon and more if the job has several keys.
            limited = [row for row in visit.inspector.keys.limits() if row["key"].partition(":")[0] in jobs]
            found["limits"] = limited[: tuning.SOME]
    return found


def _hour(request: Request, visit: Visit, queue: str) -> dict[str, Any]:
    """Return a queue's counts in the last hour from the journal, and the number of its failed jobs."""
    chosen = JobFilter(queue=exactly(queue))
    view = failed_jobs(visit.site).view
    reading = view.update()
    found: dict[str, Any] = {
        "failed": view.index.count(chosen) if reading.ready else None,
        "queue_query": filter_query(chosen),
        "report": None,
        "plot": None,
    }
    report = journal_views(visit.site).report(Window.HOUR, queue=queue)
    if report is None:
        return found
    jobs = path(request, "history", filter_query(chosen))
    detail = path(request, "statistics", {"queue": queue})
    return found | {
        "report": report,
        "plot": runs_plot(report.cells, report.deploys, jobs=jobs, detail=detail),
    }


def _jobs(visit: Visit, name: str, wanted: JobFilter, paging: Paging, *, newest: bool, depth: int) -> Listing[Row]:
    """Return a page of the jobs that match the filter among the first `depth` jobs, with the number of matches as
    total.
    """
    if wanted.everything:
        return listings.jobs(visit, name, paging=paging, newest=newest)
    rows = listings.jobs(visit, name, paging=Paging(limit=depth), newest=newest).rows
    found = [{**row, "position": nth} for nth, row in enumerate(rows, start=1) if wanted.matches(facts_of_row(row))]
    return Listing(paging.cut(found), len(found))


@router.post("/queues/{name:palermo}/purge", name="purge_queue")
def purge(request: Request, visit: Visiting, name: str) -> Response:
    removed = actions.purge(visit, name)
    return redirect(request, path(request, "queue", name=name), f"Removed {count(removed, 'job')} from {name}.")


@router.post("/queues/{name:palermo}/delete", name="delete_queue")
def delete(request: Request, visit: Visiting, name: str) -> Response:
    removed = actions.delete_queue(visit, name)
    return redirect(request, path(request, "queues"), f"Deleted {name} with {count(removed, 'job')}.")


@router.post("/queues/pause", name="pause_all")
def pause_all(request: Request, visit: Visiting, reason: Reason = "") -> Response:
    actions.pause_all(visit, reason=reason.strip())
    text = "All queues are paused until they are resumed. Running jobs continue."
    return redirect(request, path(request, "queues"), text)


@router.post("/queues/resume", name="resume_all")
def resume_all(request: Request, visit: Visiting) -> Response:
    actions.resume_all(visit)
    return redirect(request, path(request, "queues"), "Resumed all queues except those paused individually.")


@router.post("/queues/pause-selected", name="pause_queues")
def pause_some(
    request: Request, visit: Visiting, id: Annotated[list[str] | None, Form()] = None, reason: Reason = ""
) -> Response:
    """Pause the selected queues, and redirect to the page on which they were selected.

    The URL contains that page's query.
    """
    done, gone = _each(id, lambda name: actions.pause(visit, name, reason=reason.strip()))
    text = f"Paused {actions.describe_ids(done)}. Running jobs continue." if done else "No queue was paused."
    return _outcome_of_some(request, text, gone)


@router.post("/queues/resume-selected", name="resume_queues")
def resume_some(request: Request, visit: Visiting, id: Annotated[list[str] | None, Form()] = None) -> Response:
    """Resume the selected queues. The query is as in `pause_some`."""
    done, gone = _each(id, lambda name: actions.resume(visit, name))
    text = f"Resumed {actions.describe_ids(done)}." if done else "No queue was resumed."
    return _outcome_of_some(request, text, gone)


def _each(queues: list[str] | None, act: Callable[[str], object]) -> tuple[list[str], list[str]]:
    """Act on each selected queue. Returns the names of the successful ones, and of queues that no longer exist.

    Raises Refused (422) if none is selected.
    """
    if not queues:
        raise Refused(422, "no queue is selected. Go back and select at least one.")
    done, gone = list[str](), list[str]()
    for name in dict.fromkeys(queues):
        try:
            act(name)
        except NotFound:
            gone.append(name)
        else:
            done.append(name)
    return done, gone


def _outcome_of_some(request: Request, text: str, gone: list[str]) -> Response:
    note = f" {actions.describe_ids(gone)} no longer {'exists' if len(gone) == 1 else 'exist'}." if gone else ""
    to = path(request, "queues", request.url.query)
    return redirect(request, to, text + note, level="note" if gone else "done")


@router.post("/queues/{name:palermo}/pause", name="pause_queue")
def pause(request: Request, visit: Visiting, name: str, reason: Reason = "") -> Response:
    actions.pause(visit, name, reason=reason.strip())
    text = f"{name} is paused until it is resumed. Running jobs continue."
    if reason.strip():
        text = f"{name} is paused: {reason.strip()}."
    return redirect(request, path(request, "queue", request.url.query, name=name), text)


@router.post("/queues/{name:palermo}/resume", name="resume_queue")
def resume(request: Request, visit: Visiting, name: str) -> Response:
    actions.resume(visit, name)
    return redirect(request, path(request, "queue", request.url.query, name=name), f"Resumed {name}.")


# -- the tenants that share queues


@router.get("/tenants", name="tenants", dependencies=[known_names()])
def tenants(
    request: Request, visit: Visiting, queue: Annotated[str, Query(max_length=127)] = "", number: PageNumber = 1
) -> Response:
    shared = visit.inspector.tenants.totals()
    chosen, paging = queue or next(iter(shared), ""), Paging(number)
    listing = Listing[Any]([], 0)
    if chosen:
        listing = visit.inspector.tenants.list(chosen, offset=paging.offset, limit=paging.limit)
    rows = [{**row, "key": nth} for nth, row in enumerate(listing.rows)]
    return page(
        request,
        "tenants.html",
        shared=shared,
        queue=chosen,
        **listed(Listing(rows, listing.total), paging, {"queue": chosen}),
    )


@router.post("/tenants/{name:palermo}/clear", name="clear_tenant")
def clear_tenant(request: Request, visit: Visiting, name: str, tenant: Annotated[str, Form()]) -> Response:
    """Remove a tenant's waiting jobs. The query is that of the list, to which the user returns."""
    to = path(request, "tenants", request.url.query or {"queue": name})
    try:
        removed = actions.clear_tenant(visit, name, tenant)
    except PalermoError as error:
        return redirect(request, to, str(error), level="error")
    return redirect(request, to, f"Removed {count(removed, 'job')} of {tenant} from {name}.")


# -- the API

api = Router(prefix="/queues", tags=["queues"])


class AllPaused(BaseModel):
    """Whether all queues are paused."""

    all_paused: bool


@api.get("")
def api_queues(visit: Visiting) -> Rows[QueueRow]:
    """All queues by name. `failed` is always included."""
    return Rows[QueueRow].whole(visit.inspector.queues.list())


@api.get("/{name:palermo}/jobs")
def api_queue_jobs(
    visit: Visiting,
    name: str,
    filter: Condition = None,
    page: PageNumber = 1,
    limit: PageLimit = 100,
    newest: bool = False,
) -> Rows[JobRow]:
    """Waiting jobs of a queue, oldest first. A filter is compared with the first 10,000 of them.

    Reading takes no job and keeps the order. Quorum queues aren't read (409), because that would count towards the
    delivery limit of their jobs.
    """
    wanted: JobFilter = asked_filter({"filter": filter})
    paging = Paging(page, limit)
    return Rows[JobRow].of(listings.jobs(visit, name, paging=paging, newest=newest, filter=wanted), paging)


@api.get("/{name:palermo}/tenants")
def api_tenants(visit: Visiting, name: str, paging: ApiPage, tenant: str | None = None) -> Rows[TenantRow]:
    """The tenants with waiting jobs in a queue, largest first, or only one tenant.

    With thousands of tenants the counts may be a few seconds old.
    """
    listing = visit.inspector.tenants.list(name, tenant, offset=paging.offset, limit=paging.limit)
    return Rows[TenantRow].of(listing, paging)


@api.delete("/{name:palermo}/tenants/{tenant:palermo}")
def api_clear_tenant(visit: Visiting, name: str, tenant: str) -> Removed:
    """Remove a tenant's waiting jobs from a queue. Running jobs continue. Role: admin."""
    return Removed(removed=actions.clear_tenant(visit, name, tenant))


@api.post("/pause")
def api_pause_all(visit: Visiting) -> AllPaused:
    """Pause all queues for all workers until they are resumed, including queues created later. Role: operator."""
    actions.pause_all(visit)
    return AllPaused(all_paused=True)


@api.post("/resume")
def api_resume_all(visit: Visiting) -> AllPaused:
    """End the pause of all queues. Queues that were paused by name remain paused. Role: operator."""
    actions.resume_all(visit)
    return AllPaused(all_paused=False)


@api.post("/{name:palermo}/pause")
def api_pause(visit: Visiting, name: str) -> QueueRow:
    """Pause a queue: no worker takes jobs from it until it is resumed. Running jobs continue. Role: operator."""
    return actions.pause(visit, name)


@api.post("/{name:palermo}/resume")
def api_resume(visit: Visiting, name: str) -> QueueRow:
    """Resume a paused queue. It remains paused while all queues are paused. Role: operator."""
    return actions.resume(visit, name)


@api.post("/{name:palermo}/purge")
def api_purge(visit: Visiting, name: str) -> Removed:
    """Remove all waiting jobs of a queue. Jobs that a worker holds are not removed. Role: admin."""
    return Removed(removed=actions.purge(visit, name))


@api.post("/purge")
def api_purge_all(visit: Visiting) -> Removed:
    """Remove all waiting jobs of all queues. Failed, scheduled and running jobs are not removed. Role: admin."""
    return Removed(removed=sum(actions.purge_all(visit).values()))


@api.delete("/{name:palermo}")
def api_delete_queue(visit: Visiting, name: str) -> Removed:
    """Delete a queue with its waiting jobs. Role: admin."""
    return Removed(removed=actions.delete_queue(visit, name))
