"""`/stats.txt`: the current counters for scripts, one on each line, as Resque has them.

`palermo.processed` and `palermo.failed` count what the live workers have done since they started. The lines that begin
with `journal.` count what all workers have done and what was enqueued, as far as the journal goes back (30 days at
most). They are there once the journal has been read, and missing if it is off.
"""

from collections.abc import Iterator
from urllib.parse import quote

from fastapi import APIRouter
from starlette.responses import PlainTextResponse, Response

from palermo.history.windows import Window
from palermo.inspector.rates import Snapshot
from palermo.webui.base.site import Visiting
from palermo.webui.state.journal_views import JournalViews, journal_views
from palermo.webui.state.live_state import live_state, totals_of

router = APIRouter()


@router.get("/stats.txt", name="stats")
def stats(visit: Visiting) -> Response:
    counters = (*_counters(live_state(visit.site).snapshot()), *_counted(journal_views(visit.site)))
    return PlainTextResponse("".join(f"{name}={value}\n" for name, value in counters))


def _counters(snapshot: Snapshot) -> Iterator[tuple[str, int]]:
    totals = totals_of(snapshot)
    yield "palermo.pending", totals.pending
    yield "palermo.in_progress", totals.in_progress
    yield "palermo.processed", sum(worker["processed"] for worker in snapshot.workers)
    yield "palermo.failed", sum(worker["failed"] for worker in snapshot.workers)
    yield "palermo.workers", totals.workers
    yield "palermo.working", sum(bool(worker["jobs"]) for worker in snapshot.workers)
    for row in snapshot.queues:
        yield f"queues.{_one_word(row['name'])}", row["pending"]


def _counted(known: JournalViews) -> Iterator[tuple[str, int]]:
    """The counters of the journal, and the Unix second since when it has counted."""
    report = known.report(Window.MONTH) if known.wait_until_read().ready else None
    if report is None:
        return
    yield "journal.since", int(report.known)
    for name, value in report.total.row().items():
        if isinstance(value, int):
            yield f"journal.{name}", value


def _one_word(name: str) -> str:
    """A queue's name, with the characters that would end the name or the line percent-encoded."""
    return "".join(letter if letter.isprintable() and letter != "=" else quote(letter) for letter in name)
