"""A stretch of the journal in a database of its own: some hundred thousand records about jobs, in their order.

A private SQLite database in a temporary file, which ends with its connection. Records are only ever
added to the newest stretch, without an index, which is what makes that fast; a stretch that is full gets
one and is never changed again, until it is forgotten as a whole. What was counted in it stays
counted: of a filter asked for again only what was added since is looked at.

Safe to share between threads: one at a time is in it.
"""

import json
import sqlite3
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from palermo.core.failure import printable
from palermo.core.journal import Record
from palermo.filters import named
from palermo.history.entry import NUMBERS, Entry, restored, values
from palermo.history.filters import HistoryFilter

#: Records in a stretch, and about how many bytes of texts.
MAX_RECORDS, MAX_BYTES = 250_000, 64 * 1024 * 1024

#: Counts of filters that are remembered.
_REMEMBERED = 64

_PRAGMAS = (
    "pragma page_size = 8192",
    "pragma cache_size = -2048",
    "pragma journal_mode = off",
    "pragma synchronous = off",
    "pragma temp_store = file",
)

_SCHEMA = """
create table name (id integer primary key, what text not null, text text not null);
create table record (
    n integer primary key,
    writer integer not null,
    kind integer not null,
    key integer not null,
    at real not null,
    slot integer,
    attempt integer,
    wait real,
    took real,
    id text not null,
    text text,
    more text,
    queue integer not null,
    job integer not null,
    error integer not null
);
"""

#: Any of the numbers in a JSON array, and the array of none: a list in the question itself may be too long.
_THESE, _NONE = "(select value from json_each(?))", "[]"

_INSERT = f"insert into record values ({', '.join('?' * 15)})"
_SELECT = (
    "select kind, at, slot, attempt, wait, took, record.id, record.text, more, q.text, j.text, e.text, w.text"
    " from record join name q on q.id = queue join name j on j.id = job"
    " join name e on e.id = error join name w on w.id = writer"
)

#: The part of a query that a filter becomes, and its values.
Where = tuple[str, tuple[Any, ...]]


class Segment:
    """One stretch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        for pragma in _PRAGMAS:
            self._db.execute(pragma).fetchall()
        self._db.executescript(_SCHEMA)
        self._db.create_function("fold", 1, _fold, deterministic=True)
        self._names: dict[tuple[str, str], int] = {}
        self._counts: dict[Where, tuple[int, int]] = {}
        self._first, self._last = float("inf"), float("-inf")
        self._bytes = 0
        self._closed = self._sealed = False
        #: How many records it holds.
        self.size = 0

    @property
    def full(self) -> bool:
        """Whether no more should be put into it."""
        return self.size >= MAX_RECORDS or self._bytes >= MAX_BYTES

    def put(self, records: Iterable[Record], writer: str) -> None:
        """Keep those of these records that are about jobs. Raises sqlite3.Error."""
        with self._lock:
            by = self._name("worker", writer)
            name = self._name
            rows = []
            n = self.size
            for record in records:
                found = values(record)
                if found is None:
                    continue
                n += 1
                *bare, queue, job, error = found
                rows.append((n, by, *bare, name("queue", queue), name("job", job), name("error", error)))
                if found[7] is not None or found[8] is not None:
                    self._bytes += len(found[7] or "") + len(found[8] or "")
                if found[2] < self._first:
                    self._first = found[2]
                if found[2] > self._last:
                    self._last = found[2]
            self._db.execute("begin")
            self._db.executemany(_INSERT, rows)
            self._db.execute("commit")
            self.size = n

    def seal(self) -> None:
        """Have it found by ids fast, now that nothing more is put into it. Raises sqlite3.Error."""
        with self._lock:
            self._db.execute("create index record_key on record (key)")
            self._names.clear()
            self._sealed = True

    def close(self) -> None:
        """Throw it away; it is empty from then on."""
        with self._lock:
            self._closed = True
            self._db.close()

    # -- asking

    def count(self, filter: HistoryFilter) -> int:
        """How many finished runs match."""
        with self._lock:
            where = self._where(filter)
            if where is None:
                return 0
            seen, counted = self._counts.pop(where, (0, 0))
            if seen < self.size:
                text, given = where
                question = f"select count(*) from record where n > ? and {text}"
                counted += self._db.execute(question, (seen, *given)).fetchone()[0]
            while len(self._counts) >= _REMEMBERED:
                del self._counts[next(iter(self._counts))]
            self._counts[where] = (self.size, counted)
            return counted

    def page(self, filter: HistoryFilter, *, offset: int, limit: int) -> list[Entry]:
        """Some of them, the newest first."""
        with self._lock:
            where = self._where(filter)
            if where is None:
                return []
            # The names are looked up for what is shown, and for nothing that is passed over.
            chosen = f"select n from record where {where[0]} order by n desc limit ? offset ?"
            rows = self._db.execute(
                f"{_SELECT} where n in ({chosen}) order by n desc", (*where[1], limit, offset)
            ).fetchall()
            return [restored(row) for row in rows]

    def of(self, id: str, *, limit: int) -> list[Entry]:
        """All that is known of one job, in order; of more than `limit` records the last."""
        with self._lock:
            if self._closed:
                return []
            rows = self._db.execute(
                f"{_SELECT} where key = ? and record.id = ? order by n desc limit ?", (hash(id), id, limit)
            ).fetchall()
            return [restored(row) for row in reversed(rows)]

    def names(self, what: str, *, limit: int) -> set[str]:
        """Some queues or jobs that there are; `what` is "queue" or "job"."""
        with self._lock:
            if self._closed:
                return set()
            rows = self._db.execute("select text from name where what = ? and text <> '' limit ?", (what, limit))
            return {text for (text,) in rows}

    def bytes(self) -> int:
        """How large its file is at most."""
        with self._lock:
            if self._closed:
                return 0
            (pages,) = self._db.execute("pragma page_count").fetchone()
            return int(pages) * 8_192

    # -- behind them; all within the lock

    def _where(self, filter: HistoryFilter) -> Where | None:
        """What the filter asks for here; None where nothing can match."""
        if self._closed or not self.size:
            return None
        since, until = filter.since, filter.until
        if (since is not None and since > self._last) or (until is not None and until < self._first):
            return None
        parts = [f"kind in ({', '.join(str(NUMBERS[kind]) for kind in filter.kinds)})"]
        given: list[Any] = []
        for what, pattern in (("queue", filter.queue), ("job", filter.job)):
            if pattern is not None:
                numbers = self._numbers(what, partial(named, pattern=pattern))
                if numbers == _NONE:
                    return None
                parts.append(f"{what} in {_THESE}")
                given.append(numbers)
        # Left out where all of a full stretch is within it, so that a time that moves on asks for the same.
        if since is not None and not (self._sealed and since <= self._first):
            parts.append("at >= ?")
            given.append(since)
        if until is not None and not (self._sealed and until >= self._last):
            parts.append("at <= ?")
            given.append(until)
        for bound, sign in ((filter.longer, ">="), (filter.shorter, "<=")):
            if bound is not None:
                parts.append(f"took {sign} ?")
                given.append(bound)
        if filter.text is not None:
            text, wanted = self._saying(filter.text)
            parts.append(text)
            given.extend(wanted)
        return " and ".join(parts), tuple(given)

    def _saying(self, text: str) -> Where:
        """What a text is looked for in: ids and messages, and by their numbers the names of jobs and errors."""
        wanted = _fold(text)
        # SQLite's own knows the case of ASCII alone, which is enough to find ASCII.
        fold = "lower" if wanted.isascii() else "fold"
        jobs, errors = (self._numbers(what, lambda name: wanted in _fold(name)) for what in ("job", "error"))
        within = f"instr({fold}(id), ?) or (record.text is not null and instr({fold}(record.text), ?))"
        return f"(job in {_THESE} or error in {_THESE} or {within})", (jobs, errors, wanted, wanted)

    def _numbers(self, what: str, fits: Callable[[str], bool]) -> str:
        """The numbers of the names that fit, as JSON."""
        rows = self._db.execute("select id, text from name where what = ?", (what,))
        return json.dumps([id for id, text in rows if text and fits(text)])

    def _name(self, what: str, text: str) -> int:
        found = self._names.get((what, text))
        if found is None:
            found = self._names[what, text] = len(self._names) + 1
            self._db.execute("insert into name values (?, ?, ?)", (found, what, text))
        return found


def _fold(text: str | None) -> str:
    return "" if text is None else printable(text).casefold()
