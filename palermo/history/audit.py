"""Who did what, and when: the actions of people that the journal holds, newest first, and by the jobs they were about.

A private SQLite database in a temporary file, as the index of jobs (segment.py), and bounded like it.
"""

import json
import sqlite3
import threading
from collections.abc import Sequence
from typing import Any

from palermo.core.failure import printable
from palermo.core.journal import Batch, Kind, Record
from palermo.errors import StoreInvalid
from palermo.filters import named
from palermo.history.filters import AuditFilter
from palermo.rows import Row, instant, plain

#: Actions kept at most, the newest; how many are forgotten at once; and characters kept of each text.
MAX_ACTIONS, _AT_ONCE, _MAX_TEXT = 100_000, 1_000, 2_000

_SCHEMA = """
pragma page_size = 8192;
pragma cache_size = -4096;
pragma journal_mode = off;
pragma synchronous = off;
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


class Audit:
    """The actions in the journal. A Taker of palermo.history.following; safe to share between threads."""

    def __init__(self, most: int = MAX_ACTIONS) -> None:
        """Keeps about so many, the newest."""
        self._lock = threading.Lock()
        self._most = most
        self._open()

    def take(self, batch: Batch) -> None:
        """Keep the actions of a batch. Raises StoreInvalid where the temporary file cannot be written."""
        actions = [record for record in batch.records if record["kind"] == Kind.ACTION]
        if not actions:
            return
        try:
            with self._lock:
                self._db.execute("begin")
                for record in actions:
                    self._put(record)
                self._forget()
                self._db.execute("commit")
        except sqlite3.Error as error:
            raise StoreInvalid(
                f"the list of actions cannot be written: {error}. It is a temporary file: free some room there, or"
                " name another place in TMPDIR."
            ) from error

    def reset(self) -> None:
        """Forget all."""
        with self._lock:
            self._db.close()
            self._open()

    def close(self) -> None:
        """Throw all away."""
        with self._lock:
            self._db.close()

    # -- asking

    def count(self, filter: AuditFilter) -> int:
        """How many match."""
        text, given = _where(filter)
        with self._lock:
            return int(self._db.execute(f"select count(*) from action where {text}", given).fetchone()[0])

    def page(self, filter: AuditFilter, *, offset: int = 0, limit: int = 100) -> list[Row]:
        """Some of them, the newest first, as rows."""
        text, given = _where(filter)
        question = f"select {_FIELDS} from action where {text} order by n desc limit ? offset ?"
        with self._lock:
            rows = self._db.execute(question, (*given, limit, offset)).fetchall()
        return [_row(row) for row in rows]

    def of(self, id: str, *, limit: int = 100) -> list[tuple[float, Row]]:
        """What was done to one job, in order, with Unix seconds; of more than `limit` actions the last.

        Rows without the ids, most of which are others'.
        """
        question = (
            f"select {_FIELDS} from action where n in (select n from mention where key = ?) order by n desc limit ?"
        )
        with self._lock:
            rows = self._db.execute(question, (hash(id), limit)).fetchall()
        found = [(at, _row((at, *rest))) for at, *rest in reversed(rows)]
        return [(at, row) for at, row in found if id in row.pop("ids")]

    def names(self, what: str) -> list[str]:
        """Who did something, or what was done, to choose from; `what` is "by" or "action"."""
        column = {"by": "by", "action": "action"}[what]
        with self._lock:
            rows = self._db.execute(f"select distinct {column} from action where {column} <> '' order by 1 limit 500")
            return [text for (text,) in rows]

    # -- behind them; all within the lock

    def _open(self) -> None:
        self._db = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        self._db.executescript(_SCHEMA)
        self._db.create_function("fold", 1, _fold, deterministic=True)
        self._db.create_function("named", 2, named, deterministic=True)

    def _put(self, record: Record) -> None:
        ids = [printable(id[:_MAX_TEXT]) for id in _list(record.get("ids")) if isinstance(id, str)]
        at, count, queue, what = (record.get(name) for name in ("at", "count", "queue", "what"))
        cursor = self._db.execute(
            f"insert into action ({_FIELDS}, part) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                float(at) if isinstance(at, int | float) else 0.0,
                *(_text(record.get(name)) for name in ("by", "source", "action", "outcome")),
                _text(queue) if queue is not None else None,
                count if isinstance(count, int) and abs(count) < 2**53 else None,
                _text(what if isinstance(what, str) or what is None else json.dumps(plain(what))),
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
            parts.append(f"named({column}, ?)")
            given.append(pattern)
    for bound, sign in ((filter.since, ">="), (filter.until, "<=")):
        if bound is not None:
            parts.append(f"at {sign} ?")
            given.append(bound)
    if filter.text is not None:
        told = "by || char(31) || action || char(31) || outcome || char(31) || coalesce(queue, '') || char(31) || what"
        parts.append(f"(instr(fold({told}), ?) or instr(fold(ids), ?))")
        given += [_fold(filter.text)] * 2
    return " and ".join(parts), given


def _row(row: Sequence[Any]) -> Row:
    at, by, source, action, outcome, queue, count, what, ids = row
    found = json.loads(ids)
    return {
        "at": instant(at),
        "by": by or None,
        "source": source or None,
        "action": action,
        "outcome": outcome or None,
        "queue": queue,
        "count": len(found) if count is None and found else count,
        "what": what or None,
        "ids": found,
    }


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _text(value: Any) -> str:
    return printable(value[:_MAX_TEXT]) if isinstance(value, str) else ""


def _fold(text: str | None) -> str:
    return "" if text is None else printable(text).casefold()
