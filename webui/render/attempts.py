"""The attempts of a job: one row for each run that ended, from the journal's records and from the job's headers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from palermo.contract.rows import Row
from palermo.core.journal_records import RUN_ENDS, RecordKind
from palermo.history.entry import STATE_OF
from palermo.webui.state.job import FoundJob

#: The states of runs after which the job simply waits again, in a word.
_WAITS_AGAIN = {RecordKind.SNOOZED: "snoozed", RecordKind.RELEASED: "given back"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One run of a job."""

    number: int | None
    #: How it ended: done, failed, discarded, cancelled, snoozed, given back, or running.
    state: str
    error: str = ""
    #: The error's text, or why it was discarded or who cancelled it.
    message: str = ""
    #: ISO 8601.
    ended_at: str | None = None
    #: Seconds that it ran.
    took: float | None = None
    worker: str | None = None


def attempts(job: FoundJob, life: Sequence[Row]) -> list[AttemptRow]:
    """The runs of a job, the newest first; a run of which the journal tells nothing has its error alone."""
    rows = [_recorded(row) for row in life if row["kind"] in RUN_ENDS]
    known = {row.number for row in rows if row.state == "failed"}
    rows += [
        AttemptRow(
            number=told["attempt"],
            state="failed",
            error=told["class"],
            message=told["message"],
            ended_at=told["failed_at"],
        )
        for told in (job.row["attempts"] if job.row else ())
        if told["attempt"] not in known
    ]
    if job.state == "running":
        number = max((row.number or 0 for row in rows), default=0) + 1
        rows.append(AttemptRow(number=number, state="running", worker=job.worker))
    # Of one number the later comes first: a run that was given back has the number of the next one.
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
