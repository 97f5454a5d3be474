"""Carries out conditions and changes in one transaction. palermo/brokers/features/steps.py says what they are for."""

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from palermo.brokers.features.steps import Job, Outcome, Step, StepStore, Stored
from palermo.brokers.sqlite.file.store import Store
from palermo.brokers.sqlite.tables.jobs import insert, to_row

#: The tables of states, by their names in steps.
_TABLES = {"recurring": "recurring"}


class SqliteSteps(StepStore):
    """The steps of one session with a file, which `notify` tells others about."""

    def __init__(self, store: Store, exchange: str, notify: Callable[[], None]) -> None:
        self._store = store
        self._exchange = exchange
        self._notify = notify

    async def states(self, table: str, names: Sequence[Stored]) -> list[Stored | None]:
        return await self._store.read(lambda db: [_state(db, self._exchange, table, name) for name in names])

    async def fields(self, table: str) -> Mapping[Any, Any]:
        query = f"select name, state from {_TABLES[table]} where exchange = ? order by name"
        return dict(await self._store.read(lambda db: db.execute(query, (self._exchange,)).fetchall()))

    async def due(self, table: str, now: float, most: int) -> Sequence[Stored]:
        query = f"select name from {_TABLES[table]} where exchange = ? and due <= ? order by due limit ?"
        rows = await self._store.read(lambda db: db.execute(query, (self._exchange, now, most)).fetchall())
        return [name for (name,) in rows]

    async def try_change(self, conditions: Sequence[Step], changes: Sequence[Step]) -> Outcome:
        outcome = await self._store.write(
            lambda db: carry_out(db, self._exchange, conditions, changes),
            publishing=any(name == "put" for name, *_ in changes),
        )
        self._notify()
        return outcome


def carry_out(db: sqlite3.Connection, exchange: str, conditions: Iterable[Step], changes: Iterable[Step]) -> Outcome:
    """Make these changes if all conditions hold."""
    for number, (name, *values) in enumerate(conditions, 1):
        if not _CONDITIONS[name](db, exchange, *values):
            return Outcome(number, [])
    return Outcome(0, [_CHANGES[name](db, exchange, *values) for name, *values in changes])


def _state(db: sqlite3.Connection, exchange: str, table: str, name: Stored) -> Stored | None:
    query = f"select state from {_TABLES[table]} where exchange = ? and name = ?"
    found: tuple[Stored] | None = db.execute(query, (exchange, name)).fetchone()
    return None if found is None else found[0]


def _is_unchanged(db: sqlite3.Connection, exchange: str, table: str, name: Stored, state: Stored | bool) -> bool:
    return _state(db, exchange, table, name) == (None if state is False else state)


_CONDITIONS: dict[str, Callable[..., bool]] = {"field": _is_unchanged}


def _put(db: sqlite3.Connection, exchange: str, job: Job) -> None:
    insert(db, exchange, job.queue or job.message.queue, to_row(job.message))


def _entry(db: sqlite3.Connection, exchange: str, name: Stored, state: Stored | bool, due: float | bool) -> None:
    if state is False:
        db.execute("delete from recurring where exchange = ? and name = ?", (exchange, name))
        return
    values = (exchange, name, None if due is False else due, state)
    db.execute("insert or replace into recurring (exchange, name, due, state) values (?, ?, ?, ?)", values)


_CHANGES: dict[str, Callable[..., Any]] = {"put": _put, "entry": _entry}
