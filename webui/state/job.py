"""One job for the pages and the API: its location, status and result.

The search uses data shared by all pages: the site's snapshot for workers, the site's index for failed jobs, and the
cached listings for scheduled ones; for jobs in queues it uses palermo.client.status. It may miss a job, and changes
nothing. Hidden values in arguments and results are masked.
"""

from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from palermo.client import results
from palermo.client.recorded_jobs import RecordedJob
from palermo.client.status import State
from palermo.contract import clock, rows
from palermo.contract.row_types import JobRow
from palermo.contract.rows import MAX_SHOWN, Row, iso_instant
from palermo.core.failure import printable
from palermo.core.journal_records import Record, RecordKind
from palermo.core.lifecycle import JobState
from palermo.core.message import Message, to_headers
from palermo.core.topology import check_id
from palermo.core.unique_keys import key_in
from palermo.errors import BrokerRefused, BrokerUnavailable, NotBrowsable, NotFound
from palermo.jobs.redaction import MASK, is_hidden, masked_row, masked_value
from palermo.webui.failed.failed_jobs import failed_jobs
from palermo.webui.site import Refused, Site, Visit
from palermo.webui.state.journal_views import JournalViews
from palermo.webui.state.live_state import LiveState, live_state, running_jobs
from palermo.webui.state.scheduled_view import scheduled_view

#: The row of a running job without what its worker reports.
_UNKNOWN: dict[str, Any] = {
    **dict.fromkeys(JobRow.__annotations__),
    "attempts": [],
    "headers": {},
    "state": JobState.WORKING.value,
}

#: What a worker reports of the row of a running job.
_REPORTED = ("id", "job", "queue", "worker", "args", "kwargs", "preview", "content_type", "parent")

#: Headers that a job's page shows elsewhere, or that may contain arguments.
_SHOWN_ELSEWHERE = {
    *("id", "job-class", "queue", "preview", "arguments", "exception-class", "exception-message", "stack-trace"),
}


#: The records after which a job is finished and can't be requeued.
_FOR_GOOD = frozenset({RecordKind.SUCCEEDED, RecordKind.DISCARDED, RecordKind.CANCELLED})


class FoundJob(Struct, frozen=True, kw_only=True):
    """One job: where it is, and other known details."""

    id: str
    #: pending, cancelled, scheduled, retrying, running, failed, or "" if it wasn't found.
    state: str
    #: When it is due in ISO 8601, if it is waiting for that time.
    due: str | None = None
    #: Its row as in listings; None if no data of the job itself was found.
    row: Row | None = None
    name: str | None = None
    queue: str | None = None
    #: The worker that is running it, or on which it last failed.
    worker: str | None = None
    #: Whether that worker doesn't answer; it was running the job when it last answered.
    silent: bool = False
    #: The start of its run in ISO 8601.
    started_at: str | None = None
    #: The running job's reports: its progress from 0 to 1 and as text, and its newest log lines.
    progress: float | None = None
    text: str = ""
    lines: tuple[str, ...] = ()
    #: The same row with hidden values, or None.
    bare: Row | None = None
    #: Its message, if it was read.
    message: Message | None = None
    #: The key reported by its worker; None if it isn't running or has no key.
    key: str | None = None

    @property
    def error(self) -> Row | None:
        """The error of its last failed run."""
        error: Row | None = self.row["error"] if self.row else None
        return error


def find_job(site: Site, id: str, queue: str = "") -> FoundJob:
    """Find a job on a worker, among failed jobs, in its queue (`queue`, if known), or among scheduled jobs."""
    live = live_state(site)
    found = _running(live, id) or _failed(site, id)
    # Fast path: first look where it was listed as scheduled, and don't search for a finished job. Otherwise a job's
    # page would read the queues and all scheduled jobs: 2 s with 5,000 waiting and 20,000 scheduled jobs.
    found = found or _scheduled(site, id, everywhere=False)
    if found is None and not _is_over(site, id):
        waits = _waiting(site, id, queue)
        found = _scheduled(site, id) if waits is None else _of_waiting(*waits)
    # A worker may have taken it from its queue in the meantime.
    found = found or _running(live, id, max_age=0.0) or FoundJob(id=id, state="")
    if found.lines and found.worker is not None:
        # The worker's report contains only the newest line.
        found = replace(found, lines=tuple(site.inspector.jobs.lines(id, found.worker)) or found.lines)
    if found.row is None:
        return replace(found, queue=queue or None)
    return replace(found, row=masked_row(found.row, site.hidden), bare=found.row)


def job_row(visit: Visit, id: str, *, queue: str = "") -> JobRow:
    """Return the row of a running, waiting, scheduled or failed job found by `find_job`. Raises NotFound."""
    check_id(id)
    found = find_job(visit.site, id, queue)
    if not found.state or found.row is None:
        raise NotFound(
            f"job {id[:80]!r} was not found among running, scheduled and failed jobs or at the ends of the queues. It"
            " may have finished, or be in the middle of a long queue."
        )
    return cast(JobRow, found.row)


def _running(live: LiveState, id: str, max_age: float = 0.5) -> FoundJob | None:
    for job in running_jobs(live.snapshot(max_age)):
        if job["id"] == id:
            return replace(
                _of_row(_UNKNOWN | {name: job[name] for name in _REPORTED}),
                state="running",
                silent=job["silent"],
                started_at=job["started_at"],
                progress=job["progress"],
                text=job["text"],
                lines=(job["line"],) if job["line"] else (),
                key=job["key"],
            )
    return None


def _failed(site: Site, id: str) -> FoundJob | None:
    known = failed_jobs(site)
    known.view.update()
    try:
        message = known.message(id)
    except (NotFound, NotBrowsable, BrokerRefused):
        return None
    return replace(_of_row(known.unmasked_row(message)), message=message)


def _waiting(site: Site, id: str, queue: str) -> tuple[Row, Message] | None:
    try:
        return site.inspector.jobs.waiting(id, queue)
    except BrokerUnavailable:
        return None  # the queues are so long that reading them takes long


def _scheduled(site: Site, id: str, *, everywhere: bool = True) -> FoundJob | None:
    try:
        row = scheduled_view(site).find(id, everywhere=everywhere)
    except (BrokerUnavailable, BrokerRefused):
        return None  # too many to read, or not allowed for this user; the page shows what else is known
    return None if row is None else replace(_of_row(row), due=row["run_at"])


def _is_over(site: Site, id: str) -> bool:
    """Whether the job has ended for good according to the part of the journal that was read."""
    views = site.existing(JournalViews)
    return views is not None and not views.off and any(entry.kind in _FOR_GOOD for entry in views.index.of(id))


def recorded_as(site: Site, recorded: RecordedJob) -> tuple[Row, Row]:
    """Return the row of a job recorded in the journal, masked and unmasked. Missing arguments are None."""
    row = rows.job_row(recorded.message, JobState.PENDING, site.client.serializers, max_bytes=MAX_SHOWN)
    if not recorded.readable:
        row |= {"args": None, "kwargs": None, "preview": recorded.message.preview or None}
    return masked_row(row, site.hidden), row


class KeyFacts(Struct, frozen=True):
    """The state of a job's key: the job that holds it now or gets it next, and the time until which it is closed."""

    name: str
    next_id: str
    #: ISO 8601.
    closed_until: str | None


def key_facts(site: Site, job: FoundJob, message: Message | None) -> KeyFacts | None:
    """Return the state of this job's key; None if it has no key, or the key is unknown."""
    name = job.key or ("" if message is None else key_in(message.extra))
    if not name:
        return None
    try:
        key = site.inspector.keys.find(name)
    except BrokerUnavailable:
        return None  # the page shows what else is known
    return None if key is None else KeyFacts(name, key.job_after(job.id), iso_instant(key.closed_until))


def message_headers(site: Site, message: Message) -> tuple[tuple[str, str], ...]:
    """Return a message's headers as names and texts. Omits headers that are shown elsewhere or may contain arguments.

    Hidden values are masked.
    """
    hidden = tuple(site.hidden)
    return tuple(
        (printable(name), MASK if is_hidden(name, hidden) else printable(str(masked_value(value, hidden))))
        for name, value in sorted(to_headers(message).items())
        if name not in _SHOWN_ELSEWHERE
    )


def _of_row(row: Row) -> FoundJob:
    return FoundJob(
        id=row["id"], state=row["state"], row=row, name=row["job"], queue=row["queue"], worker=row["worker"]
    )


def _of_waiting(row: Row, message: Message) -> FoundJob:
    """A job in its queue, or one that waits for a retry."""
    due = row["run_at"] if message.run_at is not None and message.run_at > clock.now() else None
    return replace(_of_row(row), message=message, due=due)


class ReturnedValue(Struct, frozen=True):
    job: str
    value: Any


def job_status(visit: Visit, id: str) -> Row:
    """Return the row of the job's status: see palermo.client.status.JobStatus. Raises IdInvalid."""
    return masked_row(visit.inspector.jobs.status(id, snapshot=live_state(visit.site).snapshot), visit.site.hidden)


def job_result(visit: Visit, id: str, kept: Record | None = None) -> ReturnedValue:
    """Return the job's return value. `kept` is the record that contains it, if the caller has it.

    Raises NotFound for an unknown job, ResultError if it has no result, and Refused (409) if it has no result yet.
    """
    client = visit.site.client
    job = client.job_by_id(check_id(id))
    found = kept or client.watch(results.find_end(client, job))
    if found is None:
        state = job.status()
        if state.state is State.UNKNOWN:
            raise NotFound(f"job {id}: {state.reason}")
        raise Refused(409, f"job {id} is {state}, and has no result yet.")
    value = None if results.serialized_result(found) is None else results.result_as_json(client, found)
    return ReturnedValue(str(found.get("job", "")), masked_value(value, visit.site.hidden))
