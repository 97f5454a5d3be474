"""`/stats.txt`: the counters of this moment for scripts, a line each, as Resque has them.

`palermo.processed` and `palermo.failed` are what the workers that live have done since they started. What
all have done, and what was enqueued, as far as the journal goes back (30 days at most), is behind `journal.`; those
lines are there once the journal has been read, and not where it is off.
"""

from collections.abc import Iterator
from urllib.parse import quote

from fastapi import APIRouter
from starlette.responses import PlainTextResponse, Response

from palermo.history.windows import Window
from palermo.sampling import Snapshot
from palermo.webui.journaled import Journaled, journaled
from palermo.webui.site import Visiting
from palermo.webui.watching import totals_of, watching

router = APIRouter()


@router.get("/stats.txt", name="stats")
def stats(visit: Visiting) -> Response:
    counters = (*_counters(watching(visit.site).snapshot()), *_counted(journaled(visit.site)))
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


def _counted(known: Journaled) -> Iterator[tuple[str, int]]:
    """What the journal has counted, with the Unix second since when."""
    report = known.report(Window.MONTH) if known.look().ready else None
    if report is None:
        return
    yield "journal.since", int(report.known)
    for name, value in report.total.row().items():
        if isinstance(value, int):
            yield f"journal.{name}", value


def _one_word(name: str) -> str:
    """A queue's name without what would end the name or the line."""
    return "".join(letter if letter.isprintable() and letter != "=" else quote(letter) for letter in name)
