"""The timeline of a job on its page: its steps in order, its runs, and its origin.

The steps come from the journal if it has records of the job, otherwise from the job's headers. The runs come from both.
"""

from collections.abc import Container, Sequence
from itertools import pairwise
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from palermo.contract.recurring_entries import RECURRING
from palermo.contract.rows import Row, iso_instant
from palermo.core.failure import printable
from palermo.core.journal_records import RUN_ENDS, RecordKind
from palermo.core.message import EVENT_ID, Message
from palermo.core.topology import worker_of
from palermo.history.entry import STATE_OF
from palermo.history.index import Index
from palermo.webui.render.formats import absolute, moment, took
from palermo.webui.state.job import FoundJob

#: A run during which its worker died: the worker's id, and the run's start in ISO 8601.
FatalRun = tuple[str, str | None]


class Event(Struct, frozen=True, kw_only=True):
    title: str
    #: ISO 8601, if known.
    at: str | None = None
    detail: str = ""
    #: good, bad or "".
    outcome: str = ""
    #: Seconds since the previous step, if both times are known.
    took: float | None = None
    #: Whether the step is still in progress, so that the page shows its duration instead of its time.
    counting: bool = False
    #: Whether it is in the future.
    due: bool = False


def timeline(job: FoundJob, life: Sequence[Row] = (), dead: Container[FatalRun] = ()) -> list[Event]:
    """Return the steps of a job, oldest first, up to its current state. `life` contains the journal's records of it.

    `dead` contains the runs during which their workers died.
    """
    events = _events_of_journal(job, life, dead) if life else _events_of_headers(job)
    match job.state:
        case "running":
            if events and events[-1].title == "Started":
                events.pop()
            events.append(Event(title="Running", at=job.started_at, detail=f"at {job.worker}", counting=True))
        case "scheduled" | "retrying" if job.due is not None:
            title = "Next try" if job.state == "retrying" else "Due"
            events.append(Event(title=title, at=job.due, detail=f"in {job.queue}" if job.queue else "", due=True))
        case "pending" | "retrying" | "cancelled":
            events.append(_waiting(job, events))
        case "failed":
            pass
        case _ if life and life[-1]["kind"] == RecordKind.EXPANDED:
            events.append(Event(title="Steps running", at=life[-1]["at"], counting=True))
        case _ if final_state(life) is None:
            events.append(Event(title="No longer found" if job.row or life else "Not found"))
    return _with_durations(events)


def final_state(life: Sequence[Row]) -> str | None:
    """Return the job's final state in the journal: done, failed, discarded or cancelled; None if it may continue."""
    done = set[str]()
    for row in reversed(life):
        if row["kind"] == "action" and row["outcome"] == "done":
            done.add(row["action"])
        elif row["kind"] in RUN_ENDS:
            state = STATE_OF.get(row["kind"]) if RUN_ENDS[row["kind"]] else None
            if state is None and _CANCELLED in done:
                return "cancelled"
            # An action is recorded a moment later, when the new run may already have ended.
            return (
                ("discarded" if "discard" in done else None) if state == "failed" and done & _LEAVES_FAILED else state
            )
    return "cancelled" if _CANCELLED in done else None


#: The actions that remove a job from the failed jobs.
_LEAVES_FAILED = {"requeue", "discard"}

#: The action that removes a scheduled job, whose end no worker records.
_CANCELLED = "cancel scheduled"


def _events_of_journal(job: FoundJob, life: Sequence[Row], dead: Container[FatalRun]) -> list[Event]:
    events: list[Event] = []
    if life[0]["kind"] not in (RecordKind.ENQUEUED, RecordKind.FIRED) and job.row:
        events.append(Event(title="Enqueued", at=job.row["created_at"], detail=f"to {job.queue}"))
    started: tuple[object, object] | None = None
    begun: Row | None = None
    shown = [row for row in life if row["kind"] != RecordKind.LOG]
    for row, after in zip(shown, [*shown[1:], None], strict=True):
        kind = row["kind"]
        if kind == RecordKind.PROGRESS and after is not None and after["kind"] == RecordKind.PROGRESS:
            continue
        run = (row.get("attempt"), row.get("worker"))
        if begun is not None and (kind == RecordKind.STARTED or (kind in RUN_ENDS and run != started)):
            events += _death(begun, dead)
            begun = None
        if kind in RUN_ENDS and row["took"] is not None and started != run:
            # The run ended before its start was recorded.
            events.append(Event(title="Started", at=_before(row["at"], row["took"]), detail=_at(row)))
            started = run
        if kind == RecordKind.STARTED:
            started, begun = run, row
        elif kind in RUN_ENDS:
            begun = None
        events.append(_event(row))
    return events + ([] if begun is None else _death(begun, dead))


def _death(begun: Row, dead: Container[FatalRun]) -> list[Event]:
    """Return the event of the death of the run's worker, if it died. `begun` is the record of the run's start."""
    worker = worker_of(begun["worker"] or "")
    if (worker, begun["at"]) not in dead:
        return []
    return [Event(title="Worker died", detail=f"{worker} died", outcome="bad")]


def _event(row: Row) -> Event:
    at, text = row["at"], row.get("text") or ""
    why = (row.get("error") or {"class": ""})["class"]
    match row["kind"]:
        case RecordKind.ENQUEUED:
            due = iso_instant(row["run_at"]) if isinstance(row.get("run_at"), int | float) else None
            said = f"to {row['queue']}" + (f", to run at {absolute(due)}" if due else "")
            once = ", replacing the earlier enqueue, which had not started" if row.get("displaced") else ""
            return Event(title="Enqueued", at=at, detail=said + once)
        case RecordKind.FIRED:
            return Event(title="Enqueued", at=at, detail=f"by the recurring job {row.get('name')}")
        case RecordKind.PROGRESS:
            part = row.get("fraction")
            detail = f"{part * 100:.0f}%" if isinstance(part, int | float) else ""
            return Event(title="Progress", at=at, detail=" ".join(filter(None, (detail, text))))
        case RecordKind.LIMITED:
            most = [f"{row['limit']} at a time"] if row.get("limit") else []
            allowed = " and ".join([*most, *([str(row["rate"])] if row.get("rate") else [])])
            return Event(title="Deferred", at=at, detail=f"{row.get('key')} is limited to {allowed}")
        case RecordKind.SUCCEEDED:
            skipped = "skipped by a hook " if row.get("skipped") else ""
            return Event(title="Done", at=at, detail=skipped + _at(row), outcome="good")
        case RecordKind.FAILED:
            return Event(title="Failed", at=at, detail=f"{why} {_at(row)}", outcome="bad")
        case RecordKind.RETRIED:
            return Event(title="Failed", at=at, detail=f"{why} {_at(row)}, retry{_in(row)}", outcome="bad")
        case RecordKind.EXPANDED:
            return Event(title="Added steps", at=at, detail=_at(row))
        case RecordKind.SNOOZED:
            return Event(title="Snoozed", at=at, detail=f"runs again{_in(row)}")
        case RecordKind.RELEASED:
            return Event(title="Released", at=at, detail=f"{_at(row)}, which stopped or lost its session")
        case RecordKind.DISCARDED:
            return Event(title="Discarded", at=at, detail=text)
        case RecordKind.CANCELLED:
            return Event(title="Cancelled", at=at, detail=f"by {row['by']}" if row.get("by") else "")
        case "action":
            by = f"by {row['by'] or 'somebody'}" + (f" via {row['source']}" if row["source"] else "")
            came = "" if row["outcome"] in (None, "done") else f": {row['outcome']}"
            return Event(title=f"{row['action'].capitalize()}", at=at, detail=by + came)
        case kind:
            return Event(title=kind.capitalize(), at=at, detail=_at(row))


def _at(row: Row) -> str:
    return f"at {row['worker']}" if row.get("worker") else ""


def _in(row: Row) -> str:
    delay = row.get("delay")
    return f" in {took(delay)}" if isinstance(delay, int | float) else ""


def _before(at: str | None, seconds: float) -> str | None:
    found = moment(at) if at else None
    return iso_instant(found.timestamp() - seconds) if found else None


def _events_of_headers(job: FoundJob) -> list[Event]:
    row = job.row or {"created_at": None, "attempts": (), "worker": None}
    begin = Event(title="Enqueued", at=row["created_at"], detail=f"to {job.queue}" if job.queue else "")
    failed = [
        Event(title="Failed", at=each["failed_at"], detail=each["class"], outcome="bad") for each in row["attempts"]
    ]
    if failed and row["worker"]:
        failed[-1] = replace(failed[-1], detail=f"{failed[-1].detail} {_at(row)}")
    return [begin, *failed]


def _waiting(job: FoundJob, events: list[Event]) -> Event:
    again = len(events) > 1
    retries = (job.row or {}).get("retries") or 0
    detail = f"in {job.queue}" + (f", retry {retries}" if retries else "")
    at = None if again else events[0].at
    return Event(
        title="Waiting again" if again or retries else "Waiting", at=at, detail=detail, counting=at is not None
    )


def _with_durations(events: list[Event]) -> list[Event]:
    timed = events[:1]
    for before, event in pairwise(events):
        start, end = (moment(each.at) if each.at else None for each in (before, event))
        seconds = (end - start).total_seconds() if start and end and not event.counting else None
        # One time has whole seconds and the other milliseconds, so the difference may be negative.
        timed.append(replace(event, took=None if seconds is None or seconds <= 0 else seconds))
    return timed


# -- the runs: one row for each that has ended

#: The states of runs after which the job just waits again, in a word.
_WAITS_AGAIN = {
    RecordKind.SNOOZED: "snoozed",
    RecordKind.RELEASED: "released",
    RecordKind.EXPANDED: "added steps",
}


class AttemptRow(Struct, frozen=True, kw_only=True):
    number: int | None
    #: How it ended: done, failed, discarded, cancelled, snoozed, released, or running.
    state: str
    error: str = ""
    #: The error's text, why it was discarded, or who cancelled it.
    message: str = ""
    #: ISO 8601.
    ended_at: str | None = None
    #: Duration of the run in seconds.
    took: float | None = None
    worker: str | None = None


def attempts(job: FoundJob, life: Sequence[Row]) -> list[AttemptRow]:
    """Return the runs of a job, newest first. A run without journal records has only its error."""
    rows = [_recorded(row) for row in life if row["kind"] in RUN_ENDS]
    known = {row.number for row in rows if row.state == "failed"}
    rows += [
        AttemptRow(
            number=attempt["attempt"],
            state="failed",
            error=attempt["class"],
            message=attempt["message"],
            ended_at=attempt["failed_at"],
        )
        for attempt in (job.row["attempts"] if job.row else ())
        if attempt["attempt"] not in known
    ]
    if job.state == "running":
        number = max((row.number or 0 for row in rows), default=0) + 1
        rows.append(AttemptRow(number=number, state="running", worker=job.worker))
    # For equal numbers the later run comes first: a requeued run has the same number as the next one.
    return sorted(rows, key=lambda row: row.number or 0)[::-1]


def _recorded(row: Row) -> AttemptRow:
    kind = row["kind"]
    error: dict[str, Any] = row["error"] or {"class": "", "message": row.get("text") or ""}
    by = row.get("by")
    return AttemptRow(
        number=row["attempt"],
        state=_WAITS_AGAIN.get(kind) or ("failed" if kind == RecordKind.RETRIED else STATE_OF.get(kind) or kind),
        error=error["class"],
        message=error["message"] or (f"by {by}" if isinstance(by, str) and by else ""),
        ended_at=row["at"],
        took=row["took"],
        worker=row["worker"],
    )


# -- the origin: parent, event or recurring job; the children; and the jobs that ran it again


class Origin(Struct, frozen=True, kw_only=True):
    """What created a job. Fields that don't apply or are unknown are empty."""

    #: The name of the recurring job.
    recurring: str = ""
    #: The topic and id of the event.
    topic: str = ""
    event: str = ""
    #: The id of the job that enqueued it or published its event.
    parent: str = ""


def origin_of(message: Message | None, row: Row | None, life: Sequence[Row]) -> Origin:
    """Return the origin of a job, from its headers, its row and the journal's records."""
    extra = {} if message is None else message.extra
    fired = next((step.get("name") for step in life if step["kind"] == RecordKind.FIRED), None)
    name = extra.get(RECURRING) or fired
    parent = (row or {}).get("parent") or next((step["parent"] for step in life if "parent" in step), "")
    return Origin(
        recurring=printable(name) if isinstance(name, str) else "",
        topic=printable(message.topic) if message is not None else "",
        event=printable(str(extra[EVENT_ID])) if message is not None and message.topic else "",
        parent=printable(parent) if isinstance(parent, str) else "",
    )


def children_of(index: Index, id: str, *, limit: int) -> list[Row]:
    """Return the jobs that a job enqueued, from the journal's newest record of each, newest first."""
    return [
        {
            "id": each.id,
            "job": each.job or None,
            "queue": each.queue,
            "state": each.state or "enqueued",
            "at": iso_instant(each.at),
        }
        for each in index.children(id, limit=limit)
    ]


def again_of(id: str, life: Sequence[Row]) -> tuple[str, list[str]]:
    """Return the job that this one runs again, or "", and the jobs that run this one again."""
    before, after = "", list[str]()
    for row in life:
        if row["kind"] != "action" or row["action"] != "run again" or row["outcome"] != "done":
            continue
        old, _, new = str(row["what"]).rpartition(" as ")
        if new == id:
            before = old
        elif old == id:
            after.append(new)
    return before, after
