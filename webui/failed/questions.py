"""Filters as SQL, and what is asked of the index with them; all within the index's lock."""

import sqlite3
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from palermo.filters import FailedFilter, named
from palermo.webui.failed.entry import fold
from palermo.webui.failed.schema import HIT, HITS

#: What a filter became: a condition, and the values of its marks.
Where = tuple[str, list[Any]]


class Questions:
    """Asks one database."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        #: Which table holds what a text found, and of which version of the index; the oldest first.
        self._hits: OrderedDict[str, tuple[str, int]] = OrderedDict((f"\0{table}", (table, -1)) for table in HITS)
        for table in HITS:
            db.execute(HIT.format(table))

    def where(self, filter: FailedFilter, version: int) -> Where:
        """The filter as SQL: the same as FailedFilter.matches."""
        parts: list[str] = ["1"]
        values: list[Any] = []
        for column, pattern in (("queue", filter.queue), ("job", filter.job), ("error", filter.error)):
            if pattern is not None:
                parts.append(f"{column} in ({','.join(map(str, self._matching(pattern, column)))})")
        if filter.since is not None:
            parts.append("kind <> 0 and at >= ?")
            values.append(int(filter.since))
        if filter.until is not None:
            parts.append("at <= ?")
            values.append(filter.until)
        if filter.group is not None:
            parts.append("kind = coalesce((select id from kind where fingerprint = ?), -1)")
            values.append(filter.group)
        if filter.text is not None:
            parts.append(f"n in {self._saying(fold(filter.text), version)}")
        return " and ".join(parts), values

    def history(self, where: Where, kind: int, span: tuple[int, int], parts: int) -> tuple[int, ...]:
        """How many of a kind failed in each part of the time."""
        first, last = span
        edges = [first + (last - first + 1) * part // parts for part in range(parts + 1)]
        # A range each: grouping by the part would sort all of them, which takes ten times as long.
        question = f"select count(*) from job where kind = {kind} and at >= ? and at < ? and {where[0]}"
        return tuple(
            self._db.execute(question, (start, end, *where[1])).fetchone()[0] if end > start else 0
            for start, end in pairwise(edges)
        )

    def groups(self, where: Where, offset: int, limit: int) -> list[tuple[Any, ...]]:
        """Of each kind: number, count, first, last, its newest job's place, fingerprint; the largest first."""
        return self._db.execute(
            "select g.*, fingerprint from ("
            " select kind, count(*) as held, min(nullif(at, 0)), max(nullif(at, 0)), max(n) from job"
            f" where {where[0]} and kind <> 0 group by kind"
            ") g join kind on kind.id = g.kind order by held desc, fingerprint limit ? offset ?",
            (*where[1], limit, offset),
        ).fetchall()

    def one(self, what: str, where: Where) -> Sequence[Any]:
        """Some aggregates over all that match."""
        row: Sequence[Any] = self._db.execute(f"select {what} from job where {where[0]}", where[1]).fetchone()
        return row

    def _saying(self, wanted: str, version: int) -> str:
        """The table of the jobs in which this text is found."""
        table, of = self._hits.get(wanted, ("", -1))
        if of != version:
            if not table:
                _, (table, _) = self._hits.popitem(last=False)
            self._db.execute(f"delete from {table}")
            self._db.execute(f"insert into {table} select n from words where instr(text, ?)", (wanted,))
            traces = [id for (id,) in self._db.execute("select id from trace where instr(folded, ?)", (wanted,))]
            if traces:
                among = ",".join(map(str, traces))
                self._db.execute(f"insert or ignore into {table} select n from job where trace in ({among})")
            self._hits[wanted] = (table, version)
        self._hits.move_to_end(wanted)
        return table

    def _matching(self, pattern: str, column: str) -> list[int]:
        rows = self._db.execute("select id, text from name")
        last = column == "error"
        return [id for id, text in rows if named(text, pattern) or (last and named(text.rpartition(".")[2], pattern))]
