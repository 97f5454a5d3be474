"""The index of the journal's records about jobs: finished jobs, newest first, and all records of a job.

It is a TempIndex, a temporary file that each process rebuilds from the journal when it starts. Its size is limited, and
the oldest records are dropped above the limit.

It keeps the original batches. For queries it has a narrow row for each ended run, and an eight-byte hash of the job id
for each record. All hashes form one byte string: searching it takes a few milliseconds, and appending to it almost
nothing. Counts are cached, so that a repeated filter counts only new records.
"""

import json
import marshal
import re
import struct
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from palermo.core.failure import printable
from palermo.core.journal_records import Record, RecordBatch, RecordKind
from palermo.core.message import parent_in
from palermo.history.entry import FINAL, MAX_ID, OF_JOBS, STATE_OF, Entry, entry, number, text, text_of
from palermo.temp_index import Database, TempIndex, fold
from palermo.views.filter import Facts, JobFilter

#: The record field with a workflow's end.
WORKFLOW = "workflow"

#: Maximum number of records and bytes. The oldest sixteenth is dropped together.
MAX_RECORDS, MAX_BYTES = 4_000_000, 1024 * 1024 * 1024
_PARTS = 16

#: Maximum number of characters of a job's result in the index.
MAX_RESULT = 2_000

#: Up to this number of matches, a cached count also contains their positions.
_FEW = 1_000

#: Maximum number of cached counts.
_REMEMBERED = 64

#: Maximum number of names offered for selection.
_NAMES = 500

#: `first` is the position of a batch's first record, `n` that of a run's last record, and `latest` is the time of the
#: latest end of a run in this and all earlier batches. A position is the number of records before it.
_SCHEMA = """
create table batch (first integer primary key, writer text not null, latest real not null, records blob not null);
create index batch_latest on batch (latest);
create table ended (
    n integer primary key,
    shape integer not null,
    at real not null,
    took real,
    id text not null
);
create table words (n integer primary key, text text not null);
create table workflow (id text primary key, n integer not null) without rowid;
create table child (parent text not null, id text not null, n integer not null, primary key (parent, id)) without rowid;
create table shape (
    id integer primary key,
    state text not null,
    queue text not null,
    job text not null,
    error text not null
);
"""

#: The tables with positions, and the column in each.
_PLACES = {"batch": "first", "ended": "n", "words": "n", "workflow": "n", "child": "n"}

#: The binary format of a hash.
_KEY = struct.Struct("=q")

#: SQL for the numbers in a JSON array, which isn't subject to the limit for lists in a query, and an empty array.
_THESE, _NONE = "(select value from json_each(?))", "[]"

#: Characters with a special meaning in SQL's `like` patterns.
_WILD = re.compile("[!%_]")

#: Fields shared by many runs: state, queue, job and error.
Shape = tuple[str, str, str, str]

#: Returns the text of a record's arguments or None, from the job's id, name and queue and the record's fields.
ArgumentText = Callable[[str, str, str, Mapping[str, Any]], str | None]

#: A filter's SQL condition and its values.
Where = tuple[str, tuple[Any, ...]]


class Index:
    """The journal's records about jobs. A JournalView (journal_reader.py); thread-safe."""

    def __init__(self, arguments: ArgumentText | None = None, *, most: int = MAX_RECORDS) -> None:
        """Keep about `most` records, the newest.

        `arguments` returns the searchable text of finished jobs' arguments. Without it, arguments aren't searched.
        """
        self._arguments = arguments
        self._most = most
        name = "the index of the journal (at most a gigabyte)"
        self._index = TempIndex(_SCHEMA, name=name, cache_kib=8_192, opened=self._opened)

    def _opened(self, db: Database) -> None:
        self._db = db
        self._shapes: dict[Shape, int] = {}
        self._writers: set[str] = set()
        #: For each condition: the position up to which records were counted, the number of matches by shape, and their
        #: positions if they are few.
        self._counts: dict[Where, tuple[int, Counter[int], list[int]]] = {}
        #: When each error was first seen, in Unix seconds.
        self._errors: dict[str, float] = {}
        #: The hash of each record's job id.
        self._keys = bytearray()
        #: The positions of the first record and after the last, and the latest end of a run.
        self._begin, self._end, self._latest = 0, 0, 0.0
        #: Number of records that their writers couldn't store.
        self.lost = 0
        #: Whether the journal contains more records than this index.
        self.cut = False

    def take(self, batch: RecordBatch) -> None:
        """Add the records about jobs. Raises StoreInvalid, and the index is empty afterwards."""
        kept = [
            record
            for record in batch.records
            if (kind := record["kind"]).__class__ is str
            and kind in OF_JOBS
            and (id := record.get("id")).__class__ is str
            and len(id) <= MAX_ID
        ]
        with self._index.write():
            for record in batch.records:
                if record["kind"] == RecordKind.LOST and isinstance(count := record.get("count"), int):
                    self.lost += count
            if kept:
                self._put(kept, printable(batch.writer))

    def reset(self) -> None:
        self._index.reset()

    def close(self) -> None:
        """Delete the index, which is empty from then on."""
        self._index.close()

    # -- queries

    def count(self, filter: JobFilter) -> int:
        """Return the number of matching ended runs."""
        with self._index.read():
            return self._counted(filter).total()

    def page(self, filter: JobFilter, *, offset: int = 0, limit: int = 100) -> list[Entry]:
        """Return matching runs in reverse journal order, newest first."""
        with self._index.read():
            where = self._where(filter)
            if where is None:
                return []
            seen, counted, places = self._counts.get(where, (-1, Counter[int](), []))
            if seen == self._end and counted.total() <= _FEW:
                # Fast path: a search for rare words reads all records once instead of twice, which saves 70 of 140 ms
                # with 100,000 records.
                return self._at(places[::-1][offset : offset + limit])
            question = f"select n from ended where {where[0]} order by n desc limit ? offset ?"
            return self._at(self._places(question, *where[1], limit, offset))

    def of(self, id: str, *, limit: int = 1_000) -> list[Entry]:
        """Return all records of a job in journal order; only the last `limit`."""
        with self._index.read():
            places, key = [], _KEY.pack(hash(id))
            found = self._keys.find(key)
            while found >= 0:
                if found % _KEY.size == 0:
                    places.append(self._begin + found // _KEY.size)
                found = self._keys.find(key, found + 1)
            return [each for each in self._at(places[-limit:]) if each.id == id]

    def children(self, id: str, *, limit: int) -> list[Entry]:
        """Return the newest record of each child of a job, newest first; at most `limit` children."""
        with self._index.read():
            return self._at(self._places("select n from child where parent = ? order by n desc limit ?", id, limit))

    def children_named(self, id: str, names: Iterable[str]) -> dict[str, Entry]:
        """Return the newest record of each of these children of a job, by id."""
        question = f"select n from child where parent = ? and id in {_THESE} order by n"
        with self._index.read():
            return {each.id: each for each in self._at(self._places(question, id, json.dumps(list(names))))}

    def shapes(self, filter: JobFilter) -> Counter[Shape]:
        """Count the matching ended runs by state, queue, job and error."""
        with self._index.read():
            counted = self._counted(filter)
            rows = self._db.execute(f"select * from shape where id in {_THESE}", (json.dumps([*counted]),))
            return Counter({(state, queue, job, error): counted[id] for id, state, queue, job, error in rows})

    def first_errors(self) -> dict[str, float]:
        """Return when each error class was first seen, in Unix seconds."""
        with self._index.read():
            return dict(self._errors)

    def ends(self, ids: Iterable[str], *, since: float) -> Counter[str]:
        """Count how many of these jobs have ended since an instant, by final state."""
        question = (
            "select ended.id, state from ended join shape on shape.id = shape"
            f" where n >= ? and at >= ? and ended.id in {_THESE} and state <> 'retrying' order by n"
        )
        wanted = json.dumps([printable(id) for id in ids])
        with self._index.read():
            return Counter(dict(self._db.execute(question, (self._first_since(since), since, wanted))).values())

    def workflows(
        self, filter: JobFilter, *, without: Iterable[str] = (), offset: int = 0, limit: int = 100
    ) -> tuple[int, list[Entry]]:
        """Return the number of matching ended workflows, and some of their last ends, newest first.

        Excludes the ids `without`, whose end isn't final.
        """
        with self._index.read():
            where = self._where(filter)
            if where is None:
                return 0, []
            ends = f"from ended where n in (select n from workflow where id not in {_THESE}) and {where[0]}"
            given = json.dumps(list(without)), *where[1]
            (total,) = self._db.execute(f"select count(*) {ends}", given).fetchone()
            return total, self._at(
                self._places(f"select n {ends} order by n desc limit ? offset ?", *given, limit, offset)
            )

    def names(self, what: str) -> list[str]:
        """Return names for selection; `what` is "queue" or "job"."""
        column = {"queue": "queue", "job": "job"}[what]
        with self._index.read():
            rows = self._db.execute(f"select distinct {column} from shape where {column} <> '' limit ?", (_NAMES,))
            return sorted(name for (name,) in rows)

    def size(self) -> int:
        return self._end - self._begin

    def file_size(self) -> int:
        """Size of the temporary file's contents in bytes."""
        return self._index.file_size()

    # -- internals, called within a block of the index

    def _put(self, records: Sequence[Record], writer: str) -> None:
        self._put_ended(records)
        self._put_children(records)
        self._db.execute("insert into batch values (?, ?, ?, ?)", (self._end, writer, self._latest, _packed(records)))
        self._writers.add(writer)
        self._keys += array("q", [hash(record["id"]) for record in records]).tobytes()
        self._end += len(records)
        if self.size() > self._most or self.file_size() > MAX_BYTES:
            self._forget()

    def _put_ended(self, records: Sequence[Record]) -> None:
        """Add a narrow row for each ended run, and its searchable text if any."""
        shapes = self._shapes
        ended, words, workflows = [], [], []
        for n, record in enumerate(records, self._end):
            get = record.get
            state = STATE_OF.get(get("kind"))  # type: ignore[arg-type]
            if state is None:
                continue
            id: str = record["id"]
            at, took, queue, job, error = get("at"), get("took"), get("queue"), get("job"), get("error")
            # Normal values pass these checks quickly. Others are sanitized as in `entry`.
            if at.__class__ is not float or at - at:
                at = number(at) or 0.0
            if took.__class__ is not float or took - took:
                took = number(took)
            if queue.__class__ is not str or not queue.isascii():
                queue = text(queue) or ""
            if job.__class__ is not str or not job.isascii():
                job = text(job) or ""
            shape = (state, queue, job, "" if error is None else text(error) or "")
            kind = shapes.get(shape)
            if kind is None:
                kind = self._add(shape)
                if shape[-1]:
                    self._errors.setdefault(shape[-1], at)
            ended.append((n, kind, at, took, id if id.isascii() else printable(id)))
            if WORKFLOW in record:
                workflows.append((printable(id), n))
            if at > self._latest:
                self._latest = at
            searched = None if state == "done" else text_of(record)
            if self._arguments is not None and (arguments := self._arguments(id, job, queue, record)):
                searched = f"{searched}\n{arguments}" if searched else arguments
            if searched:
                words.append((n, searched if searched.isascii() else fold(searched)))
        self._db.executemany("insert into ended values (?, ?, ?, ?, ?)", ended)
        self._db.executemany("insert into words values (?, ?)", words)
        if workflows:
            self._db.executemany("insert or replace into workflow values (?, ?)", workflows)

    def _put_children(self, records: Sequence[Record]) -> None:
        """Add the records that name a parent job, which most jobs don't have."""
        children = [
            (printable(parent), printable(record["id"]), n, record["kind"] != RecordKind.ENQUEUED)
            for n, record in enumerate(records, self._end)
            if ("parent" in record or "headers" in record) and 0 < len(parent := _parent(record)) <= MAX_ID
        ]
        if children:
            # A client may record an enqueue after a worker has recorded the job's end.
            newest = "on conflict (parent, id) do update set n = excluded.n where ?"
            self._db.executemany(f"insert into child values (?, ?, ?) {newest}", children)

    def _forget(self) -> None:
        """Drop the oldest records, and shapes without other records."""
        wanted = self._begin + self.size() // _PARTS + 1
        (first,) = self._db.execute("select min(first) from batch where first >= ?", (wanted,)).fetchone()
        first = self._end if first is None else first
        for table, place in _PLACES.items():
            self._db.execute(f"delete from {table} where {place} < ?", (first,))
        self._db.execute("delete from shape where id not in (select shape from ended)")
        rows = self._db.execute("select id, state, queue, job, error from shape")
        self._shapes = {(state, queue, job, error): id for id, state, queue, job, error in rows}
        errors = {error for *_, error in self._shapes}
        self._errors = {error: at for error, at in self._errors.items() if error in errors}
        self._writers = {writer for (writer,) in self._db.execute("select distinct writer from batch")}
        self._counts.clear()
        del self._keys[: (first - self._begin) * _KEY.size]
        self._begin, self.cut = first, True

    def _places(self, question: str, *given: Any) -> list[int]:
        return [n for (n,) in self._db.execute(question, given)]

    def _at(self, places: Iterable[int]) -> list[Entry]:
        """Return the records at these positions, in this order."""
        found = []
        first, writer = 0, ""
        records: list[Record] = []
        for place in places:
            if not first <= place < first + len(records):
                question = "select first, writer, records from batch where first <= ? order by first desc limit 1"
                first, writer, blob = self._db.execute(question, (place,)).fetchone()
                records = marshal.loads(blob)
            found.append(entry(records[place - first], writer))
        return found

    def _counted(self, filter: JobFilter) -> Counter[int]:
        """Count the matching ended runs by shape number."""
        where = self._where(filter)
        if where is None:
            return Counter()
        seen, counted, places = self._counts.pop(where, (0, Counter[int](), []))
        if seen < self._end:
            here, given = f"from ended where n >= ? and {where[0]}", (seen, *where[1])
            new = self._db.execute(f"select n, shape {here} order by n limit ?", (*given, _FEW + 1)).fetchall()
            if len(new) <= _FEW:
                counted.update(shape for _, shape in new)
            else:
                counted.update(dict(self._db.execute(f"select shape, count(*) {here} group by shape", given)))
            places = [*places, *(n for n, _ in new)] if counted.total() <= _FEW else []
        while len(self._counts) >= _REMEMBERED:
            del self._counts[next(iter(self._counts))]
        self._counts[where] = self._end, counted, places
        return counted

    def _first_since(self, since: float) -> int:
        """Return a position before which no run has ended since this instant."""
        found = self._db.execute("select first from batch where latest >= ? order by latest, first limit 1", (since,))
        (first,) = found.fetchone() or (self._end,)
        return int(first)

    def _where(self, filter: JobFilter) -> Where | None:
        """Return a filter's SQL condition, or None if nothing can match."""
        shapes = self._fitting(filter)
        if shapes == _NONE:
            return None
        parts = [f"shape in {_THESE}"]
        given: list[Any] = [shapes]
        if (since := filter.first) is not None:
            parts.append("n >= ? and at >= ?")
            given += [self._first_since(since), since]
        for column, bound, sign in (
            ("at", filter.until, "<="),
            ("took", filter.longer, ">="),
            ("took", filter.shorter, "<="),
        ):
            if bound is not None:
                parts.append(f"{column} {sign} ?")
                given.append(bound)
        if filter.worker is not None:
            writer = "(select writer from batch where first <= n order by first desc limit 1)"
            parts.append(f"{writer} in {_THESE}")
            given.append(json.dumps([name for name in self._writers if filter.fits_name("worker", name)]))
        if filter.text is not None:
            condition, wanted = self._contains(filter.text)
            parts.append(condition)
            given.extend(wanted)
        return " and ".join(parts), tuple(given)

    def _fitting(self, filter: JobFilter) -> str:
        """Return the ids of the shapes that meet the filter, as JSON."""
        of_shapes = replace(
            filter, state=filter.state or ",".join(FINAL), worker=None, text=None, since=None, longer=None, shorter=None
        )
        rows = self._db.execute("select id, state, queue, job, error from shape")
        shapes = [(id, Facts(state=state, queue=queue, job=job, error=error)) for id, state, queue, job, error in rows]
        return json.dumps([id for id, shape in shapes if of_shapes.matches(shape)])

    def _contains(self, wanted: str) -> Where:
        """Return the condition for a text at the start of an id, or in messages, reasons, arguments and names."""
        wanted = fold(wanted)
        rows = self._db.execute("select id, job, error from shape")
        shapes = json.dumps([id for id, job, error in rows if wanted in fold(job) or wanted in fold(error)])
        if wanted.isascii():
            # SQLite's own operator ignores case only in ASCII; other text is stored folded. With 100,000 jobs it takes
            # 70 ms, and 140 ms with instr and lower.
            begins, has, wanted = "id like ? escape '!'", "text like ? escape '!'", _WILD.sub(r"!\g<0>", wanted) + "%"
            spoken = f"%{wanted}"
        else:
            begins, has, spoken = "instr(fold(id), ?) = 1", "instr(fold(text), ?)", wanted
        return f"(shape in {_THESE} or {begins} or n in (select n from words where {has}))", (shapes, wanted, spoken)

    def _add(self, shape: Shape) -> int:
        cursor = self._db.execute("insert into shape (state, queue, job, error) values (?, ?, ?, ?)", shape)
        number = self._shapes[shape] = int(cursor.lastrowid or 0)
        return number


def _parent(record: Record) -> str:
    """Return the parent in a record: a field of an enqueue, or in the headers of a run's end."""
    headers = record.get("headers")
    return text(record.get("parent")) or (parent_in(headers) if isinstance(headers, dict) else "")


def _packed(records: Sequence[Record]) -> bytes:
    """Encode the records, without parts that are too large or too deep for an index."""
    bare = [record if "result" not in record else _without_long_result(record) for record in records]
    try:
        return marshal.dumps(bare)
    except ValueError:  # nested too deep
        return marshal.dumps(
            [{name: value for name, value in record.items() if not isinstance(value, list | dict)} for record in bare]
        )


def _without_long_result(record: Record) -> Record:
    """Replace a long result in a record with a mark that there is one."""
    result = record["result"]
    texts = [value for value in result.values() if isinstance(value, str)] if isinstance(result, dict) else []
    short = len(texts) == 2 and len(result) == 2 and sum(map(len, texts)) <= MAX_RESULT
    return record if short else {**record, "result": True}
