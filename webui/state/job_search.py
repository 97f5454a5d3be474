"""Finds where a job is now, for the page of the job, with what all readers of the pages share.

It asks the site's snapshot for workers, the site's index for failed jobs, the cached listings for scheduled ones, and
palermo.client.locate for jobs in queues. It may miss a job, and changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from palermo.contract.rows import Row
from palermo.core.failure import printable
from palermo.core.message import Message, to_headers
from palermo.errors import BrokerUnavailable, NotBrowsable, NotFound
from palermo.inspector.masking import MASK, is_hidden, masked_row, masked_value
from palermo.inspector.waiting import waiting_job
from palermo.webui.base.site import Site
from palermo.webui.failed.failed_jobs import failed_jobs
from palermo.webui.state.live_state import LiveState, live_state, running_jobs
from palermo.webui.state.recent_jobs import RecentJob, Run
from palermo.webui.state.scheduled_view import scheduled_view

_SHOWN_ELSEWHERE = {"id", "preview", "arguments", "exception-class", "exception-message", "stack-trace"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundJob:
    """One job: where it is, and what is known of it."""

    id: str
    #: pending, cancelled, scheduled, retrying, running, failed, or "" if it was not found.
    state: str
    #: When it is due, ISO 8601, if it waits for that; None for a job that waits in its queue.
    due: str | None = None
    #: Its row as in listings; None if the job itself was never seen.
    row: Row | None = None
    name: str | None = None
    queue: str | None = None
    #: The worker that runs it, or on which it failed last.
    worker: str | None = None
    #: When its run started, ISO 8601.
    started_at: str | None = None
    #: What the running job reports: its progress from 0 to 1 and in words, and its newest log lines.
    progress: float | None = None
    text: str = ""
    lines: tuple[str, ...] = ()
    runs: tuple[Run, ...] = ()
    #: Its headers on the wire, name and text; empty if its message was not read.
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def remembered(self) -> bool:
        """Whether this process has ever seen the job."""
        return self.row is not None or bool(self.runs)

    @property
    def error(self) -> Row | None:
        """The error of its last failure."""
        error: Row | None = self.row["error"] if self.row else None
        return error


def find_job(site: Site, id: str, queue: str = "") -> FoundJob:
    """The job with this id: on a worker, among the failed, in its queue (`queue` may name it), or due later."""
    live = live_state(site)
    found = _running(live, id) or _failed(site, id)
    if found is None:
        seen = live.recent_jobs.get(id)
        row = waiting_job(site.inspector, id, queue or (seen.queue if seen else None) or "")
        found = _of_row(row) if row is not None else _scheduled(site, id)
        # A worker may have taken it from its queue since the first look.
        found = found or _running(live, id, max_age=0.0) or FoundJob(id=id, state="")
    if found.lines and found.worker is not None:
        # The worker's report holds only the newest line.
        found = replace(found, lines=tuple(site.inspector.lines(id, found.worker)) or found.lines)
    if found.row is not None:
        row = masked_row(found.row, site.hidden)
        found = replace(found, row=row)
        live.recent_jobs.add([row])
    memory = live.recent_jobs.get(id) or RecentJob()
    return replace(
        found,
        row=found.row or memory.row,
        name=found.name or memory.job,
        queue=found.queue or memory.queue or queue or None,
        runs=memory.runs,
    )


def _running(live: LiveState, id: str, max_age: float = 0.5) -> FoundJob | None:
    for job in running_jobs(live.snapshot(max_age)):
        if job["id"] == id:
            return FoundJob(
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


def _failed(site: Site, id: str) -> FoundJob | None:
    known = failed_jobs(site)
    known.view.update()
    try:
        message = known.message(id)
    except (NotFound, NotBrowsable):
        return None
    return replace(_of_row(known.unmasked_row(message)), headers=_headers(message, site.hidden))


def _scheduled(site: Site, id: str) -> FoundJob | None:
    try:
        row = scheduled_view(site).find(id)
    except BrokerUnavailable:
        return None  # There are so many that reading takes long; the page shows what else is known of the job.
    return None if row is None else replace(_of_row(row), due=row["run_at"])


def _of_row(row: Row) -> FoundJob:
    return FoundJob(
        id=row["id"], state=row["state"], row=row, name=row["job"], queue=row["queue"], worker=row["worker"]
    )


def _headers(message: Message, hidden: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The headers on the wire, except those that the page shows elsewhere or that may hold arguments."""
    return tuple(
        (printable(name), MASK if is_hidden(name, tuple(hidden)) else printable(str(masked_value(value, hidden))))
        for name, value in sorted(to_headers(message).items())
        if name not in _SHOWN_ELSEWHERE
    )
