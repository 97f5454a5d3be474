"""Limits and rates, decided in the transaction that lets a job run or puts it aside.

A job that runs bears the key of its permit, so whatever takes the job out of the file, or gives it back, takes the
permit too. Whoever ends one hands it to the job that has waited longest.
"""

import json
import sqlite3
import time
from typing import Any

from palermo.brokers.sqlite.messages import BEFORE_ALL, COLUMNS, from_row, insert, to_row
from palermo.core.permits import LATE, Aside, Demand, Go, LimitInfo, Pace, Rate


def take(db: sqlite3.Connection, exchange: str, job: int, demand: Demand, now: float) -> Go | Aside:
    """The job with this number, which is held, wants to run."""
    permit = _name(exchange, demand.key)
    ((has,),) = db.execute("select permit from job where id = ?", (job,)).fetchall()
    if demand.limit is not None and has != permit:
        ((running,),) = db.execute("select count(*) from job where permit = ?", (permit,)).fetchall()
        if running >= demand.limit:
            _know(db, exchange, demand, _pace(db, exchange, demand.key))
            # Called before, as a rule; this is for permits that nobody handed on.
            return Aside(now + LATE)
    pace, verdict = _pace(db, exchange, demand.key), Go()
    if demand.rate is not None:
        pace, paced = pace.ask(demand.rate, now, turn=demand.turn)
        _know(db, exchange, demand, pace)
        if isinstance(paced, Aside):
            return paced
        verdict = paced
    else:
        _know(db, exchange, demand, pace)
    db.execute("update job set permit = ? where id = ?", (permit, job))
    return verdict


def line_up(db: sqlite3.Connection, exchange: str, demand: Demand, verdict: Aside) -> bool:
    """The job that was put aside last waits for a permit, unless it has a turn; true, as all that is done with it."""
    if not verdict.turn:
        permit = _name(exchange, demand.key)
        db.execute("update later set permit = ? where id = (select max(id) from later)", (permit,))
    return True


def hand_on(db: sqlite3.Connection, permit: str) -> None:
    """A permit is free: the job that has waited longest for it goes to its queue, and has it there already."""
    rows = db.execute(
        f"select id, exchange, queue, {COLUMNS} from later where permit = ? order by id limit 1", (permit,)
    ).fetchall()
    for number, exchange, queue, *row in rows:
        message = from_row(row, None)
        insert(db, exchange, queue, (*to_row(message)[:6], None, message.job, BEFORE_ALL, None, None))
        db.execute("update job set permit = ? where id = (select max(id) from job)", (permit,))
        db.execute("delete from later where id = ?", (number,))


def known(db: sqlite3.Connection, exchange: str) -> list[LimitInfo]:
    """All keys of which something is known, by name; those of which nothing is any more are forgotten."""
    now, found = time.time(), list[LimitInfo]()
    rows = db.execute(
        "select key, most, rate, next, free from limited where exchange = ? order by key", (exchange,)
    ).fetchall()
    for key, most, rate, after, free in rows:
        permit = _name(exchange, key)
        ((running,),) = db.execute(
            "select count(*) from job where permit = ? and holder is not null", (permit,)
        ).fetchall()
        ((called,),) = db.execute("select count(*) from job where permit = ? and holder is null", (permit,)).fetchall()
        ((waiting,),) = db.execute("select count(*) from later where permit = ?", (permit,)).fetchall()
        turns = int(max(0.0, free - max(now, after)) / Rate.parse(rate).gap) if rate else 0
        if running or called or waiting or turns:
            waits = called + waiting + turns
            found.append(LimitInfo(key=key, limit=most, rate=rate, running=running, waiting=waits))
    return found


def _know(db: sqlite3.Connection, exchange: str, demand: Demand, pace: Pace) -> None:
    values: tuple[Any, ...] = (exchange, demand.key, demand.limit, demand.written, pace.next, pace.free, pace.again)
    db.execute(
        "insert or replace into limited (exchange, key, most, rate, next, free, again) values (?, ?, ?, ?, ?, ?, ?)",
        values,
    )


def _pace(db: sqlite3.Connection, exchange: str, key: str) -> Pace:
    row = db.execute("select next, free, again from limited where exchange = ? and key = ?", (exchange, key)).fetchone()
    return Pace() if row is None else Pace(next=row[0], free=row[1], again=row[2])


def _name(exchange: str, key: str) -> str:
    """What a permit is called in the file, which holds those of several systems."""
    return json.dumps([exchange, key])
