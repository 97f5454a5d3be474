"""The index of operators' actions in the journal, in reverse order and by job.

It is a TempIndex with a maximum size, like the index of jobs (index.py).
"""

import json
from collections.abc import Sequence
from typing import Any

from palermo.contract.row_types import ActionRow
from palermo.contract.rows import Row, as_json, iso_instant
from palermo.core.failure import printable
from palermo.core.journal_records import Record, RecordBatch, RecordKind
from palermo.history.entry import MAX_TEXT, number, text
from palermo.temp_index import Database, TempIndex, fold
from palermo.views.filter import AuditFilter

#: Maximum number of actions, and how many of the oldest are dropped together.
MAX_ACTIONS, _AT_ONCE = 100_000, 1_000

_SCHEMA = """
create table action (
    n integer primary key,
    at real not null,
    by text not null,
    source text not null,
    action text not null,
    outcome text not null,
    queue text,
    count integer,
    what text not null,
    ids text not null,
    part integer not null
);
create table mention (key integer not null, n integer not null);
create index mention_key on mention (key);
create index mention_n on mention (n);
"""
_FIELDS = "at, by, source, action, outcome, queue, count, what, ids"


class AuditLog:
    """The actions in the journal. A JournalView (journal_reader.py); thread-safe."""

    def __init__(self, most: int = MAX_ACTIONS) -> None:
        """Keep about `most` actions, the newest."""
        self._most = most
        self._index = TempIndex(_SCHEMA, name="the list of actions", cache_kib=4_096, opened=self._opened)

    def take(self, batch: RecordBatch) -> None:
        """Add the actions of a batch. Raises StoreInvalid if the temporary file can't be written."""
        actions = [record for record in batch.records if record["kind"] == RecordKind.ACTION]
        if not actions:
            return
        with self._index.write():
            for record in actions:
                self._put(record)
            self._forget()

    def reset(self) -> None:
        self._index.reset()

    def close(self) -> None:
        """Delete the index."""
        self._index.close()

    # -- queries

    def count(self, filter: AuditFilter) -> int:
        """Return the number of matching actions."""
        condition, given = _where(filter)
        with self._index.read():
            return int(self._db.execute(f"select count(*) from action where {condition}", given).fetchone()[0])

    def page(self, filter: AuditFilter, *, offset: int = 0, limit: int = 100) -> list[ActionRow]:
        """Return matching actions as rows, newest first."""
        condition, given = _where(filter)
        question = f"select {_FIELDS} from action where {condition} order by n desc limit ? offset ?"
        with self._index.read():
            rows = self._db.execute(question, (*given, limit, offset)).fetchall()
        return [_row(row) for row in rows]

    def of(self, id: str, *, limit: int = 100) -> list[tuple[float, Row]]:
        """Return the actions on one job, oldest first, each with its Unix time; only the last `limit`.

        The rows omit job ids, most of which belong to other jobs.
        """
        question = (
            f"select {_FIELDS} from action where n in (select n from mention where key = ?) order by n desc limit ?"
        )
        with self._index.read():
            rows = self._db.execute(question, (hash(id), limit)).fetchall()
        found = [(at, _row((at, *rest))) for at, *rest in reversed(rows)]
        return [
            (at, {name: what for name, what in row.items() if name != "ids"}) for at, row in found if id in row["ids"]
        ]

    # -- internals, called within a block of the index

    def _opened(self, db: Database) -> None:
        self._db = db

    def _put(self, record: Record) -> None:
        given, count, queue, what = (record.get(name) for name in ("ids", "count", "queue", "what"))
        ids = [printable(id[:MAX_TEXT]) for id in (given if isinstance(given, list) else ()) if isinstance(id, str)]
        cursor = self._db.execute(
            f"insert into action ({_FIELDS}, part) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                number(record.get("at")) or 0.0,
                *(text(record.get(name)) or "" for name in ("by", "source", "action", "outcome")),
                (text(queue) or "") if queue is not None else None,
                count if isinstance(count, int) and abs(count) < 2**53 else None,
                text(what if isinstance(what, str) or what is None else json.dumps(as_json(what))) or "",
                json.dumps(ids),
                int("part" in record),
            ),
        )
        self._db.executemany("insert into mention values (?, ?)", [(hash(id), cursor.lastrowid) for id in ids])

    def _forget(self) -> None:
        held, oldest = self._db.execute("select count(*), min(n) from action").fetchone()
        if held > self._most + _AT_ONCE:
            last = oldest + held - self._most
            self._db.execute("delete from mention where n < ?", (last,))
            self._db.execute("delete from action where n < ?", (last,))


def _where(filter: AuditFilter) -> tuple[str, list[Any]]:
    parts, given = ["part = 0"], list[Any]()
    for column, pattern in (("by", filter.by), ("action", filter.action), ("coalesce(queue, '')", filter.queue)):
        if pattern is not None:
            parts.append(f"fits({column}, ?)")
            given.append(pattern)
    for bound, sign in ((filter.since, ">="), (filter.until, "<=")):
        if bound is not None:
            parts.append(f"at {sign} ?")
            given.append(bound)
    if filter.text is not None:
        columns = (
            "by || char(31) || action || char(31) || outcome || char(31) || coalesce(queue, '') || char(31) || what"
        )
        parts.append(f"(instr(fold({columns}), ?) or instr(fold(ids), ?))")
        given += [fold(filter.text)] * 2
    return " and ".join(parts), given


def _row(row: Sequence[Any]) -> ActionRow:
    at, by, source, action, outcome, queue, count, what, ids = row
    found = json.loads(ids)
    return {
        "at": iso_instant(at),
        "by": by or None,
        "source": source or None,
        "action": action,
        "outcome": outcome or None,
        "queue": queue,
        "count": len(found) if count is None and found else count,
        "what": what or None,
        "ids": found,
    }
