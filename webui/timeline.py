"""What is known of a job's life, in order: from enqueued to where it is now."""

from dataclasses import dataclass, replace
from itertools import pairwise

from palermo.webui.finding import Found
from palermo.webui.formats import moment
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


def timeline(job: Found) -> list[Event]:
    """The steps of a job, oldest first; the last is where it is now."""
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
    match job.state:
        case "running":
            events.append(Event(what="Running", at=job.started_at, detail=f"at {job.worker}", counting=True))
        case "scheduled" | "retrying" if job.due is not None:
            what = "Next try" if job.state == "retrying" else "Due"
            events.append(Event(what=what, at=job.due, detail=f"in {job.queue}" if job.queue else ""))
        case "pending" | "retrying" | "cancelled":
            events.append(_waiting(job, events))
        case "failed":
            pass
        case _:
            events.append(Event(what="Not found any more" if job.remembered else "Not found"))
    return _with_durations(events)


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
