"""The SQL queries of the index of failed jobs, with filters as SQL. They run within a block of the index."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from palermo.core.text import fits
from palermo.index.temp_index import Database
from palermo.inspector.failed_filter import FailedFilter
from palermo.webui.failed.schema import HITS

#: A filter as SQL: a condition, and the values for its question marks.
Where = tuple[str, list[Any]]


class Queries:
    """Runs the queries on one database."""

    def __init__(self, db: Database) -> None:
        self._db = db
        #: For each text the table with the jobs that contain it, and the index's version then; the oldest use first.
        self._text_hits: OrderedDict[str, tuple[str, int]] = OrderedDict((f"\0{table}", (table, -1)) for table in HITS)

    def where(self, filter: FailedFilter, hits: str) -> Where:
        """The filter as SQL. It means the same as FailedFilter.matches. `hits` is the table for its text."""
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
            parts.append(f"n in {hits}")
        return " and ".join(parts), values

    def history(self, where: Where, kind: int, span: tuple[int, int], parts: int) -> tuple[int, ...]:
        """How many failures of a kind fall into each part of the time span."""
        first, last = span
        edges = [first + (last - first + 1) * part // parts for part in range(parts + 1)]
        # One range query per part: grouping by the part would sort all rows, which takes ten times as long.
        query = f"select count(*) from job where kind = {kind} and at >= ? and at < ? and {where[0]}"
        return tuple(
            self._db.execute(query, (start, end, *where[1])).fetchone()[0] if end > start else 0
            for start, end in pairwise(edges)
        )

    def groups(self, where: Where, offset: int, limit: int) -> list[tuple[Any, ...]]:
        """A row for each kind, the largest first: number, count, first, last, the newest job's `n`, fingerprint."""
        return self._db.execute(
            "select g.*, fingerprint from ("
            " select kind, count(*) as held, min(nullif(at, 0)), max(nullif(at, 0)), max(n) from job"
            f" where {where[0]} and kind <> 0 group by kind"
            ") g join kind on kind.id = g.kind order by held desc, fingerprint limit ? offset ?",
            (*where[1], limit, offset),
        ).fetchall()

    def one(self, what: str, where: Where) -> Sequence[Any]:
        """Aggregates (`what`, as SQL) over all jobs that match."""
        row: Sequence[Any] = self._db.execute(f"select {what} from job where {where[0]}", where[1]).fetchone()
        return row

    def hits(self, wanted: str, version: int) -> str:
        """The table of the jobs that contain this text, written anew if it is of another version of the index."""
        table, of = self._text_hits.get(wanted, ("", -1))
        if of != version:
            if not table:
                _, (table, _) = self._text_hits.popitem(last=False)
            self._db.execute(f"delete from {table}")
            self._db.execute(f"insert into {table} select n from words where instr(text, ?)", (wanted,))
            traces = [id for (id,) in self._db.execute("select id from trace where instr(folded, ?)", (wanted,))]
            if traces:
                among = ",".join(map(str, traces))
                self._db.execute(f"insert or ignore into {table} select n from job where trace in ({among})")
            self._text_hits[wanted] = (table, version)
        self._text_hits.move_to_end(wanted)
        return table

    def _matching(self, pattern: str, column: str) -> list[int]:
        rows = self._db.execute("select id, text from name")
        last = column == "error"
        return [id for id, text in rows if fits(text, pattern) or (last and fits(text.rpartition(".")[2], pattern))]
