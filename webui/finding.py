"""Where a job is now, as far as a look in few places tells."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from palermo.core.failure import printable
from palermo.core.message import Message, to_headers
from palermo.core.topology import is_failed
from palermo.errors import BrokerUnavailable, NotBrowsable, NotFound
from palermo.inspector import Inspector
from palermo.rows import Row
from palermo.webui.ahead import ahead
from palermo.webui.failed import failures
from palermo.webui.redact import MASK, shown
from palermo.webui.seen import Memory, Run
from palermo.webui.site import Site
from palermo.webui.watching import Watching, running_of, watching

#: How many jobs of a queue are looked at, from its front and its end; and how many queues, if none is named.
DEPTH, QUEUES = 100, 20

_SHOWN_ELSEWHERE = {"id", "preview", "arguments", "exception-class", "exception-message", "stack-trace"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One job: where it is, and what is known of it."""

    id: str
    #: pending, cancelled, scheduled, retrying, running, failed, or "" where it was not found.
    state: str
    #: When it is to run, ISO 8601, if it waits for that; None for one that waits in its queue.
    due: str | None = None
    #: As listings have it; None if nobody saw it.
    row: Row | None = None
    name: str | None = None
    queue: str | None = None
    #: Where it runs, or failed last.
    worker: str | None = None
    #: Since when it runs; ISO 8601.
    started_at: str | None = None
    #: What it tells of itself while it runs: how far it is, from 0 to 1 and in words, and its newest lines.
    progress: float | None = None
    text: str = ""
    lines: tuple[str, ...] = ()
    runs: tuple[Run, ...] = ()
    #: Its headers on the wire, by name; none for a job that is not at hand.
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def remembered(self) -> bool:
        """Whether it was seen before, wherever it is now."""
        return self.row is not None or bool(self.runs)

    @property
    def error(self) -> Row | None:
        """Why it failed last."""
        error: Row | None = self.row["error"] if self.row else None
        return error


def find(site: Site, id: str, queue: str = "") -> Found:
    """The job with this id: at a worker, among the failed, in its queue (`queue` may name it), or due later."""
    look = watching(site)
    found = _running(look, id) or _failed(site, id)
    if found is None:
        row = _waiting(site.inspector, look, id, queue)
        found = _of_row(row) if row is not None else _ahead(site, id)
        # It may have gone from its queue to a worker between two looks.
        found = found or _running(look, id, max_age=0.0) or Found(id=id, state="")
    if found.lines and found.worker is not None:
        # The worker's report has the newest one only.
        found = replace(found, lines=tuple(site.inspector.lines(id, found.worker)) or found.lines)
    if found.row is not None:
        row = shown(found.row, site.hidden)
        found = replace(found, row=row)
        look.seen.rows([row])
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
                progress=job["progress"],
                text=job["text"],
                lines=(job["line"],) if job["line"] else (),
            )
    return None


def _failed(site: Site, id: str) -> Found | None:
    known = failures(site)
    known.view.look()
    try:
        message = known.message(id)
    except (NotFound, NotBrowsable):
        return None
    return replace(_of_row(known.bare_row(message)), headers=_headers(message, site.hidden))


def _ahead(site: Site, id: str) -> Found | None:
    try:
        row = ahead(site).find(id)
    except BrokerUnavailable:
        return None  # there are so many that looking takes long; whatever else is known of it is shown
    return None if row is None else replace(_of_row(row), due=row["run_at"])


def _of_row(row: Row) -> Found:
    return Found(id=row["id"], state=row["state"], row=row, name=row["job"], queue=row["queue"], worker=row["worker"])


def _headers(message: Message, hidden: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The headers on the wire, but those that the page shows by themselves, or in which arguments may stand."""
    return tuple(
        (printable(name), MASK if any(fnmatchcase(name.casefold(), each) for each in hidden) else printable(str(value)))
        for name, value in sorted(to_headers(message).items())
        if name not in _SHOWN_ELSEWHERE
    )


def _waiting(inspector: Inspector, look: Watching, id: str, queue: str) -> Row | None:
    """The row of a job that waits at the front or the end of a queue: of its own where that is known."""
    memory = look.seen.job(id)
    own = queue or (memory.queue if memory else None)
    # As they are now: a job is often looked for just after it was enqueued.
    sizes = {row["name"]: row["pending"] for row in look.snapshot(0.0).queues if not is_failed(row["name"])}
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
