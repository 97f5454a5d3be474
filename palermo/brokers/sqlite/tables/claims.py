"""A worker's claim on a job in the file, and the ways to end it: each does so only if the claim is still valid."""

import sqlite3
from typing import Any

from msgspec import Struct

from palermo.brokers.sqlite.file.store import Work
from palermo.brokers.sqlite.tables import limits, pauses_and_cancels
from palermo.brokers.sqlite.tables.jobs import Row, insert

#: The condition that a claim is still valid.
_STILL_VALID = "id = ? and holder = ? and claims = ?"


class Claim(Struct, frozen=True):
    """Proof that a job is ours. A job that is given back and claimed again has another claim."""

    job: int
    holder: int
    #: The number of this claim among those on the job.
    times: int

    @property
    def values(self) -> tuple[int, int, int]:
        """The values of the condition."""
        return (self.job, self.holder, self.times)


def is_valid(db: sqlite3.Connection, claim: Claim) -> bool:
    """Whether the job is still ours."""
    return bool(db.execute(f"select 1 from job where {_STILL_VALID}", claim.values).fetchall())


def delete(db: sqlite3.Connection, claim: Claim) -> bool:
    """Delete the job; returns whether it was still ours. Its permit goes to the next job that waits for it."""
    return limits.delete_jobs(db, _STILL_VALID, claim.values) == 1


def replace(
    db: sqlite3.Connection,
    claim: Claim,
    exchange: str,
    successor: tuple[str, Row],
    key_change: Work[bool] | None,
    *,
    keep_cancel: bool,
) -> bool:
    """Delete the job and put its successor into a queue instead; returns whether the job was still ours.

    Deleting a job deletes its cancel mark; with `keep_cancel` the mark stays.
    """
    queue, row = successor
    cancel_marks = pauses_and_cancels.marks_of(db, exchange, row[0]) if keep_cancel else []
    if found := delete(db, claim):
        insert(db, exchange, queue, row)
        pauses_and_cancels.restore_marks(db, cancel_marks)
        if key_change is not None:
            key_change(db)
    return found


def give_back(db: sqlite3.Connection, claim: Claim) -> bool:
    """Give the job back at its old place; returns whether it was still ours."""
    return release(db, _STILL_VALID, claim.values) == 1


def release(db: sqlite3.Connection, condition: str, values: tuple[Any, ...]) -> int:
    """Give the held jobs that match the condition back to their queues, at their old places; returns how many.

    Their permits go to the next jobs that wait for them.
    """
    db.execute(f"update queue set hidden = 0 where hidden and id in (select queue from job where {condition})", values)
    freed = db.execute(f"select permit from job where permit is not null and {condition}", values).fetchall()
    released = db.execute(
        f"update job set holder = null, slot = null, held_until = null, permit = null where {condition}", values
    ).rowcount
    for (permit,) in freed:
        limits.hand_on(db, permit)
    return released
