"""Permits of jobs with a limit. A running job's row has its permit until the job is deleted or released.

When that happens, the permit goes to the job that has waited longest for it, unless the limit has been lowered.
"""

import json
import math
import sqlite3
from collections.abc import Iterable
from typing import Any

from palermo.brokers.sqlite.tables.jobs import COLUMNS, FRONT_PRIORITY, from_row, insert, to_row
from palermo.contract.limits import stored_limit


def hand_on(db: sqlite3.Connection, permit: str) -> None:
    """Give a free permit to the job that has waited longest for it, and put that job into its queue."""
    rows = db.execute(
        f"select id, exchange, queue, {COLUMNS} from later where permit = ? order by id limit 1", (permit,)
    ).fetchall()
    if rows and _used(db, permit) >= _limit(db, permit):
        return
    for number, exchange, queue, *row in rows:
        message = from_row(row, None)
        insert(db, exchange, queue, (*to_row(message)[:6], None, message.job, FRONT_PRIORITY, None, None))
        db.execute("update job set permit = ? where id = (select max(id) from job)", (permit,))
        db.execute("delete from later where id = ?", (number,))


def _used(db: sqlite3.Connection, permit: str) -> int:
    ((used,),) = db.execute("select count(*) from job where permit = ?", (permit,)).fetchall()
    return int(used)


def _limit(db: sqlite3.Connection, permit: str) -> float:
    """The latest limit of this key, which may be lower than the number of jobs that run."""
    exchange, key = json.loads(permit)
    states = db.execute("select state from limited where exchange = ? and name = ?", (exchange, key)).fetchall()
    limits = [stored_limit(key, state).limit for (state,) in states]
    return math.inf if not limits or limits[0] is None else limits[0]


def delete_jobs(db: sqlite3.Connection, condition: str, values: tuple[Any, ...]) -> int:
    """Delete the jobs that match the condition, and pass their permits on; return their number."""
    rows = db.execute(f"delete from job where {condition} returning permit", values).fetchall()
    for (permit,) in rows:
        if permit is not None:
            hand_on(db, permit)
    return len(rows)


def count_permits(db: sqlite3.Connection, exchange: str, keys: Iterable[Any]) -> list[tuple[int, int, int]]:
    """Return three counts for each limited key.

    They are the jobs running with a permit, the jobs queued with a permit, and the jobs waiting for one.
    """
    query = (
        "select count(*) filter (where holder is not null), count(*) filter (where holder is null),"
        " (select count(*) from later where permit = :it) from job where permit = :it"
    )
    return [db.execute(query, {"it": permit_name(exchange, key)}).fetchone() for key in keys]


def permit_name(exchange: str, key: str) -> str:
    """The name of a permit in the file, which has the permits of several exchanges."""
    return json.dumps([exchange, key])
