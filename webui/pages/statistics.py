"""The statistics of the last hour, day, week and month: of everything, or of one queue, job or worker."""

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from palermo.history.reporting import rate
from palermo.history.statistics import DIMENSIONS, Report
from palermo.history.tally import times
from palermo.history.windows import Window
from palermo.rows import instant
from palermo.webui import series_chart
from palermo.webui.errors import Refused
from palermo.webui.journaled import journaled
from palermo.webui.rendering import page, path
from palermo.webui.site import Visiting

router = APIRouter()

#: Rows of a table; the API has all.
_ROWS = 100

#: What stands under the charts, at the left and in the middle.
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
    """One window."""
    chosen = {by: name for by, name in (("queue", queue), ("job", job), ("worker", worker)) if name}
    if len(chosen) > 1:
        raise Refused(422, f"statistics are of one queue, job or worker, and not of {' and '.join(chosen)} at once.")
    known = journaled(visit.site)
    state = known.look()
    report = known.report(window, **chosen) if state.ready else None
    here = path(request, "statistics")
    return page(
        request,
        "statistics.html",
        watched="history",
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
        "cell": series_chart.in_short(cells[0].seconds),
        "bars": series_chart.bars(cells),
        "waited": series_chart.lines([cell.tally.wait for cell in cells]),
        "ran": series_chart.lines([cell.tally.run for cell in cells]),
        "marks": series_chart.marks(report.deploys, cells),
        "cells": [(instant(cell.start), cell.tally) for cell in reversed(cells) if cell.tally.numbers],
        "since": instant(report.known),
        "deploys": [(instant(deploy.at), deploy.release) for deploy in reversed(report.deploys)],
        "tables": [(by, report.parts.get(by, ())) for by in DIMENSIONS],
    }
