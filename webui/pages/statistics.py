"""The statistics of the last hour, day, week or month, and `/stats.txt` with the current counters."""

from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Query
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from palermo.contract.row_types import StatisticsRow
from palermo.contract.rows import iso_instant
from palermo.core.text import exactly
from palermo.errors import NotFound
from palermo.history.series import Window, times
from palermo.history.statistics import DIMENSIONS, Report, rate, report_row
from palermo.inspector.rates import Snapshot
from palermo.views.filter import filter_of
from palermo.webui import tuning
from palermo.webui.filters import Condition, filter_query, known_names, only_one, time_range
from palermo.webui.render import charts
from palermo.webui.render.rendering import page, path
from palermo.webui.site import Visiting, visit_of
from palermo.webui.state.changes import changes
from palermo.webui.state.journal_views import JournalViews, journal_views
from palermo.webui.state.live_state import live_state, totals_of
from palermo.webui.threads import Router

router = Router()

Instant = Annotated[str | None, Query(max_length=100)]


@router.get("/statistics", name="statistics", dependencies=[known_names()])
def statistics(
    request: Request,
    visit: Visiting,
    window: Window = Window.HOUR,
    queue: Condition = None,
    job: Condition = None,
    worker: Condition = None,
    since: Instant = None,
    until: Instant = None,
) -> Response:
    """Show the statistics of a window, or between two instants, for everything or for one queue, job or worker."""
    chosen = only_one(queue=queue, job=job, worker=worker)
    known = journal_views(visit.site)
    state = known.wait_until_read()
    asked = time_range(since, until)
    report = known.report(window, **chosen) if asked is None else known.range_report(asked[0], asked[1], **chosen)
    waiting = None if job or worker or asked else live_state(visit.site).sampler.waiting(window, queue)
    return page(
        request,
        "statistics.html",
        # A range doesn't change.
        watched={"of": "history"} if asked is None else None,
        state=state,
        off=known.off,
        windows=[(each.value, path(request, "statistics", {"window": each.value, **chosen})) for each in Window],
        asks={"since": since or "", "until": until or ""},
        chosen=next(iter(chosen.items()), None),
        everything=path(request, "statistics", {"window": window.value}),
        rows=tuning.MANY,
        waiting_plot=None if waiting is None else charts.waiting_plot(waiting, report.deploys if report else ()),
        waiting_most=max((count or 0 for count in waiting.most), default=0) if waiting else 0,
        **report_context(request, report, window if asked is None else None, **chosen),
    )


def report_context(request: Request, report: Report | None, window: Window | None, **chosen: str) -> dict[str, Any]:
    """Return the template values of a report for statistics_macros.html.

    `window` is None for a report between two instants.
    """
    known: dict[str, Any] = {"report": report, "window": window.value if window else "", "rate": rate, "times": times}
    if report is None:
        return known
    jobs = path(request, "history", filter_query(filter_of({by: exactly(name) for by, name in chosen.items()}, 0.0)))
    detail = path(request, "statistics", chosen)
    cells, deploys = report.cells, report.deploys
    waited, ran = [cell.tally.wait for cell in cells], [cell.tally.run for cell in cells]
    return known | {
        "cell": charts.in_short(cells[0].seconds),
        "runs_plot": charts.runs_plot(cells, deploys, jobs=jobs, detail=detail),
        "waited_plot": charts.durations_plot(cells, waited, deploys, jobs=jobs, detail=detail),
        "ran_plot": charts.durations_plot(cells, ran, deploys, jobs=jobs, detail=detail),
        "cells": [
            (iso_instant(cell.start), cell.tally, charts.jobs_of(jobs, cell))
            for cell in reversed(cells)
            if cell.tally.numbers
        ],
        "since": iso_instant(report.known),
        "changes": changes(visit_of(request).site, report.since, report.until, deploys),
        "tables": [(by, report.parts.get(by, ())) for by in DIMENSIONS],
    }


# -- /stats.txt


@router.get("/stats.txt", name="stats")
def stats(visit: Visiting) -> Response:
    """Return the current counters for scripts, one per line, in Resque's format.

    `palermo.processed` and `palermo.failed` count the work of the running workers since they started. Lines that start
    with `journal.` count the work of all workers, and all enqueued jobs, as far back as the journal goes (at most 30
    days). They are missing until the journal has been read, and if it is off.
    """
    counters = (*_counters(live_state(visit.site).snapshot()), *_counted(journal_views(visit.site)))
    return PlainTextResponse("".join(f"{name}={value}\n" for name, value in counters))


def _counters(snapshot: Snapshot) -> Iterator[tuple[str, int]]:
    totals = totals_of(snapshot)
    yield "palermo.pending", totals.pending
    yield "palermo.in_progress", totals.in_progress
    yield "palermo.processed", sum(worker["processed"] or 0 for worker in snapshot.workers)
    yield "palermo.failed", sum(worker["failed"] or 0 for worker in snapshot.workers)
    yield "palermo.workers", totals.workers
    yield "palermo.working", sum(bool(worker["jobs"]) for worker in snapshot.workers)
    for row in snapshot.queues:
        yield f"queues.{_one_word(row['name'])}", row["pending"]


def _counted(known: JournalViews) -> Iterator[tuple[str, int]]:
    """Yield the journal's counters, and since when they count, in Unix seconds."""
    known.wait_until_read()
    report = known.report(Window.MONTH)
    if report is None:
        return
    yield "journal.since", int(report.known)
    for name, value in report.total.row().items():
        if isinstance(value, int):
            yield f"journal.{name}", value


def _one_word(name: str) -> str:
    """Percent-encode the characters in a queue's name that would end the name or the line."""
    return "".join(letter if letter.isprintable() and letter != "=" else quote(letter) for letter in name)


# -- the API

api = Router(tags=["statistics"])


@api.get("/stats")
def api_stats(
    visit: Visiting,
    window: Window = Window.DAY,
    queue: Condition = None,
    job: Condition = None,
    worker: Condition = None,
) -> StatisticsRow:
    """The number of processed and failed jobs in the last hour, day, week or month, and their durations.

    Covers everything, by queue, job and worker, or only the named one. Workers and clients write the counts to the
    journal. 409 if the `journal` setting is off.
    """
    chosen = only_one(queue=queue, job=job, worker=worker)
    known = journal_views(visit.site)
    known.check_ready()
    report = known.report(window, **chosen)
    if report is None:
        of = "".join(f" of {by} {name[:80]!r}" for by, name in chosen.items())
        raise NotFound(f"there are no statistics{of} for the last 30 days.")
    if chosen:
        return report_row(report, (), ())
    snapshot = live_state(visit.site).snapshot()
    return report_row(report, snapshot.queues, snapshot.workers)
