"""The index of failed jobs: a database of this process's own that answers what pages ask.

A private SQLite database in a temporary file, which ends with the process: memory stays what its
cache is (schema.PRAGMAS) however many jobs have failed, and nothing in it is the truth. It may lag
behind the queue and be thrown away at any time; the view (view.py) fills it again.

Safe to share between threads: one at a time is in it, for milliseconds.
"""

import hashlib
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from palermo.core.failure import cut_middle
from palermo.core.message import Message
from palermo.filters import FailedFilter
from palermo.webui.failed.entry import Entry, fold, restored
from palermo.webui.failed.questions import Questions, Where
from palermo.webui.failed.schema import DETAIL, JOB, MARKS, PRAGMAS, SCHEMA

#: Jobs kept at most, the newest, and bytes of bodies and of frames: beyond them bodies are read from the queue
#: when someone looks at a job, the oldest first, and frames are cut.
MAX_JOBS = 500_000
MAX_BODY_BYTES = 512 * 1024 * 1024
MAX_FRAME_BYTES = 256 * 1024 * 1024
_CUT_FRAMES = 1_000

_FORGET = 5_000
_REMEMBERED = 50_000
_ANSWERS = 16


@dataclass(frozen=True, slots=True)
class Found:
    """A job of a page."""

    message: Message
    #: Whether nothing of it was left out of the index.
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Failures of one kind."""

    fingerprint: str
    count: int
    #: Unix seconds; None where none of them says when it failed.
    first: int | None
    last: int | None
    #: The newest of them.
    sample: Message
    #: How many failed in each part of the time that was asked for, oldest part first.
    history: tuple[int, ...] = ()


class Index:
    """All that is known of failed jobs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        for pragma in PRAGMAS:
            self._db.execute(pragma).fetchall()
        self._db.executescript(SCHEMA)
        self._names: dict[str, int] = {}
        self._kinds: dict[str, int] = {}
        self._traces: dict[bytes, int] = {}
        self._questions = Questions(self._db)
        self._answers: dict[Any, tuple[int, tuple[list[Group], int]]] = {}
        self._next = 1
        self._body_bytes = self._frame_bytes = 0
        self._bodies_from = 0
        #: Another number after every change.
        self.version = 0

    def close(self) -> None:
        with self._lock:
            self._db.close()

    # -- filling

    def put(self, entries: Sequence[Entry], reading: int) -> None:
        """Keep these jobs, in the order of their queue; of two with one id in one reading only the first."""
        with self._lock:
            self._db.execute("begin")
            known = self._known(entries)
            fresh: dict[str, Entry] = {}
            stale: list[int] = []
            seen: list[tuple[int, int]] = []
            for entry in entries:
                there = known.get(entry.id)
                if entry.id in fresh or (there is not None and there[3] == reading):
                    continue
                if there is not None and there[1:3] == (entry.at, entry.retries):
                    seen.append((reading, there[0]))
                    known[entry.id] = (*there[:3], reading)
                    continue
                if there is not None:  # it has run and failed again since
                    stale.append(there[0])
                fresh[entry.id] = entry
            self._db.executemany("update job set seen = ? where n = ?", seen)
            self._remove(stale)
            self._insert(fresh.values(), reading)
            if fresh or stale:
                self.version += 1
            self._db.execute("commit")

    def drop(self, ids: Iterable[str]) -> None:
        """Forget these jobs."""
        with self._lock:
            self._db.execute("begin")
            found = [self._db.execute("select n from job where id = ?", (id,)).fetchone() for id in ids]
            self._remove([n for (n,) in filter(None, found)])
            self.version += 1
            self._db.execute("commit")

    def drop_unseen(self, reading: int) -> None:
        """Forget what a whole reading did not meet, and what exceeds MAX_JOBS."""
        with self._lock:
            self._db.execute("begin")
            gone = [n for (n,) in self._db.execute("select n from job where seen <> ?", (reading,))]
            surplus = self._db.execute("select count(*) from job").fetchone()[0] - len(gone) - MAX_JOBS
            if surplus > 0:
                oldest = "select n from job where seen = ? order by n limit ?"
                gone += [n for (n,) in self._db.execute(oldest, (reading, surplus))]
            if gone:
                self._remove(gone)
                self._db.execute("delete from trace where id not in (select trace from job)")
                self._traces.clear()
                self._frame_bytes = self._db.execute("select coalesce(sum(length(text)), 0) from trace").fetchone()[0]
                self.version += 1
            self._db.execute("commit")

    # -- asking

    def count(self, filter: FailedFilter) -> int:
        """How many match."""
        with self._lock:
            return int(self._questions.one("count(*)", self._where(filter))[0])

    def page(self, filter: FailedFilter, *, offset: int, limit: int, newest: bool) -> list[Found]:
        """Some of what matches, by the time of failing and then by the place in the queue."""
        with self._lock:
            where, values = self._where(filter)
            turn = "desc" if newest else "asc"
            rows = self._db.execute(
                f"select n from job where {where} order by at {turn}, n {turn} limit ? offset ?",
                (*values, limit, offset),
            ).fetchall()
            return [self._found(n) for (n,) in rows]

    def ids(self, filter: FailedFilter, *, limit: int) -> list[str]:
        """The ids of the newest that match."""
        with self._lock:
            where, values = self._where(filter)
            rows = self._db.execute(
                f"select id from job where {where} order by at desc, n desc limit ?", (*values, limit)
            )
            return [id for (id,) in rows]

    def job(self, id: str) -> Found | None:
        """One job by its id."""
        with self._lock:
            row = self._db.execute("select n from job where id = ?", (id,)).fetchone()
            return None if row is None else self._found(row[0])

    def groups(
        self, filter: FailedFilter, *, offset: int = 0, limit: int = 50, parts: int = 0
    ) -> tuple[list[Group], int]:
        """Failures of one kind together, the largest group first, and how many groups there are.

        With `parts` each has a history: the time from the first to the last of all that match, in so many parts.
        """
        with self._lock:
            asked = (filter, offset, limit, parts)
            version, known = self._answers.get(asked, (-1, ([], 0)))
            if version != self.version:
                known = self._groups(filter, offset, limit, parts)
                _remember(self._answers, asked, (self.version, known), most=_ANSWERS)
            return known

    def newest(self) -> int | None:
        """When the last one failed, as it says."""
        with self._lock:
            (at,) = self._db.execute("select max(at) from job").fetchone()
            return None if at is None else int(at)

    def names(self, what: str) -> list[str]:
        """All queues, jobs or errors there are, for a choice of filters; `what` is "queue", "job" or "error"."""
        column = {"queue": "queue", "job": "job", "error": "error"}[what]
        with self._lock:
            rows = self._db.execute(
                f"select text from name where id in (select distinct {column} from job) and text <> ''"
                " order by text limit 500"
            )
            return [text for (text,) in rows]

    def bytes(self) -> int:
        """How large the temporary file is at most."""
        with self._lock:
            (pages,) = self._db.execute("pragma page_count").fetchone()
            (size,) = self._db.execute("pragma page_size").fetchone()
            return int(pages) * int(size)

    # -- behind them; all within the lock

    def _groups(self, filter: FailedFilter, offset: int, limit: int, parts: int) -> tuple[list[Group], int]:
        where = self._where(filter)
        (total,) = self._questions.one("count(distinct nullif(kind, 0))", where)
        first, last = self._questions.one("min(nullif(at, 0)), max(nullif(at, 0))", where)
        groups: list[Group] = []
        for kind, count, oldest, newest, n, fingerprint in self._questions.groups(where, offset, limit):
            history = self._questions.history(where, kind, (first, last), parts) if parts and first else ()
            groups.append(
                Group(
                    fingerprint=fingerprint,
                    count=count,
                    first=oldest,
                    last=newest,
                    sample=self._found(n).message,
                    history=history,
                )
            )
        return groups, int(total)

    def _where(self, filter: FailedFilter) -> Where:
        return self._questions.where(filter, self.version)

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
            jobs.append((n, entry.id, entry.at, entry.retries, *places, kind, trace, reading))
            words.append((n, entry.words))
            tried = entry.attempts if whole else ""
            details.append(
                (
                    *(n, entry.created_at, entry.message, entry.ending, entry.preview, entry.worker, entry.tenant),
                    entry.topic,
                    *(entry.content_type, entry.content_encoding, entry.arguments, tried, body),
                )
            )
            self._body_bytes += len(body or b"") + len(tried)
        self._db.executemany(f"insert into job ({JOB}) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", jobs)
        self._db.executemany("insert into words (n, text) values (?, ?)", words)
        self._db.executemany(f"insert into detail ({DETAIL}) values ({MARKS})", details)
        while self._body_bytes > MAX_BODY_BYTES:
            self._forget_bodies()

    def _forget_bodies(self) -> None:
        rows = self._db.execute(
            "select n, coalesce(length(body), 0) + length(attempts) from detail where n > ? order by n limit ?",
            (self._bodies_from, _FORGET),
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
        """The number of these frames, and whether they are kept whole."""
        whole = True
        if self._frame_bytes > MAX_FRAME_BYTES and len(frames) > _CUT_FRAMES:
            frames, whole = cut_middle(frames, _CUT_FRAMES), False
        digest = hashlib.blake2b(frames.encode(), digest_size=16).digest()
        found = self._traces.get(digest)
        if found is None:
            cursor = self._db.execute(
                "insert into trace (digest, text, folded) values (?, ?, ?) on conflict do nothing",
                (digest, frames, fold(frames)),
            )
            if cursor.rowcount:
                self._frame_bytes += len(frames)
            (found,) = self._db.execute("select id from trace where digest = ?", (digest,)).fetchone()
            _remember(self._traces, digest, found)
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
            _remember(known, text, found)
        return int(found)

    def _found(self, n: int) -> Found:
        row = self._db.execute(
            "select job.id, q.text, j.text, at, retries, e.text, kind <> 0, trace.text, detail.* from job"
            " join name q on q.id = queue join name j on j.id = job join name e on e.id = error"
            " join trace on trace.id = trace join detail using (n) where n = ?",
            (n,),
        ).fetchone()
        return Found(restored(row), whole=row[-1] is not None)


def _remember(known: dict[Any, Any], key: Any, value: Any, most: int = _REMEMBERED) -> None:
    if len(known) >= most:
        known.clear()
    known[key] = value
