"""Finds jobs by their ids in one read of the file: every job is found.

No index of ids is kept: it would cost each enqueue of many jobs several per cent. The table is scanned instead, which
takes about 0.1 s for each 100,000 jobs.
"""

import json
import sqlite3
from collections.abc import Collection

from palermo.brokers.sqlite.steps import read_keys
from palermo.brokers.sqlite.tables.jobs import COLUMNS, from_row
from palermo.brokers.sqlite.tables.pauses_and_cancels import cancelled_by
from palermo.contract.finding import MOST_FOUND, JobLocation, failed_at, waiting_at
from palermo.core.lifecycle import JobState
from palermo.core.message import Message
from palermo.core.topology import is_failed
from palermo.core.unique_keys import key_names

#: SQL for the jobs with the wanted ids, and for those whose ids begin with one of the wanted texts.
_EXACT = "message_id in (select value from json_each(:ids))"
_BEGINNING = "exists (select 1 from json_each(:ids) where substr(message_id, 1, length(value)) = value)"


def find_jobs(
    db: sqlite3.Connection, exchange: str, ids: Collection[str], *, failed: bool, beginnings: bool
) -> list[JobLocation]:
    """The jobs with these ids, or whose ids begin with one of these texts. Without `failed`, no failed ones."""
    values = {"exchange": exchange, "ids": json.dumps(list(ids)), "most": MOST_FOUND}
    condition = _BEGINNING if beginnings else _EXACT
    scheduled = db.execute(
        f"select {COLUMNS} from later where exchange = :exchange and {condition} order by run_at limit :most", values
    ).fetchall()
    queued = db.execute(
        f"select queue.name, holder.tag, {COLUMNS} from job join queue on queue.id = job.queue"
        " left join holder on holder.id = job.holder"
        f" where queue.exchange = :exchange and typeof(name) = 'text' and {condition} limit :most",
        values,
    ).fetchall()
    found = [_waiting(db, exchange, from_row(row, None), scheduled=True) for row in scheduled]
    for name, tag, *row in queued:
        message = from_row(row, name)
        if tag is not None:
            found.append(JobLocation(state=JobState.WORKING, message=message, worker=tag))
        elif not is_failed(name):
            found.append(_waiting(db, exchange, message))
        elif failed:
            found.append(failed_at(message))
    return found


def _waiting(db: sqlite3.Connection, exchange: str, message: Message, *, scheduled: bool = False) -> JobLocation:
    (message,) = read_keys(db, exchange, key_names([message])).as_they_run([message])
    return waiting_at(message, scheduled=scheduled, cancelled=cancelled_by(db, exchange, message) is not None)
