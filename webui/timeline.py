"""What is known of a job's life, in order: from enqueued to where it is now.

The journal tells it where it tells of the job; else its headers do, and what this process happened to see.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from palermo.core.journal import ENDS, Kind
from palermo.history.entry import STATE_OF
from palermo.rows import Row, instant
from palermo.webui.finding import Found
from palermo.webui.formats import moment, took
from palermo.webui.seen import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One step."""

    what: str
    #: ISO 8601; None where that is not known.
    at: str | None = None
    detail: str = ""
    #: good, bad or "".
    look: str = ""
    #: Seconds from the step before, where both are known.
    took: float | None = None
    #: Whether it goes on, so that its duration is shown and not its instant.
    counting: bool = False


def timeline(job: Found, life: Sequence[Row] = ()) -> list[Event]:
    """The steps of a job, oldest first; the last is where it is now. `life` is what the journal tells of it."""
    events = _told(job, life) if life else _seen(job)
    match job.state:
        case "running":
            if events and events[-1].what == "Started":
                events.pop()
            events.append(Event(what="Running", at=job.started_at, detail=f"at {job.worker}", counting=True))
        case "scheduled" | "retrying" if job.due is not None:
            what = "Next try" if job.state == "retrying" else "Due"
            events.append(Event(what=what, at=job.due, detail=f"in {job.queue}" if job.queue else ""))
        case "pending" | "retrying" | "cancelled":
            events.append(_waiting(job, events))
        case "failed":
            pass
        case _ if end_of(life) is None:
            known = job.remembered or life
            events.append(Event(what="Not found any more" if known else "Not found"))
    return _with_durations(events)


def end_of(life: Sequence[Row]) -> str | None:
    """How the job ended, as the journal tells: done, failed, discarded or cancelled; None if it may go on."""
    done = set[str]()
    for row in reversed(life):
        if row["kind"] == "action" and row["outcome"] == "done":
            done.add(row["action"])
        elif row["kind"] in ENDS:
            state = STATE_OF.get(row["kind"]) if ENDS[row["kind"]] else None
            # What a person did is written down a moment after it was done: the new run may have ended before.
            return ("discarded" if "discard" in done else None) if state == "failed" and done & _TAKEN else state
    return None


#: What people do to failed jobs.
_TAKEN = {"requeue", "discard"}


def _told(job: Found, life: Sequence[Row]) -> list[Event]:
    """The steps that the journal tells."""
    events: list[Event] = []
    if life[0]["kind"] not in (Kind.ENQUEUED, Kind.FIRED) and job.row:
        events.append(Event(what="Enqueued", at=job.row["created_at"], detail=f"to {job.queue}"))
    started: tuple[object, object] | None = None
    for row, after in zip(life, [*life[1:], None], strict=True):
        kind = row["kind"]
        if kind == Kind.LOG or (kind == Kind.PROGRESS and after is not None and after["kind"] == Kind.PROGRESS):
            continue
        run = (row.get("attempt"), row.get("worker"))
        if kind in ENDS and row["took"] is not None and started != run:
            # A run that was over before its beginning was stored.
            events.append(Event(what="Started", at=_before(row["at"], row["took"]), detail=_at(row)))
        started = run if kind == Kind.STARTED else started
        events.append(_step(row))
    return events


def _step(row: Row) -> Event:
    at, text = row["at"], row.get("text") or ""
    error = row.get("error") or {"class": "", "message": ""}
    why = f"{error['class']}: {error['message']}" if error["message"] else error["class"]
    match row["kind"]:
        case Kind.ENQUEUED:
            due = instant(row["run_at"]) if isinstance(row.get("run_at"), int | float) else None
            return Event(what="Enqueued", at=at, detail=f"to {row['queue']}" + (f", to run at {due}" if due else ""))
        case Kind.FIRED:
            return Event(what="Enqueued", at=at, detail=f"by the recurring job {row.get('name')}")
        case Kind.PROGRESS:
            part = row.get("fraction")
            said = f"{part * 100:.0f} %" if isinstance(part, int | float) else ""
            return Event(what="Progress", at=at, detail=" ".join(filter(None, (said, text))))
        case Kind.LIMITED:
            most = [f"{row['limit']} at once"] if row.get("limit") else []
            allowed = " and ".join([*most, *([str(row["rate"])] if row.get("rate") else [])])
            return Event(what="Put aside", at=at, detail=f"{row.get('key')} may run {allowed}")
        case Kind.SUCCEEDED:
            skipped = "skipped by a hook " if row.get("skipped") else ""
            return Event(what="Done", at=at, detail=skipped + _at(row), look="good")
        case Kind.FAILED:
            return Event(what="Failed", at=at, detail=f"{why} {_at(row)}", look="bad")
        case Kind.RETRIED:
            return Event(what="Failed", at=at, detail=f"{why} {_at(row)}, tried again{_in(row)}", look="bad")
        case Kind.SNOOZED:
            return Event(what="Snoozed", at=at, detail=f"runs again{_in(row)}")
        case Kind.RELEASED:
            return Event(what="Given back", at=at, detail=f"{_at(row)}, which stopped or lost its session")
        case Kind.DISCARDED:
            return Event(what="Discarded", at=at, detail=text)
        case Kind.CANCELLED:
            return Event(what="Cancelled", at=at, detail=f"by {row['by']}" if row.get("by") else "")
        case "action":
            by = f"by {row['by'] or 'somebody'}" + (f" via {row['source']}" if row["source"] else "")
            came = "" if row["outcome"] in (None, "done") else f": {row['outcome']}"
            return Event(what=f"{row['action'].capitalize()}", at=at, detail=by + came)
        case kind:
            return Event(what=kind.capitalize(), at=at, detail=_at(row))


def _at(row: Row) -> str:
    return f"at {row['worker']}" if row.get("worker") else ""


def _in(row: Row) -> str:
    delay = row.get("delay")
    return f" in {took(delay)}" if isinstance(delay, int | float) else ""


def _before(at: str | None, seconds: float) -> str | None:
    found = moment(at) if at else None
    return instant(found.timestamp() - seconds) if found else None


def _seen(job: Found) -> list[Event]:
    """The steps that the job's headers tell, and that this process saw."""
    created = job.row["created_at"] if job.row else None
    events = [Event(what="Enqueued", at=created, detail=f"to {job.queue}" if job.queue else "")]
    runs = _with_attempts(job)
    running = job.state == "running"
    if running and not any(run.started_at == job.started_at for run in runs):
        runs = (*runs, Run(started_at=job.started_at, worker=job.worker))
    for run in runs:
        if run.started_at and not (running and run.started_at == job.started_at):
            events.append(Event(what="Started", at=run.started_at, detail=f"at {run.worker}" if run.worker else ""))
        if run.failed_at or run.error:
            detail = run.error or ""
            if not run.started_at and run.worker:
                detail += f" at {run.worker}"
            events.append(Event(what="Failed", at=run.failed_at, detail=detail.strip(), look="bad"))
    return events


def _with_attempts(job: Found) -> tuple[Run, ...]:
    """The runs that were seen, and those that only the job itself tells of: of each why it failed, and when."""
    known = {run.failed_at for run in job.runs}
    attempts = job.row["attempts"] if job.row else ()
    told = [Run(failed_at=one["failed_at"], error=one["class"]) for one in attempts if one["failed_at"] not in known]
    if not told:
        return job.runs
    # Whole seconds on one side and thousandths on the other.
    return tuple(sorted((*told, *job.runs), key=lambda run: (run.failed_at or run.started_at or "")[:19]))


def _waiting(job: Found, events: list[Event]) -> Event:
    again = len(events) > 1
    retries = (job.row or {}).get("retries") or 0
    detail = f"in {job.queue}" + (f", retry {retries}" if retries else "")
    at = None if again else events[0].at
    return Event(what="Waiting again" if again or retries else "Waiting", at=at, detail=detail, counting=at is not None)


def _with_durations(events: list[Event]) -> list[Event]:
    timed = events[:1]
    for before, event in pairwise(events):
        start, end = (moment(each.at) if each.at else None for each in (before, event))
        seconds = (end - start).total_seconds() if start and end and not event.counting else None
        # Whole seconds on one side and thousandths on the other can cross.
        timed.append(replace(event, took=None if seconds is None or seconds <= 0 else seconds))
    return timed
