"""`/stats.txt`: the counters of this moment for scripts, a line each, as Resque has them.

`processed` and `failed` are what the workers that live have done since they started: what
workers did that have ended is known to nobody until a journal keeps it.
"""

from collections.abc import Iterator
from urllib.parse import quote

from fastapi import APIRouter
from starlette.responses import PlainTextResponse, Response

from palermo.sampling import Snapshot
from palermo.webui.site import Visiting
from palermo.webui.watching import totals_of, watching

router = APIRouter()


@router.get("/stats.txt", name="stats")
def stats(visit: Visiting) -> Response:
    counters = _counters(watching(visit.site).snapshot())
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


def _one_word(name: str) -> str:
    """A queue's name without what would end the name or the line."""
    return "".join(letter if letter.isprintable() and letter != "=" else quote(letter) for letter in name)
