"""The page of all job classes, and the page of one: its rates, times, error groups, last runs and options."""

import inspect
from typing import Annotated, Any

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from palermo.contract.recurring import RecurringJob
from palermo.contract.rows import Listing, Row
from palermo.core.failure import printable
from palermo.core.text import exactly
from palermo.errors import BrokerError
from palermo.history.series import Tally, Window, times
from palermo.history.statistics import Report
from palermo.jobs import registry
from palermo.jobs.definition import JobDefinition, JobSubscription
from palermo.jobs.option_kinds import Seconds
from palermo.jobs.options import JOB_OPTIONS, OPTIONS, RECURRING_OPTIONS
from palermo.settings.settings import Settings
from palermo.views.filter import JobFilter
from palermo.webui import tuning
from palermo.webui.failed.failed_jobs import failed_jobs
from palermo.webui.filters import Paging, filter_query, known_names
from palermo.webui.pages.enqueue import blank_form
from palermo.webui.pages.statistics import report_context
from palermo.webui.render import charts
from palermo.webui.render.formats import took
from palermo.webui.render.rendering import page, path
from palermo.webui.site import Visit, Visiting
from palermo.webui.state import listings
from palermo.webui.state.journal_views import journal_views
from palermo.webui.state.live_state import live_state, running_jobs
from palermo.webui.threads import Router

router = Router()


@router.get("/classes", name="job_classes", dependencies=[known_names()])
def job_classes(
    request: Request,
    visit: Visiting,
    window: Window = Window.DAY,
    name: Annotated[str, Query(max_length=1_000)] = "",
) -> Response:
    """Show all job classes: those counted in the window, busiest first, and those whose code is imported."""
    known = journal_views(visit.site)
    state = known.wait_until_read()
    report = known.report(window)
    rows = [row for row in _rows(report) if name.casefold() in row["name"].casefold()]
    shown = rows[: tuning.MANY]
    counts = known.statistics.counts(window, "job", [row["name"] for row in shown]) if state.ready else {}
    return page(
        request,
        "job_classes.html",
        watched={"of": "history"},
        state=state,
        off=known.off,
        window=window.value,
        windows=[(each.value, path(request, "job_classes", {"window": each.value, "name": name})) for each in Window],
        name=name,
        rows=[{**row, "spark": charts.spark(counts.get(row["name"], ()), begun=True)} for row in shown],
        total=len(rows),
        times=times,
    )


def _rows(report: Report | None) -> list[Row]:
    parts = report.parts["job"] if report is not None else ()
    counted = {part.name: part.tally for part in parts if part.name is not None}
    known = [name for name in registry.names() if name not in counted]
    return [{"name": name, "tally": tally} for name, tally in (*counted.items(), *((name, Tally()) for name in known))]


@router.get("/classes/{name:palermo}", name="job_class")
def job_class(request: Request, visit: Visiting, name: str, window: Window = Window.DAY) -> Response:
    known = journal_views(visit.site)
    state = known.wait_until_read()
    running = [job for job in running_jobs(live_state(visit.site).snapshot()) if job["job"] == name]
    definition = registry.find(name)
    return page(
        request,
        "job_class.html",
        watched={"of": "history"},
        state=state,
        off=known.off,
        name=name,
        windows=[(each.value, path(request, "job_class", {"window": each.value}, name=name)) for each in Window],
        running=running[: tuning.SOME],
        running_count=len(running),
        options=None if definition is None else job_options(definition, visit.site.client.settings),
        signature="" if definition is None else str(definition.signature),
        about="" if definition is None else (inspect.getdoc(definition.target) or "").partition("\n\n")[0],
        recurring=_recurring(visit, name),
        form=blank_form(job=name),
        waiting_plot=None,
        **_failures(visit, name),
        **_last(visit, name),
        **report_context(request, known.report(window, job=name), window, job=name),
    )


def _failures(visit: Visit, name: str) -> dict[str, Any]:
    found = failed_jobs(visit.site)
    reading = found.view.update()
    chosen = JobFilter(job=exactly(name))
    groups = found.groups(chosen, Paging(limit=tuning.SOME)) if reading.ready else Listing[Row]([], 0)
    return {
        "reading": reading,
        "kinds": groups.total,
        "failed_total": found.view.index.count(chosen) if reading.ready else 0,
        "job_query": filter_query(chosen),
        "groups": groups.rows,
        "sparkline": charts.sparkline,
    }


def _recurring(visit: Visit, name: str) -> list[Row]:
    """Return the recurring jobs that start it; empty if they can't be read at present."""
    try:
        return [row for row in listings.recurring(visit) if row["job"] == name]
    except BrokerError:
        return []


def _last(visit: Visit, name: str) -> dict[str, Any]:
    """Return its last finished runs."""
    known = journal_views(visit.site)
    found = known.index.page(JobFilter(job=exactly(name)), limit=tuning.SOME) if known.ready else []
    return {"finished": [entry.row() for entry in found]}


#: The options displayed if declared, in order.
_SHOWN = (
    *(name for name in JOB_OPTIONS if name not in ("queue", "name", *RECURRING_OPTIONS)),
    "recurring",
    "subscribes",
)


def job_options(definition: JobDefinition, settings: Settings) -> list[tuple[str, str]]:
    """Return the options declared by a job, and its queue, as pairs of name and text."""
    found = [("queue", printable(definition.queue_in(settings)))]
    for name in _SHOWN:
        value = getattr(definition, name)
        if value is not None and value is not False and value != "" and value != 0.0:
            is_duration = name in OPTIONS and isinstance(OPTIONS[name].kind, Seconds)
            found.append((name, printable(took(value) if is_duration else _text(value))))
    return found


def _text(value: Any) -> str:
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, RecurringJob):
        return value.in_words()
    if isinstance(value, JobSubscription):
        return f"{', '.join(value.topics)} as {value.group}"
    if isinstance(value, list | tuple):
        return ", ".join(_text(each) for each in value)
    return f"by {getattr(value, '__qualname__', type(value).__name__)}()" if callable(value) else str(value)
