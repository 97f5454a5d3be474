"""The style page, `/styleguide`: every component of the pages with made-up values. It is not part of the package.

`python -m tests.webui.styleguide` serves it, and the tests of the looks open it.
"""

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI
from jinja2 import FileSystemLoader
from starlette.requests import Request
from starlette.responses import Response

from palermo.contract.broker import Finding
from palermo.contract.rows import iso_instant
from palermo.history.series import FINE, Cell, Window
from palermo.history.statistics import Deploy
from palermo.history.tally import Tally
from palermo.webui.pages.forms import ShownForm
from palermo.webui.pages.problems import ShownProblem
from palermo.webui.render import charts, rendering
from palermo.webui.render.formats import pretty_json
from palermo.webui.render.job_life import Event
from palermo.webui.render.rendering import Message
from palermo.webui.render.tracebacks import parts_of
from palermo.webui.state.waiting import WaitingJobs

_HERE = Path(__file__).parent

_TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/payments.py", line 41, in charge
    return read(answer)
  File "/usr/lib/python3.12/json/__init__.py", line 346, in loads
    return _default_decoder.decode(s)
  File "/usr/lib/python3.12/json/decoder.py", line 337, in decode
    obj, end = self.raw_decode(s, idx=_w(s, 0).end())
json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)
"""

#: All that a badge of a job or of a worker can say.
_STATES = (
    *("pending", "scheduled", "retrying", "running", "failed", "done", "discarded", "cancelled"),
    *("starting", "idle", "working", "quiet", "paused", "stopping", "silent", "unasked"),
)

router = APIRouter()


@router.get("/styleguide", name="styleguide")
def styleguide(request: Request) -> Response:
    """Every component."""
    return rendering.page(request, "styleguide.html", **_values(datetime.now(UTC)))


def add_styleguide(app: FastAPI) -> None:
    """Let an application serve the style page, too."""
    loader = rendering.environment.loader
    assert isinstance(loader, FileSystemLoader)
    if str(_HERE) not in loader.searchpath:
        loader.searchpath.append(str(_HERE))
    app.include_router(router, include_in_schema=False)


def _values(now: datetime) -> dict[str, Any]:
    def before(seconds: float) -> str:
        return iso_instant((now - timedelta(seconds=seconds)).timestamp()) or ""

    running = {
        "id": "0c25eb17-1111-4c1f-9a55-3f0f6c1d1f6e",
        "job": "shop.reports.Nightly",
        "name": "shop.reports.Nightly",
        "queue": "reports",
        "worker": "4051@web-1.example.com",
        "preview": "'2026-11-20', region='eu'",
        "started_at": before(83),
        "progress": 0.42,
        "text": "row 25,200 of 60,000",
        "line": None,
    }
    finished = {
        "id": "84ae8efa-2222-4c1f-9a55-3f0f6c1d1f6e",
        "job": "shop.payments.Charge",
        "queue": "payments",
        "state": "failed",
        "finished_at": before(5),
        "wait": 0.034,
        "took": 1.3,
        "attempt": 2,
        "worker": "4050@web-1.example.com",
        "error": {"class": "shop.CardDeclined", "message": "order 1786: insufficient funds"},
        "reason": None,
    }
    return {
        "form": ShownForm(
            "style",
            {"name": " a ", "when": "", "on": "2026-12-01T09:00", "zone": "Europe/Rom"},
            {"name": "this name has a blank at its end.", "zone": "'Europe/Rom' is no time zone."},
        ),
        **_charts(now.timestamp()),
        "flashes": [
            Message("done", "Requeued 3 jobs."),
            Message("note", "Cancelled 2 jobs. 1 had become due, or didn't exist."),
            Message("error", "QueueNameInvalid: queue name 'mail ' ends in a space."),
        ],
        "states": _STATES,
        "running": [running, {**running, "progress": None, "text": "", "line": "wrote rows 100 to 199"}],
        "finished": [finished, {**finished, "state": "done", "error": None, "attempt": 1}],
        "found": [
            {**finished, "preview": "order 1786", "at": before(5), "run_at": None},
            {**finished, "preview": None, "state": "scheduled", "error": None, "at": None, "run_at": before(-900)},
        ],
        "problems": [
            ShownProblem(
                Finding.problem("alarms", "a memory or disk alarm blocks publishers", "Free memory or disk space.")
            ),
            ShownProblem(
                Finding.warning("queue mail", "12 jobs wait, and no worker takes jobs from it", "Start a worker."),
                "Queue mail",
                "#problems-title",
            ),
        ],
        "value": pretty_json({"id": 1786, "lines": [{"sku": "A-17", "count": 2}] * 3, "total": "41.90", "paid": None}),
        "parts": parts_of(_TRACEBACK),
        "events": [
            Event(title="Enqueued", at=before(90), detail="to payments"),
            Event(title="Started", at=before(89), detail="at 4050@web-1.example.com", took=1.0),
            Event(title="Failed", at=before(88), detail="shop.BankBusy, tried again in 15 s", outcome="bad", took=1.2),
            Event(title="Done", at=before(60), detail="at 4050@web-1.example.com", outcome="good", took=28.0),
            Event(title="Running", at=before(3), detail="at 4051@web-1.example.com", counting=True),
        ],
        "long": "a_word_without_any_blank_" * 8,
        "instant": before(200),
    }


def _charts(now: float) -> dict[str, Any]:
    """An hour of a queue that is busy in waves, with a deploy in it."""
    grid = FINE[Window.HOUR]
    cells = []
    for nth in range(120):
        good = round(20 + 15 * math.sin(nth / 9))
        tally = Tally(numbers={"succeeded": good, "failed": nth % 7 // 5, "enqueued": good + nth % 3})
        for seconds in (0.05, 0.2, 0.2, 1.0 + nth % 11 / 4):
            tally.run.add(seconds * (1 + nth / 240))
        cells.append(Cell(now - grid.span + nth * grid.cell, grid.cell, tally))
    deploys, ran = [Deploy(now - 1_500, "2.14.0")], [cell.tally.run for cell in cells]
    waiting = WaitingJobs(cells[0].start, grid.cell, [None if nth < 60 else nth * nth for nth in range(120)])
    return {
        "runs_plot": charts.runs_plot(cells, deploys, jobs="/history"),
        "durations_plot": charts.durations_plot(cells, ran, deploys, jobs="/history"),
        "waiting_plot": charts.waiting_plot(waiting),
    }
