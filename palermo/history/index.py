"""The index of the journal's records about jobs: ended jobs, newest first, and all records of one job.

It is made of segments, each a stretch of the journal (segment.py). The oldest segment is forgotten when there are too
many, so the index is bounded in memory and on the disk, however long the journal is. It is a view, in temporary files;
every process that starts makes it again from the journal.
"""

import json
import threading
from collections import Counter, deque
from collections.abc import Iterable

from palermo.core.failure import printable
from palermo.core.journal_records import RecordBatch, RecordKind
from palermo.history.entry import Entry
from palermo.history.segment import ArgumentText, Segment, Shape
from palermo.views.filter import JobFilter

#: The most segments that are kept: with MAX_RECORDS each, 4,000,000 records.
SEGMENTS = 16

#: The most names that are offered for a choice.
_NAMES = 500


class Index:
    """The journal's records about jobs. A JournalView (journal_reader.py); safe to share between threads."""

    def __init__(self, arguments: ArgumentText | None = None, *, segments: int = SEGMENTS) -> None:
        """`arguments` gives the arguments of finished jobs as text that is searched; without it none are.

        `segments` is the most segments that are kept, 2 or more.
        """
        self._lock = threading.Lock()
        self._arguments = arguments
        self._most = segments
        self._segments: deque[Segment] = deque([Segment(arguments)])
        #: How many records their writers could not store.
        self.lost = 0
        #: Whether the journal holds more than is kept here.
        self.cut = False

    def take(self, batch: RecordBatch) -> None:
        """Keep a batch. Raises StoreInvalid where the temporary files cannot be written."""
        for record in batch.records:
            if record["kind"] == RecordKind.LOST and isinstance(count := record.get("count"), int):
                self.lost += count
        newest = self._segments[-1]
        newest.put(batch.records, batch.writer)
        if newest.full:
            newest.seal()
            self._add()

    def reset(self) -> None:
        """Forget all."""
        with self._lock:
            before, self._segments = self._segments, deque([Segment(self._arguments)])
            self.lost, self.cut = 0, False
        for segment in before:
            segment.close()

    def close(self) -> None:
        """Throw all away."""
        with self._lock:
            for segment in self._segments:
                segment.close()

    # -- queries

    def count(self, filter: JobFilter) -> int:
        """The number of finished runs that match."""
        return sum(segment.count(filter) for segment in self._newest_first())

    def page(self, filter: JobFilter, *, offset: int = 0, limit: int = 100) -> list[Entry]:
        """Some of the runs that match, the newest first, in the order of the journal."""
        found: list[Entry] = []
        for segment in self._newest_first():
            here = segment.count(filter)
            if offset >= here:
                offset -= here
                continue
            found += segment.page(filter, offset=offset, limit=limit - len(found))
            offset = 0
            if len(found) >= limit:
                break
        return found

    def of(self, id: str, *, limit: int = 1_000) -> list[Entry]:
        """All records of one job, in the order of the journal; the last ones if there are more than `limit`."""
        found: list[Entry] = []
        for segment in self._newest_first():
            found = segment.of(id, limit=limit - len(found)) + found
            if len(found) >= limit:
                break
        return found

    def children(self, id: str, *, limit: int) -> list[Entry]:
        """The newest known record of each child of a job, the newest first; at most `limit` children."""
        found: dict[str, Entry] = {}
        for segment in self._newest_first():
            for each in segment.children(id, limit=limit):
                found.setdefault(each.id, each)
            if len(found) >= limit:
                break
        return list(found.values())[:limit]

    def shapes(self, filter: JobFilter) -> Counter[Shape]:
        """How many finished runs that match have the same state, queue, job and error."""
        return sum((segment.shapes(filter) for segment in self._newest_first()), Counter[Shape]())

    def first_errors(self) -> dict[str, float]:
        """When each class of errors was first seen, in Unix seconds."""
        found: dict[str, float] = {}
        for segment in self._newest_first():
            found |= segment.errors
        return found

    def ends(self, ids: Iterable[str], *, since: float) -> Counter[str]:
        """How many of these jobs have ended since an instant, by their final states."""
        wanted = json.dumps([printable(id) for id in ids])
        found: dict[str, str] = {}
        for segment in reversed(self._newest_first()):
            found |= segment.ends(wanted, since=since)
        return Counter(found.values())

    def children_named(self, id: str, names: Iterable[str]) -> dict[str, Entry]:
        """The newest known record of each of these children of a job, by their ids."""
        wanted = json.dumps(list(names))
        segments = reversed(self._newest_first())
        return {each.id: each for segment in segments for each in segment.children_named(id, wanted)}

    def workflows(
        self, filter: JobFilter, *, without: Iterable[str] = (), offset: int = 0, limit: int = 100
    ) -> tuple[int, list[Entry]]:
        """The number of workflows that have ended and match, and some of their ends, the newest first.

        The ids `without` do not count: these workflows have not ended for good.
        """
        left_out, total, found = json.dumps(list(without)), 0, list[Entry]()
        for segment in self._newest_first():
            room = {"offset": max(0, offset - total), "limit": limit - len(found)}
            here, ends = segment.workflows(filter, left_out, **room)
            total += here
            found += ends
        return total, found

    def names(self, what: str) -> list[str]:
        """Queues or jobs to choose from; `what` is "queue" or "job"."""
        found: set[str] = set()
        for segment in self._newest_first():
            found |= segment.names(what, limit=_NAMES)
            if len(found) >= _NAMES:
                break
        return sorted(found)[:_NAMES]

    def size(self) -> int:
        """The number of records that are kept."""
        return sum(segment.size for segment in self._newest_first())

    def file_size(self) -> int:
        """The largest size that the temporary files may have, in bytes."""
        return sum(segment.file_size() for segment in self._newest_first())

    def _newest_first(self) -> list[Segment]:
        with self._lock:
            return [*reversed(self._segments)]

    def _add(self) -> None:
        with self._lock:
            self._segments.append(Segment(self._arguments))
            gone = self._segments.popleft() if len(self._segments) > self._most else None
        if gone is not None:
            self.cut = True
            gone.close()
