"""Where a job is now, as far as a look in few places tells."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from palermo.core.topology import is_failed
from palermo.errors import NotBrowsable, NotFound
from palermo.inspector import Inspector
from palermo.rows import Row
from palermo.webui.redact import shown
from palermo.webui.seen import Memory, Run
from palermo.webui.watching import Watching, running_of

#: How many jobs of a queue are looked at, from its front and its end; and how many queues, if none is named.
DEPTH, QUEUES = 100, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One job: where it is, and what is known of it."""

    id: str
    #: pending, running, failed, or "" where it was not found.
    state: str
    #: As listings have it; None if nobody saw it.
    row: Row | None = None
    name: str | None = None
    queue: str | None = None
    #: Where it runs, or failed last.
    worker: str | None = None
    #: Since when it runs; ISO 8601.
    started_at: str | None = None
    runs: tuple[Run, ...] = ()

    @property
    def remembered(self) -> bool:
        """Whether it was seen before, wherever it is now."""
        return self.row is not None or bool(self.runs)

    @property
    def error(self) -> Row | None:
        """Why it failed last."""
        error: Row | None = self.row["error"] if self.row else None
        return error


def find(inspector: Inspector, look: Watching, id: str, queue: str = "", hidden: Sequence[str] = ()) -> Found:
    """The job with this id: at a worker, among the failed, or in its queue, which `queue` may name.

    `hidden` is redact.shown's patterns.
    """
    found = _running(look, id)
    if found is None:
        row = _failed(inspector, id) or _waiting(inspector, look, id, queue)
        if row is not None:
            row = shown(row, hidden)
            look.seen.rows([row])
            found = Found(id=id, state=row["state"], row=row, name=row["job"], queue=row["queue"], worker=row["worker"])
        else:
            # It may have gone from its queue to a worker between two looks.
            found = _running(look, id, max_age=0.0) or Found(id=id, state="")
    memory = look.seen.job(id) or Memory()
    return replace(
        found,
        row=found.row or memory.row,
        name=found.name or memory.job,
        queue=found.queue or memory.queue or queue or None,
        runs=memory.runs,
    )


def _running(look: Watching, id: str, max_age: float = 0.5) -> Found | None:
    for job in running_of(look.snapshot(max_age)):
        if job["id"] == id:
            return Found(
                id=id,
                state="running",
                name=job["job"],
                queue=job["queue"],
                worker=job["worker"],
                started_at=job["started_at"],
            )
    return None


def _failed(inspector: Inspector, id: str) -> Row | None:
    try:
        return inspector.failed_job(id)
    except NotFound:
        return None


def _waiting(inspector: Inspector, look: Watching, id: str, queue: str) -> Row | None:
    """The row of a job that waits at the front or the end of a queue: of its own where that is known."""
    memory = look.seen.job(id)
    own = queue or (memory.queue if memory else None)
    sizes = {row["name"]: row["pending"] for row in look.snapshot().queues if not is_failed(row["name"])}
    names = sorted((name for name in sizes if sizes[name]), key=lambda name: sizes[name])
    if own is not None and own in sizes:
        names = [own]
    for name in names[:QUEUES]:
        for newest in (False, True) if sizes[name] > DEPTH else (False,):
            try:
                rows = inspector.jobs(name, limit=DEPTH, newest=newest).rows
            except (NotFound, NotBrowsable):
                break
            for row in rows:
                if row["id"] == id:
                    return row
    return None
