"""The index of failed jobs: a TempIndex for the pages' queries.

Its memory use doesn't depend on the number of failed jobs. The queues contain the actual data: the index may lag behind
them, and can be deleted at any time because the view (view.py) fills it again.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from msgspec import Struct

from palermo.core.failure import cut_middle
from palermo.core.message import Message
from palermo.temp_index import Database, TempIndex
from palermo.views.filter import NAMES, JobFilter
from palermo.webui import tuning
from palermo.webui.failed.entry import Entry, fold, restored

#: The tables. Searched columns are in narrow tables, separate from the others. `n` is the position in the queue: it
#: increases in the order of reading, and stays the same while the job is in the queue. `at` is 0 for a job without a
#: failure time, and `kind` is 0 for a job without an error.
SCHEMA = """
create table name (id integer primary key, text text not null unique);
create table kind (id integer primary key, fingerprint text not null unique);
create table trace (id integer primary key, digest blob not null unique, text text not null, folded text not null);
create table job (
    n integer primary key,
    id text not null unique,
    at integer not null,
    retries integer,
    queue integer not null,
    job integer not null,
    error integer not null,
    kind integer not null,
    trace integer not null,
    seen integer not null,
    requeued integer not null,
    worker integer not null,
    tenant integer not null
);
create index job_at on job (at, n);
create index job_kind on job (kind, at, queue, job, error, trace);
create table words (n integer primary key, text text not null);
create table detail (
    n integer primary key,
    created_at integer,
    message text not null,
    ending text not null,
    preview text,
    worker text,
    tenant text,
    topic text,
    parent text,
    content_type text not null,
    content_encoding text not null,
    arguments text not null,
    attempts text not null,
    body blob
);
create table hits_0 (n integer primary key);
create table hits_1 (n integer primary key);
create table hits_2 (n integer primary key);
create table hits_3 (n integer primary key);
"""

#: Tables that cache the results of the last text filters, because a page, its count and its groups query the same text.
HITS = ("hits_0", "hits_1", "hits_2", "hits_3")

#: The columns in the order of inserts and of reads from `detail`.
JOB = "n, id, at, retries, queue, job, error, kind, trace, seen, requeued, worker, tenant"
DETAIL = (
    "n, created_at, message, ending, preview, worker, tenant, topic, parent,"
    " content_type, content_encoding, arguments, attempts, body"
)
MARKS = ", ".join("?" * len(DETAIL.split(",")))

#: The columns whose names are counted next to the list.
FACETS = ("error", "job", "queue", "worker", "tenant")

#: A filter as SQL: a condition and its parameters.
Where = tuple[str, list[Any]]


class StoredJob(Struct, frozen=True):
    message: Message
    #: Whether the index contains the complete job.
    whole: bool


class FailureGroup(Struct, frozen=True, kw_only=True):
    fingerprint: str
    count: int
    #: Unix seconds; None if no job has a failure time.
    first: int | None
    last: int | None
    #: The newest failed job of the group.
    sample: Message
    #: Number of failures in each part of the period, oldest first; empty if no parts were requested.
    history: tuple[int, ...] = ()


class Index:
    """The database of failed jobs. Thread-safe. It is empty after a change that raises StoreInvalid."""

    def __init__(self) -> None:
        #: Increases with every change.
        self.version = 0
        self._reading = 0
        self._index = TempIndex(SCHEMA, name="the index of failed jobs", cache_kib=32_768, opened=self._opened)

    def _opened(self, db: Database) -> None:
        self._db = db
        self._names: dict[str, int] = {}
        self._kinds: dict[str, int] = {}
        self._frame_ids: dict[bytes, int] = {}
        self._queries = Queries(db)
        self._shapes: dict[JobFilter, tuple[int, list[tuple[tuple[str, ...], int]]]] = {}
        self._group_pages: dict[Any, tuple[int, tuple[list[FailureGroup], int]]] = {}
        self._next = 1
        self._body_bytes = self._frame_bytes = 0
        self._bodies_from = 0
        self.version += 1
        #: Whether it contains the result of a complete reading, and which reading added jobs that are now lost.
        self.complete, self._lost_reading = False, self._reading

    def close(self) -> None:
        self._index.close()

    # -- filling

    def put(self, entries: Sequence[Entry], reading: int) -> None:
        """Store these jobs in queue order. If a reading contains an id twice, only the first job is stored."""
        with self._index.write():
            self._reading = reading
            known = self._known(entries)
            fresh: dict[str, Entry] = {}
            stale: list[int] = []
            seen: list[tuple[int, int]] = []
            for entry in entries:
                known_row = known.get(entry.id)
                if entry.id in fresh or (known_row is not None and known_row[3] == reading):
                    continue
                if known_row is not None and known_row[1:3] == (entry.at, entry.retries):
                    seen.append((reading, known_row[0]))
                    known[entry.id] = (*known_row[:3], reading)
                    continue
                if known_row is not None:  # it has run and failed again since
                    stale.append(known_row[0])
                fresh[entry.id] = entry
            self._db.executemany("update job set seen = ? where n = ?", seen)
            self._remove(stale)
            self._insert(fresh.values(), reading)
            if fresh or stale:
                self.version += 1

    def drop(self, ids: Iterable[str]) -> None:
        """Remove these jobs from the index."""
        with self._index.write():
            found = [self._db.execute("select n from job where id = ?", (id,)).fetchone() for id in ids]
            self._remove([n for (n,) in filter(None, found)])
            self.version += 1

    def drop_unseen(self, reading: int) -> None:
        """Remove the jobs that a complete reading didn't contain, and the oldest above tuning.MAX_JOBS."""
        with self._index.write():
            gone = [n for (n,) in self._db.execute("select n from job where seen <> ?", (reading,))]
            surplus = self._db.execute("select count(*) from job").fetchone()[0] - len(gone) - tuning.MAX_JOBS
            if surplus > 0:
                oldest = "select n from job where seen = ? order by n limit ?"
                gone += [n for (n,) in self._db.execute(oldest, (reading, surplus))]
            if gone:
                self._remove(gone)
                self._db.execute("delete from trace where id not in (select trace from job)")
                self._frame_ids.clear()
                self._frame_bytes = self._db.execute("select coalesce(sum(length(text)), 0) from trace").fetchone()[0]
                self.version += 1
            self.complete = reading != self._lost_reading

    # -- reading

    def count(self, filter: JobFilter) -> int:
        """Return the number of matching jobs."""
        with self._index.read():
            return int(self._queries.one("count(*)", self._where(filter))[0])

    def page(self, filter: JobFilter, *, offset: int, limit: int, newest: bool) -> list[StoredJob]:
        """Return a page of the matching jobs, ordered by time of failure and then by position in the queue."""
        with self._index.read():
            where, values = self._where(filter)
            turn = "desc" if newest else "asc"
            rows = self._db.execute(
                f"select n from job where {where} order by at {turn}, n {turn} limit ? offset ?",
                (*values, limit, offset),
            ).fetchall()
            return [self._found(n) for (n,) in rows]

    def job(self, id: str) -> StoredJob | None:
        with self._index.read():
            row = self._db.execute("select n from job where id = ?", (id,)).fetchone()
            return None if row is None else self._found(row[0])

    def groups(
        self, filter: JobFilter, *, offset: int = 0, limit: int = 50, parts: int = 0
    ) -> tuple[list[FailureGroup], int]:
        """Return a page of the groups, largest first, and the number of groups.

        With `parts`, each group has a history: the period from the first to the last match, divided into this many
        parts.
        """
        with self._index.read():
            key = (filter, offset, limit, parts)
            version, known = self._group_pages.get(key, (-1, ([], 0)))
            if version != self.version:
                known = self._groups(filter, offset, limit, parts)
                _cache(self._group_pages, key, (self.version, known), most=tuning.SOME)
            return known

    def shapes(self, filter: JobFilter) -> list[tuple[tuple[str, ...], int]]:
        """Count the matching jobs by error, job, queue, worker and tenant (FACETS)."""
        with self._index.read():
            version, known = self._shapes.get(filter, (-1, []))
            if version != self.version:
                where, values = self._where(filter)
                columns = ", ".join(FACETS)
                rows = self._db.execute(
                    f"select {columns}, count(*) from job where {where} group by {columns}", values
                ).fetchall()
                texts = dict(self._db.execute("select id, text from name"))
                known = [(tuple(texts[id] for id in ids), number) for *ids, number in rows]
                _cache(self._shapes, filter, (self.version, known), most=tuning.SOME)
            return known

    def newest(self) -> int | None:
        """Return when the newest job failed, in Unix seconds; None if the index is empty."""
        with self._index.read():
            (at,) = self._db.execute("select max(at) from job").fetchone()
            return None if at is None else int(at)

    def names(self, what: str, *, limit: int = 500) -> list[str]:
        """Return the names of jobs or tenants; `what` is the filter's field."""
        column = {"job": "job", "tenant": "tenant"}[what]
        with self._index.read():
            rows = self._db.execute(
                f"select text from name where id in (select distinct {column} from job) and text <> ''"
                " order by text limit ?",
                (limit,),
            )
            return [text for (text,) in rows]

    # -- private; called within a block of the index

    def _groups(self, filter: JobFilter, offset: int, limit: int, parts: int) -> tuple[list[FailureGroup], int]:
        where = self._where(filter)
        (total,) = self._queries.one("count(distinct nullif(kind, 0))", where)
        first, last = self._queries.one("min(nullif(at, 0)), max(nullif(at, 0))", where)
        groups: list[FailureGroup] = []
        for kind, count, oldest, newest, n, fingerprint in self._queries.groups(where, offset, limit):
            history = self._queries.history(where, kind, (first, last), parts) if parts and first else ()
            groups.append(
                FailureGroup(
                    fingerprint=fingerprint,
                    count=count,
                    first=oldest,
                    last=newest,
                    sample=self._found(n).message,
                    history=history,
                )
            )
        return groups, int(total)

    def _where(self, filter: JobFilter) -> Where:
        hits = ""
        if filter.text is not None:
            with self._index.write():
                hits = self._queries.hits(fold(filter.text), self.version)
        return self._queries.where(filter, hits)

    def _known(self, entries: Sequence[Entry]) -> dict[str, tuple[int, int, int | None, int]]:
        ids = list({entry.id for entry in entries})
        marks = ",".join("?" * len(ids))
        rows = self._db.execute(f"select id, n, at, retries, seen from job where id in ({marks})", ids)
        return {id: (n, at, retries, seen) for id, n, at, retries, seen in rows}

    def _insert(self, entries: Iterable[Entry], reading: int) -> None:
        jobs: list[tuple[Any, ...]] = []
        words: list[tuple[int, str]] = []
        details: list[tuple[Any, ...]] = []
        for entry in entries:
            n, self._next = self._next, self._next + 1
            trace, whole = self._trace(entry.frames)
            body = entry.body if whole else None
            kind = 0 if entry.fingerprint is None else self._kind(entry.fingerprint)
            places = self._name(entry.queue), self._name(entry.job), self._name(entry.error)
            taken = self._name(entry.worker or ""), self._name(entry.tenant or "")
            jobs.append((n, entry.id, entry.at, entry.retries, *places, kind, trace, reading, entry.requeued, *taken))
            words.append((n, entry.words))
            tried = entry.attempts if whole else ""
            details.append(
                (
                    *(n, entry.created_at, entry.message, entry.ending, entry.preview, entry.worker, entry.tenant),
                    *(entry.topic, entry.parent),
                    *(entry.content_type, entry.content_encoding, entry.arguments, tried, body),
                )
            )
            self._body_bytes += len(body or b"") + len(tried)
        self._db.executemany(f"insert into job ({JOB}) values ({', '.join('?' * 13)})", jobs)
        self._db.executemany("insert into words (n, text) values (?, ?)", words)
        self._db.executemany(f"insert into detail ({DETAIL}) values ({MARKS})", details)
        while self._body_bytes > tuning.MAX_BYTES:
            self._drop_bodies()

    def _drop_bodies(self) -> None:
        rows = self._db.execute(
            "select n, coalesce(length(body), 0) + length(attempts) from detail where n > ? order by n limit ?",
            (self._bodies_from, tuning.LIMIT),
        ).fetchall()
        if not rows:
            self._body_bytes = 0
            return
        forget = "update detail set body = null, attempts = '' where n > ? and n <= ?"
        self._db.execute(forget, (self._bodies_from, rows[-1][0]))
        self._bodies_from = rows[-1][0]
        self._body_bytes -= sum(size for _, size in rows)

    def _remove(self, numbers: Sequence[int]) -> None:
        each = [(n,) for n in numbers]
        for n in each:
            size = "select coalesce(length(body), 0) + length(attempts) from detail where n = ?"
            row = self._db.execute(size, n).fetchone()
            self._body_bytes -= row[0] if row else 0
        for table in ("job", "words", "detail"):
            self._db.executemany(f"delete from {table} where n = ?", each)

    def _trace(self, frames: str) -> tuple[int, bool]:
        """Return the row id of these frames, and whether they are complete."""
        whole = True
        if self._frame_bytes > tuning.MAX_BYTES and len(frames) > tuning.TEXT:
            frames, whole = cut_middle(frames, tuning.TEXT), False
        digest = hashlib.blake2b(frames.encode(), digest_size=16).digest()
        found = self._frame_ids.get(digest)
        if found is None:
            cursor = self._db.execute(
                "insert into trace (digest, text, folded) values (?, ?, ?) on conflict do nothing",
                (digest, frames, fold(frames)),
            )
            if cursor.rowcount:
                self._frame_bytes += len(frames)
            (found,) = self._db.execute("select id from trace where digest = ?", (digest,)).fetchone()
            _cache(self._frame_ids, digest, found)
        return found, whole

    def _name(self, text: str) -> int:
        return self._numbered(self._names, "name", "text", text)

    def _kind(self, fingerprint: str) -> int:
        return self._numbered(self._kinds, "kind", "fingerprint", fingerprint)

    def _numbered(self, known: dict[str, int], table: str, column: str, text: str) -> int:
        found = known.get(text)
        if found is None:
            self._db.execute(f"insert into {table} ({column}) values (?) on conflict do nothing", (text,))
            (found,) = self._db.execute(f"select id from {table} where {column} = ?", (text,)).fetchone()
            _cache(known, text, found)
        return int(found)

    def _found(self, n: int) -> StoredJob:
        row = self._db.execute(
            "select job.id, q.text, j.text, at, retries, e.text, kind <> 0, trace.text, detail.* from job"
            " join name q on q.id = queue join name j on j.id = job join name e on e.id = error"
            " join trace on trace.id = trace join detail using (n) where n = ?",
            (n,),
        ).fetchone()
        return StoredJob(restored(row), whole=row[-1] is not None)


def _cache(known: dict[Any, Any], key: Any, value: Any, most: int = tuning.CACHED) -> None:
    if len(known) >= most:
        known.clear()
    known[key] = value


class Queries:
    """The queries of the index, with filters as SQL. Called within a block of the index."""

    def __init__(self, db: Database) -> None:
        self._db = db
        #: For each text, the table of the jobs that contain it and the index's version at that time; least recently
        #: used first.
        self._text_hits: OrderedDict[str, tuple[str, int]] = OrderedDict((f"\0{table}", (table, -1)) for table in HITS)

    def where(self, filter: JobFilter, hits: str) -> Where:
        """Return the filter as SQL, equivalent to JobFilter.matches. `hits` is the table for its text."""
        parts: list[str] = ["1"]
        values: list[Any] = []
        if filter.states and "failed" not in filter.states:
            parts.append("0")
        for column in NAMES:
            if getattr(filter, column) is not None:
                rows = self._db.execute("select id, text from name")
                matching = [str(id) for id, text in rows if filter.fits_name(column, text)]
                parts.append(f"{column} in ({','.join(matching)})")
        if any(getattr(filter, name) is not None for name in ("longer", "shorter", "due_from", "due_until")):
            parts.append("0")  # a failed job has no duration and no due time
        for condition, value in (
            ("at <> 0 and at >= ?", filter.first),
            ("at <= ?", filter.until),
            ("kind = coalesce((select id from kind where fingerprint = ?), -1)", filter.group),
            ("requeued = ?", filter.requeued),
        ):
            if value is not None:
                parts.append(condition)
                values.append(value)
        if filter.text is not None:
            # Fast path: SQLite starts with the jobs that contain the text and sorts them, which takes 270 ms for
            # 200,000 jobs. With `+` it reads all jobs in order.
            (many,) = self._db.execute(f"select count(*) > {tuning.FEW} from {hits}").fetchone()
            parts.append(f"{'+' if many else ''}n in {hits}")
        return " and ".join(parts), values

    def history(self, where: Where, kind: int, span: tuple[int, int], parts: int) -> tuple[int, ...]:
        """Return the number of failures of a kind in each part of the period."""
        first, last = span
        edges = [first + (last - first + 1) * part // parts for part in range(parts + 1)]
        # One range query per part, because grouping by part would sort all rows and take ten times as long.
        query = f"select count(*) from job where kind = {kind} and at >= ? and at < ? and {where[0]}"
        return tuple(
            self._db.execute(query, (start, end, *where[1])).fetchone()[0] if end > start else 0
            for start, end in pairwise(edges)
        )

    def groups(self, where: Where, offset: int, limit: int) -> list[tuple[Any, ...]]:
        """Return a row for each kind, largest first: number, count, first, last, the newest job's `n`, fingerprint."""
        return self._db.execute(
            "select g.*, fingerprint from ("
            " select kind, count(*) as held, min(nullif(at, 0)), max(nullif(at, 0)), max(n) from job"
            f" where {where[0]} and kind <> 0 group by kind"
            ") g join kind on kind.id = g.kind order by held desc, fingerprint limit ? offset ?",
            (*where[1], limit, offset),
        ).fetchall()

    def one(self, what: str, where: Where) -> Sequence[Any]:
        """Return aggregates (`what`, as SQL) over all matching jobs."""
        row: Sequence[Any] = self._db.execute(f"select {what} from job where {where[0]}", where[1]).fetchone()
        return row

    def hits(self, wanted: str, version: int) -> str:
        """Return the table of the jobs that contain this text, rebuilt if the index has changed."""
        table, of = self._text_hits.get(wanted, ("", -1))
        if of != version:
            if not table:
                _, (table, _) = self._text_hits.popitem(last=False)
            self._db.execute(f"delete from {table}")
            # Each text starts with the id, of which only the beginning is searched.
            rest = "substr(text, instr(text, char(31)))"
            found = f"instr({rest}, :wanted) or substr(text, 1, length(:wanted)) = :wanted"
            self._db.execute(f"insert into {table} select n from words where {found}", {"wanted": wanted})
            traces = [id for (id,) in self._db.execute("select id from trace where instr(folded, ?)", (wanted,))]
            names = [id for id, text in self._db.execute("select id, text from name") if wanted in fold(text)]
            among, called = (",".join(map(str, ids)) for ids in (traces, names))
            of_these = f"trace in ({among}) or job in ({called}) or error in ({called})"
            if traces or names:
                self._db.execute(f"insert or ignore into {table} select n from job where {of_these}")
            self._text_hits[wanted] = (table, version)
        self._text_hits.move_to_end(wanted)
        return table
