"""The page of statistics of the last hour, day, week or month: of everything, or of one queue, job or worker."""

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from palermo.contract.rows import iso_instant
from palermo.history.report_rows import rate
from palermo.history.statistics import DIMENSIONS, Report
from palermo.history.tally import times
from palermo.history.windows import Window
from palermo.webui.base.errors import Refused
from palermo.webui.base.site import Visiting
from palermo.webui.render import statistics_charts
from palermo.webui.render.rendering import page, path
from palermo.webui.state.journal_views import journal_views

router = APIRouter()

#: The most rows of a table. The API has all.
_ROWS = 100

#: The labels under the charts, at the left and in the middle.
_AGO = {
    Window.HOUR: ("60 min ago", "30 min"),
    Window.DAY: ("24 h ago", "12 h"),
    Window.WEEK: ("7 days ago", "3½ days"),
    Window.MONTH: ("30 days ago", "15 days"),
}

Name = Annotated[str | None, Query(max_length=1_000)]


@router.get("/statistics", name="statistics")
def statistics(
    request: Request,
    visit: Visiting,
    window: Window = Window.HOUR,
    queue: Name = None,
    job: Name = None,
    worker: Name = None,
) -> Response:
    """The statistics of one window."""
    chosen = {by: name for by, name in (("queue", queue), ("job", job), ("worker", worker)) if name}
    if len(chosen) > 1:
        raise Refused(422, f"statistics are of one queue, job or worker, and not of {' and '.join(chosen)} at once.")
    known = journal_views(visit.site)
    state = known.wait_until_read()
    report = known.report(window, **chosen) if state.ready else None
    here = path(request, "statistics")
    return page(
        request,
        "statistics.html",
        watched={"of": "history"},
        state=state,
        off=known.off,
        window=window.value,
        windows=[(each.value, f"{here}?{urlencode({'window': each.value, **chosen})}") for each in Window],
        chosen=next(iter(chosen.items()), None),
        everything=f"{here}?{urlencode({'window': window.value})}",
        report=report,
        ago=_AGO[window],
        rows=_ROWS,
        rate=rate,
        times=times,
        **(_charts(report) if report is not None else {}),
    )


def _charts(report: Report) -> dict[str, Any]:
    cells = report.cells
    return {
        "cell": statistics_charts.in_short(cells[0].seconds),
        "bars": statistics_charts.bars(cells),
        "waited": statistics_charts.lines([cell.tally.wait for cell in cells]),
        "ran": statistics_charts.lines([cell.tally.run for cell in cells]),
        "marks": statistics_charts.marks(report.deploys, cells),
        "cells": [(iso_instant(cell.start), cell.tally) for cell in reversed(cells) if cell.tally.numbers],
        "since": iso_instant(report.known),
        "deploys": [(iso_instant(deploy.at), deploy.release) for deploy in reversed(report.deploys)],
        "tables": [(by, report.parts.get(by, ())) for by in DIMENSIONS],
    }
