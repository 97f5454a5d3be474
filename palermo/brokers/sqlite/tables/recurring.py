"""Recurring jobs, in a table of their own: an entry fires or changes in one transaction with the jobs it publishes."""

import json
import logging
import sqlite3
from collections.abc import Iterable

from palermo.brokers.sqlite.tables.jobs import insert_many, to_row
from palermo.contract.recurring_entries import REMOVE, EntryChange, RecurringEntry
from palermo.core.message import Message
from palermo.errors import PalermoError

log = logging.getLogger("palermo.sqlite")

#: A transaction fires no further entry after this many jobs.
_BATCH_SIZE = 200

#: Seconds until an entry that cannot be read here is tried again.
_RETRY_AFTER = 60.0


def entries(db: sqlite3.Connection, exchange: str) -> list[RecurringEntry]:
    """All entries, by name; those that cannot be read here are left out."""
    rows = db.execute("select state from recurring where exchange = ? order by name", (exchange,)).fetchall()
    return [entry for (state,) in rows if (entry := _read(state)) is not None]


def change(db: sqlite3.Connection, exchange: str, change: EntryChange, now: float) -> bool:
    """Change an entry; returns whether that published jobs. Raises NotFound."""
    found = db.execute(
        "select state from recurring where exchange = ? and name = ?", (exchange, change.name)
    ).fetchone()
    old = None if found is None else _read(found[0])
    # An entry that cannot be read can be removed, or replaced by a new one.
    unreadable = found is not None and old is None
    entry, jobs = (None, []) if unreadable and change.action == REMOVE else change.made_to(old, now)
    if entry is None:
        db.execute("delete from recurring where exchange = ? and name = ?", (exchange, change.name))
    elif entry is not old:
        _write(db, exchange, entry)
    _publish(db, exchange, jobs)
    return bool(jobs)


def next_due(db: sqlite3.Connection, exchange: str) -> float | None:
    """The instant at which an entry fires next, if any does."""
    ((due,),) = db.execute("select min(due) from recurring where exchange = ?", (exchange,)).fetchall()
    return None if due is None else float(due)


def fire(db: sqlite3.Connection, exchange: str, now: float) -> list[Message]:
    """Publish the jobs that are due and return them; if they are very many, the rest follows next time."""
    rows = db.execute(
        "select name, state from recurring where exchange = ? and due <= ? order by due", (exchange, now)
    ).fetchall()
    jobs: list[Message] = []
    for name, state in rows:
        if len(jobs) >= _BATCH_SIZE:
            break
        found = _read(state)
        if found is None:
            db.execute(
                "update recurring set due = ? where exchange = ? and name = ?", (now + _RETRY_AFTER, exchange, name)
            )
            continue
        fired, entry = found.fired(now)
        jobs += fired
        _write(db, exchange, entry)
    _publish(db, exchange, jobs)
    return jobs


def _read(state: str) -> RecurringEntry | None:
    try:
        return RecurringEntry.from_plain(json.loads(state))
    except (ValueError, KeyError, TypeError, AttributeError, PalermoError) as error:
        # A later version wrote it, or this machine lacks its time zone.
        log.warning("the state of a recurring job cannot be read error=%r state=%.200r", str(error), state)
        return None


def _write(db: sqlite3.Connection, exchange: str, entry: RecurringEntry) -> None:
    values = (exchange, entry.name, entry.next, json.dumps(entry.to_plain()))
    db.execute("insert or replace into recurring (exchange, name, due, state) values (?, ?, ?, ?)", values)


def _publish(db: sqlite3.Connection, exchange: str, jobs: Iterable[Message]) -> None:
    insert_many(db, exchange, [(job.queue, to_row(job)) for job in jobs])
