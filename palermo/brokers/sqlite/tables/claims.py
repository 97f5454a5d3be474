"""A worker's claim on a job in the file, and the ways to end it.

Each of them requires that the claim is still valid.
"""

import sqlite3
from typing import Any

from palermo.brokers.features.consumer import Claim
from palermo.brokers.sqlite.tables import permits

#: SQL condition: the claim is still valid.
STILL_VALID = "id = ? and holder = ? and claims = ?"


def delete(db: sqlite3.Connection, claim: Claim) -> bool:
    """Delete the job if the claim is still valid; return whether it was.

    The permit goes to the next job that waits for it.
    """
    return permits.delete_jobs(db, STILL_VALID, (claim.number, claim.holder, claim.times)) == 1


def release(db: sqlite3.Connection, condition: str, values: tuple[Any, ...]) -> int:
    """Release the held jobs that match the condition, at their old positions. Returns their number.

    Their permits go to the next jobs that wait for them.
    """
    db.execute(f"update queue set hidden = 0 where hidden and id in (select queue from job where {condition})", values)
    freed = db.execute(f"select permit from job where permit is not null and {condition}", values).fetchall()
    released = db.execute(
        f"update job set holder = null, slot = null, held_until = null, permit = null where {condition}", values
    ).rowcount
    for (permit,) in freed:
        permits.hand_on(db, permit)
    return released
