"""A claim on a job in the file, and how it ends: each in a transaction, and only if it still stands."""

import sqlite3

from palermo.brokers.sqlite import marks, permits
from palermo.brokers.sqlite.messages import Row, insert, release
from palermo.brokers.sqlite.store import Work
from palermo.core.values import dataclass

#: The condition that a claim still stands.
_OURS = "id = ? and holder = ? and claims = ?"


@dataclass(frozen=True, slots=True)
class Claim:
    """What proves that a job is ours: given back and claimed again, it is another claim."""

    job: int
    holder: int
    #: Which claim on this job it is.
    times: int

    @property
    def values(self) -> tuple[int, int, int]:
        """What the condition is asked with."""
        return (self.job, self.holder, self.times)


def delete(db: sqlite3.Connection, claim: Claim) -> bool:
    """Take the job out of the file; whether it was still ours. Its permit goes to the next that waits for it."""
    rows = db.execute(f"delete from job where {_OURS} returning permit", claim.values).fetchall()
    for (permit,) in rows:
        if permit is not None:
            permits.hand_on(db, permit)
    return len(rows) == 1


def replace(
    db: sqlite3.Connection,
    claim: Claim,
    exchange: str,
    there: tuple[str, Row],
    ended: Work[bool] | None,
    *,
    marked: bool,
) -> bool:
    """Take it out, and put this in that queue instead; whether it was still ours.

    With `marked` a mark that the job is cancelled stays, which goes with a job that is taken out.
    """
    queue, row = there
    marks_of = marks.of(db, exchange, row[0]) if marked else []
    if found := delete(db, claim):
        insert(db, exchange, queue, row)
        marks.put_back(db, marks_of)
        if ended is not None:
            ended(db)
    return found


def give_back(db: sqlite3.Connection, claim: Claim) -> bool:
    """Let it go, at its old place; whether it was still ours."""
    return release(db, _OURS, claim.values) == 1
