"""Limits and rates, decided in the transaction that lets a job run or postpones it.

A running job's row holds its permit, so the permit ends when the job is deleted or given back. Then the permit goes to
the job that has waited longest for it.
"""

import json
import sqlite3
from collections.abc import Iterable
from typing import Any

from palermo.brokers.sqlite.tables.jobs import COLUMNS, FRONT_PRIORITY, from_row, insert, to_row
from palermo.contract import clock
from palermo.contract.limits import StoredLimit, stored_limit
from palermo.core.limits import MAX_POSTPONEMENT, LimitDemand, LimitInfo, RateState, RunLater, RunNow

#: The columns that `_stored` reads.
_STATE = "most, rate, next, free, again"


def decide(db: sqlite3.Connection, exchange: str, job: int, demand: LimitDemand, now: float) -> RunNow | RunLater:
    """Decide whether the job with this number, which is held, may run now; if so, give it its permit."""
    permit = _permit_name(exchange, demand.key)
    ((has,),) = db.execute("select permit from job where id = ?", (job,)).fetchall()
    if demand.limit is not None and has != permit:
        ((running,),) = db.execute("select count(*) from job where permit = ?", (permit,)).fetchall()
        if running >= demand.limit:
            _save_limit(db, exchange, demand, _load_rate(db, exchange, demand.key))
            # As a rule `hand_on` gives it a permit before that; this is for a permit that was freed in some other way.
            return RunLater(now + MAX_POSTPONEMENT)
    rate_state, decision = _load_rate(db, exchange, demand.key), RunNow()
    if demand.rate is not None:
        rate_state, paced = rate_state.request(demand.rate, now, reserved=demand.reserved)
        _save_limit(db, exchange, demand, rate_state)
        if isinstance(paced, RunLater):
            return paced
        decision = paced
    else:
        _save_limit(db, exchange, demand, rate_state)
    db.execute("update job set permit = ? where id = ?", (permit, job))
    return decision


def wait_for_permit(db: sqlite3.Connection, exchange: str, demand: LimitDemand, decision: RunLater) -> None:
    """Let the job that was postponed last wait for a permit, unless a run is reserved for it."""
    if not decision.reserved:
        permit = _permit_name(exchange, demand.key)
        db.execute("update later set permit = ? where id = (select max(id) from later)", (permit,))


def hand_on(db: sqlite3.Connection, permit: str) -> None:
    """Give a free permit to the job that has waited longest for it, and put that job into its queue."""
    rows = db.execute(
        f"select id, exchange, queue, {COLUMNS} from later where permit = ? order by id limit 1", (permit,)
    ).fetchall()
    for number, exchange, queue, *row in rows:
        message = from_row(row, None)
        insert(db, exchange, queue, (*to_row(message)[:6], None, message.job, FRONT_PRIORITY, None, None))
        db.execute("update job set permit = ? where id = (select max(id) from job)", (permit,))
        db.execute("delete from later where id = ?", (number,))


def delete_jobs(db: sqlite3.Connection, condition: str, values: tuple[Any, ...]) -> int:
    """Delete the jobs that match the condition, and hand their permits on; returns how many."""
    rows = db.execute(f"delete from job where {condition} returning permit", values).fetchall()
    for (permit,) in rows:
        if permit is not None:
            hand_on(db, permit)
    return len(rows)


def list_limits(db: sqlite3.Connection, exchange: str) -> list[LimitInfo]:
    """All keys that have running or waiting jobs or reserved runs, by name."""
    now, found = clock.now(), list[LimitInfo]()
    rows = db.execute(
        f"select key, {_STATE} from limited where exchange = ? and typeof(key) = 'text' order by key", (exchange,)
    ).fetchall()
    for key, *stored in rows:
        limit = _stored(key, *stored)
        permit = _permit_name(exchange, key)
        ((running,),) = db.execute(
            "select count(*) from job where permit = ? and holder is not null", (permit,)
        ).fetchall()
        ((called,),) = db.execute("select count(*) from job where permit = ? and holder is null", (permit,)).fetchall()
        ((waiting,),) = db.execute("select count(*) from later where permit = ?", (permit,)).fetchall()
        turns = limit.turns(now)
        if running or called or waiting or turns:
            waits = called + waiting + turns
            found.append(LimitInfo(key=key, limit=limit.limit, rate=limit.rate, running=running, waiting=waits))
    return found


#: Keys that one look for those to forget reads.
_LOOK_AT = 200


def find_idle(db: sqlite3.Connection, exchange: str, after: str) -> tuple[list[tuple[str, RateState]], int, str]:
    """The keys among the next ones after this one that say nothing any more: no job has or awaits a permit of theirs,
    and their rates are over. With them how many keys were read, and the last of these; "" at the end.
    """
    now, idle = clock.now(), list[tuple[str, RateState]]()
    rows = db.execute(
        f"select key, {_STATE} from limited where exchange = ? and key > ? and typeof(key) = 'text'"
        " order by key limit ?",
        (exchange, after, _LOOK_AT),
    ).fetchall()
    for key, *stored in rows:
        limit = _stored(key, *stored)
        state = limit.state
        if state.is_over(limit.rate, now) and not _is_used(db, _permit_name(exchange, key)):
            idle.append((key, state))
    return idle, len(rows), rows[-1][0] if len(rows) == _LOOK_AT else ""


def forget(db: sqlite3.Connection, exchange: str, idle: Iterable[tuple[str, RateState]]) -> None:
    """Forget these keys, if nothing has become of them meanwhile."""
    for key, state in idle:
        if _load_rate(db, exchange, key) == state and not _is_used(db, _permit_name(exchange, key)):
            db.execute("delete from limited where exchange = ? and key = ?", (exchange, key))


def _is_used(db: sqlite3.Connection, permit: str) -> bool:
    """Whether a job has this permit or waits for it."""
    query = "select exists (select 1 from job where permit = :it) or exists (select 1 from later where permit = :it)"
    ((used,),) = db.execute(query, {"it": permit}).fetchall()
    return bool(used)


def _save_limit(db: sqlite3.Connection, exchange: str, demand: LimitDemand, rate_state: RateState) -> None:
    values: tuple[Any, ...] = (
        exchange,
        demand.key,
        demand.limit,
        demand.written,
        rate_state.next,
        rate_state.free,
        rate_state.again,
    )
    db.execute(
        "insert or replace into limited (exchange, key, most, rate, next, free, again) values (?, ?, ?, ?, ?, ?, ?)",
        values,
    )


def _load_rate(db: sqlite3.Connection, exchange: str, key: str) -> RateState:
    row = db.execute(f"select {_STATE} from limited where exchange = ? and key = ?", (exchange, key)).fetchone()
    return RateState() if row is None else _stored(key, *row).state


def _stored(key: str, most: Any, rate: Any, *instants: Any) -> StoredLimit:
    values = {"limit": most, "rate": rate, **dict(zip(("next", "free", "again"), instants, strict=True))}
    return stored_limit(key, json.dumps(values, default=repr))


def _permit_name(exchange: str, key: str) -> str:
    """The name of a permit in the file, which holds the permits of several exchanges."""
    return json.dumps([exchange, key])
