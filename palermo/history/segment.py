"""One stretch of the journal's records about jobs, in a temporary file: see index.py."""

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
from palermo.core.journal_records import Record, RecordKind
from palermo.core.message import parent_in
from palermo.history.entry import FINAL, MAX_ID, OF_JOBS, STATE_OF, Entry, entry, number, said, text
from palermo.temp_index import Database, TempIndex, fold
from palermo.views.filter import Facts, JobFilter

#: The field of a workflow's end.
WORKFLOW = "workflow"

#: The most records in a segment, and about the most bytes of them.
MAX_RECORDS, MAX_BYTES = 250_000, 64 * 1024 * 1024

#: The most characters of a job's result that is kept.
MAX_RESULT = 2_000

#: If no more records than this match a filter, a count remembers which.
_FEW = 1_000

#: How many counts of filters are remembered, and how many pages and jobs of a full segment.
_REMEMBERED = 64

#: `first` is the place of a batch's first record, and `n` that of a run's last record. A place is the number of records
#: that were kept before it.
_SCHEMA = """
create table batch (first integer primary key, writer text not null, records blob not null);
create table keys (keys blob not null);
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

#: The form of one hash among all.
_KEY = struct.Struct("=q")

#: SQL for the numbers in a JSON array, and an empty array: a list in the query itself may be too long.
_THESE, _NONE = "(select value from json_each(?))", "[]"

#: What has a meaning of its own in a pattern of SQL's `like`.
_WILD = re.compile("[!%_]")

#: The fields that many runs share: how they ended, their queue, job and error.
Shape = tuple[str, str, str, str]

#: Gives the arguments in a record as text, from the job's id, name and queue and the record's fields; None for none.
ArgumentText = Callable[[str, str, str, Mapping[str, Any]], str | None]

#: The condition in a query that a filter becomes, and its values.
Where = tuple[str, tuple[Any, ...]]


class Segment:
    """A stretch of the journal in a database of its own: some hundred thousand records about jobs, in their order.

    It is a TempIndex. It keeps batches as they came, and beside them what queries need: a narrow row for each run
    that ended, and for each record a hash of its job's id, eight bytes. All hashes are one string of bytes that is
    searched whole: that takes a millisecond, and adding to it next to nothing. A full segment never changes again,
    until it is forgotten as a whole. Counts are remembered: when a filter is asked for again, only the records that
    were added since are counted. Safe to share between threads.
    """

    def __init__(self, arguments: ArgumentText | None = None) -> None:
        self._arguments = arguments
        name = "the index of the journal (at most a gigabyte)"
        self._index = TempIndex(_SCHEMA, name=name, cache_kib=2_048, opened=self._opened)

    def _opened(self, db: Database) -> None:
        self._db = db
        self._shapes: dict[Shape, int] = {}
        self._writers: set[str] = set()
        #: By condition, how many records were counted for it, and how many of them match; where those are few, which.
        self._counts: dict[Where, tuple[int, int, list[int]]] = {}
        self._places: dict[int, list[int]] = {}
        self._shape_counts: dict[Where, Counter[Shape]] = {}
        self._pages: dict[tuple[Where, int, int], list[int]] = {}
        self._first, self._last = float("inf"), float("-inf")
        #: When each error was first seen, in Unix seconds.
        self.errors: dict[str, float] = {}
        self._bytes = 0
        #: A hash of the id of each record, until the segment is sealed.
        self._keys = array("q")
        self._sealed = False
        #: The number of records that it holds.
        self.size = 0

    @property
    def full(self) -> bool:
        """Whether no more should be put into it."""
        return self.size >= MAX_RECORDS or self._bytes >= MAX_BYTES

    def put(self, records: Sequence[Record], writer: str) -> None:
        """Keep the records that are about jobs. Raises StoreInvalid, and then the segment is empty."""
        kept = [
            record
            for record in records
            if (kind := record["kind"]).__class__ is str
            and kind in OF_JOBS
            and (id := record.get("id")).__class__ is str
            and len(id) <= MAX_ID
        ]
        if not kept:
            return
        blob, name = _packed(kept), printable(writer)
        with self._index.write():
            self._db.execute("insert into batch values (?, ?, ?)", (self.size, name, blob))
            self._writers.add(name)
            self._put_ended(kept)
            self._put_children(kept)
            self._keys.extend([hash(record["id"]) for record in kept])
            self.size += len(kept)
            self._bytes += len(blob)

    def seal(self) -> None:
        """Hold less in memory, now that nothing more is put into the segment. Raises StoreInvalid."""
        with self._index.write():
            self._db.execute("insert into keys values (?)", (self._keys.tobytes(),))
            self._keys = array("q")
            self._shapes.clear()
            self._sealed = True

    def close(self) -> None:
        """Throw it away; it is empty from then on."""
        self._index.close()

    # -- queries

    def count(self, filter: JobFilter) -> int:
        """The number of ended runs that match."""
        with self._index.read():
            where = self._where(filter)
            if where is None:
                return 0
            seen, counted, places = self._counts.pop(where, (0, 0, []))
            if seen < self.size:
                condition, given = where
                here = f"from ended where n >= ? and {condition}"
                few = self._db.execute(f"select n {here} order by n limit ?", (seen, *given, _FEW + 1)).fetchall()
                more = len(few) > _FEW
                counted += (
                    self._db.execute(f"select count(*) {here}", (seen, *given)).fetchone()[0] if more else len(few)
                )
                places = [*places, *(n for (n,) in few)] if counted <= _FEW else []
            _remember(self._counts, where, (self.size, counted, places))
            return counted

    def page(self, filter: JobFilter, *, offset: int, limit: int) -> list[Entry]:
        """Some of the ended runs that match, the newest first."""
        with self._index.read():
            where = self._where(filter)
            if where is None:
                return []
            seen, counted, places = self._counts.get(where, (-1, 0, []))
            known = self._pages.get((where, offset, limit))
            if seen == self.size and counted <= _FEW:
                # Fast path: a search for rare words looks at all records once, and not twice. 70 ms of 140 in 100,000.
                known = places[::-1][offset : offset + limit]
            elif known is None:
                question = f"select n from ended where {where[0]} order by n desc limit ? offset ?"
                known = [n for (n,) in self._db.execute(question, (*where[1], limit, offset))]
                if self._sealed:
                    _remember(self._pages, (where, offset, limit), known)
            return self._at(known)

    def of(self, id: str, *, limit: int) -> list[Entry]:
        """All records of one job, in order; the last ones if there are more than `limit`."""
        with self._index.read():
            key = hash(id)
            places = self._places.get(key)
            if places is None:
                places = _found(self._all_keys(), _KEY.pack(key))
                if self._sealed:
                    _remember(self._places, key, places)
            places = places[-limit:]
            return [each for each in self._at(places) if each.id == id]

    def children(self, id: str, *, limit: int) -> list[Entry]:
        """The newest record of each child of a job that names its parent, the newest first."""
        with self._index.read():
            question = "select n from child where parent = ? order by n desc limit ?"
            return self._at([n for (n,) in self._db.execute(question, (id, limit))])

    def shapes(self, filter: JobFilter) -> Counter[Shape]:
        """How many runs that match have the same state, queue, job and error."""
        with self._index.read():
            where = self._where(filter)
            if where is None:
                return Counter()
            known = self._shape_counts.get(where)
            if known is None:
                question = f"select shape, count(*) from ended where {where[0]} group by shape"
                held = dict(self._db.execute(question, where[1]))
                rows = self._db.execute(f"select * from shape where id in {_THESE}", (json.dumps([*held]),))
                known = Counter({(state, queue, job, error): held[id] for id, state, queue, job, error in rows})
                if self._sealed:
                    _remember(self._shape_counts, where, known)
            return known

    def ends(self, ids: str, *, since: float) -> dict[str, str]:
        """The last final state since an instant of each of these jobs, by id; `ids` is a JSON array."""
        with self._index.read():
            if not self.size or since > self._last:
                return {}
            question = (
                "select ended.id, state from ended join shape on shape.id = shape"
                f" where at >= ? and ended.id in {_THESE} and state <> 'retrying' order by n"
            )
            return dict(self._db.execute(question, (since, ids)))

    def children_named(self, id: str, names: str) -> list[Entry]:
        """The newest record of each of these children of a job; their ids are a JSON array."""
        with self._index.read():
            question = f"select n from child where parent = ? and id in {_THESE} order by n"
            return self._at([n for (n,) in self._db.execute(question, (id, names))])

    def workflows(self, filter: JobFilter, without: str, *, offset: int, limit: int) -> tuple[int, list[Entry]]:
        """The number of workflows whose last ends match, and some of these ends, the newest first.

        `without` has the ids of those that do not count, as a JSON array.
        """
        with self._index.read():
            where = self._where(filter)
            if where is None:
                return 0, []
            condition, given = where
            ends = f"from ended where n in (select n from workflow where id not in {_THESE}) and {condition}"
            (total,) = self._db.execute(f"select count(*) {ends}", (without, *given)).fetchone()
            question = f"select n {ends} order by n desc limit ? offset ?"
            return total, self._at([n for (n,) in self._db.execute(question, (without, *given, limit, offset))])

    def names(self, what: str, *, limit: int) -> set[str]:
        """Some queues or jobs of runs that ended; `what` is "queue" or "job"."""
        column = {"queue": "queue", "job": "job"}[what]
        with self._index.read():
            rows = self._db.execute(f"select distinct {column} from shape where {column} <> '' limit ?", (limit,))
            return {name for (name,) in rows}

    def file_size(self) -> int:
        """The largest size that its file may have, in bytes."""
        return self._index.file_size()

    # -- internals, called within a block of the index

    def _put_ended(self, records: Sequence[Record]) -> None:
        """Add a narrow row for each record of an ended run, and the record's words if it has some."""
        shapes = self._shapes
        ended, words, workflows = [], [], []
        for n, record in enumerate(records, self.size):
            get = record.get
            state = STATE_OF.get(get("kind"))  # type: ignore[arg-type]
            if state is None:
                continue
            id: str = record["id"]
            at, took, queue, job, error = get("at"), get("took"), get("queue"), get("job"), get("error")
            # Usual values pass these checks in few steps. The others are made harmless, as `entry` does it.
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
                    self.errors.setdefault(shape[-1], at)
            ended.append((n, kind, at, took, id if id.isascii() else printable(id)))
            if WORKFLOW in record:
                workflows.append((printable(id), n))
            if at < self._first:
                self._first = at
            if at > self._last:
                self._last = at
            spoken = None if state == "done" else said(record)
            if self._arguments is not None and (told := self._arguments(id, job, queue, record)):
                spoken = f"{spoken}\n{told}" if spoken else told
            if spoken:
                words.append((n, spoken if spoken.isascii() else fold(spoken)))
                self._bytes += len(spoken)
        self._db.executemany("insert into ended values (?, ?, ?, ?, ?)", ended)
        self._db.executemany("insert into words values (?, ?)", words)
        if workflows:
            self._db.executemany("insert or replace into workflow values (?, ?)", workflows)

    def _put_children(self, records: Sequence[Record]) -> None:
        """Note which records name the parent of their job; most jobs have none."""
        children = [
            (printable(parent), printable(record["id"]), n, record["kind"] != RecordKind.ENQUEUED)
            for n, record in enumerate(records, self.size)
            if ("parent" in record or "headers" in record) and 0 < len(parent := _parent(record)) <= MAX_ID
        ]
        if children:
            # A client may write that it enqueued a job after a worker has written how the job ended.
            newest = "on conflict (parent, id) do update set n = excluded.n where ?"
            self._db.executemany(f"insert into child values (?, ?, ?) {newest}", children)

    def _at(self, places: Iterable[int]) -> list[Entry]:
        """The records at these places, in this order."""
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

    def _all_keys(self) -> bytes:
        if not self._sealed:
            return self._keys.tobytes()
        (keys,) = self._db.execute("select keys from keys").fetchone()
        return bytes(keys)

    def _where(self, filter: JobFilter) -> Where | None:
        """The condition that a filter becomes in this segment; None where nothing can match."""
        if not self.size:
            return None
        since, until = filter.first, filter.until
        if (since is not None and since > self._last) or (until is not None and until < self._first):
            return None
        shapes = self._fitting(filter)
        if shapes == _NONE:
            return None
        parts = [f"shape in {_THESE}"]
        given: list[Any] = [shapes]
        # A bound that holds for all of a full segment is left out, so that a bound that moves on gives the same query.
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
        if filter.worker is not None:
            # The writer of a batch is the worker.
            writer = "(select writer from batch where first <= n order by first desc limit 1)"
            parts.append(f"{writer} in {_THESE}")
            given.append(json.dumps([name for name in self._writers if filter.fits_name("worker", name)]))
        if filter.text is not None:
            condition, wanted = self._saying(filter.text)
            parts.append(condition)
            given.extend(wanted)
        return " and ".join(parts), tuple(given)

    def _fitting(self, filter: JobFilter) -> str:
        """The numbers of the shapes that meet the conditions on what a shape has, or no record has, as JSON."""
        of_shapes = replace(
            filter, state=filter.state or ",".join(FINAL), worker=None, text=None, since=None, longer=None, shorter=None
        )
        rows = self._db.execute("select id, state, queue, job, error from shape")
        shapes = [(id, Facts(state=state, queue=queue, job=job, error=error)) for id, state, queue, job, error in rows]
        return json.dumps([id for id, shape in shapes if of_shapes.matches(shape)])

    def _saying(self, wanted: str) -> Where:
        """The condition that finds a text that an id begins with, or in messages, reasons, arguments and names."""
        wanted = fold(wanted)
        rows = self._db.execute("select id, job, error from shape")
        shapes = json.dumps([id for id, job, error in rows if wanted in fold(job) or wanted in fold(error)])
        if wanted.isascii():
            # SQLite's own operator folds ASCII alone; other words are stored folded. In 100,000 jobs it takes 70 ms;
            # 140 with instr and lower.
            begins, has, wanted = "id like ? escape '!'", "text like ? escape '!'", _WILD.sub(r"!\g<0>", wanted) + "%"
            spoken = f"%{wanted}"
        else:
            begins, has, spoken = "instr(fold(id), ?) = 1", "instr(fold(text), ?)", wanted
        return f"(shape in {_THESE} or {begins} or n in (select n from words where {has}))", (shapes, wanted, spoken)

    def _add(self, shape: Shape) -> int:
        number = self._shapes[shape] = len(self._shapes) + 1
        self._db.execute("insert into shape values (?, ?, ?, ?, ?)", (number, *shape))
        return number


def _parent(record: Record) -> str:
    """The parent that a record names: that of an enqueue by itself, that of a run's end among the headers."""
    headers = record.get("headers")
    return text(record.get("parent")) or (parent_in(headers) if isinstance(headers, dict) else "")


def _remember(known: dict[Any, Any], key: Any, value: Any) -> None:
    while len(known) >= _REMEMBERED:
        del known[next(iter(known))]
    known[key] = value


def _found(keys: bytes, key: bytes) -> list[int]:
    """The places of this key among the keys."""
    places = []
    at = keys.find(key)
    while at >= 0:
        if at % _KEY.size == 0:
            places.append(at // _KEY.size)
        at = keys.find(key, at + 1)
    return places


def _packed(records: list[Record]) -> bytes:
    """The records as bytes, without what is too large or too deep for an index."""
    bare = [record if "result" not in record else _without_long_result(record) for record in records]
    try:
        return marshal.dumps(bare)
    except ValueError:  # nested too deep
        return marshal.dumps(
            [{name: value for name, value in record.items() if not isinstance(value, list | dict)} for record in bare]
        )


def _without_long_result(record: Record) -> Record:
    """The record; a result that is long is only said to be there."""
    result = record["result"]
    texts = [value for value in result.values() if isinstance(value, str)] if isinstance(result, dict) else []
    short = len(texts) == 2 and len(result) == 2 and sum(map(len, texts)) <= MAX_RESULT
    return record if short else {**record, "result": True}
