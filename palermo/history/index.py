"""The index of the journal's records about jobs: ended jobs, newest first, and all records of one job.

It is made of segments, each a stretch of the journal (segment.py). The oldest segment is forgotten when there
are too many, so the index is bounded in memory and on the disk, however long the journal is. It is a view, in
temporary files; every process that starts makes it again from the journal.
"""

import threading
from collections import deque

from palermo.core.journal_records import RecordBatch, RecordKind
from palermo.history.entry import Entry
from palermo.history.filters import HistoryFilter
from palermo.history.segment import Segment

#: The most segments that are kept: with segment.MAX_RECORDS each, 4,000,000 records.
SEGMENTS = 16

#: The most names that are offered for a choice.
_NAMES = 500


class Index:
    """The journal's records about jobs. A JournalView (journal_reader.py); safe to share between threads."""

    def __init__(self, segments: int = SEGMENTS) -> None:
        """`segments` is the most segments that are kept, 2 or more."""
        self._lock = threading.Lock()
        self._most = segments
        self._segments: deque[Segment] = deque([Segment()])
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
            before, self._segments = self._segments, deque([Segment()])
            self.lost, self.cut = 0, False
        for segment in before:
            segment.close()

    def close(self) -> None:
        """Throw all away."""
        with self._lock:
            for segment in self._segments:
                segment.close()

    # -- queries

    def count(self, filter: HistoryFilter) -> int:
        """The number of finished runs that match."""
        return sum(segment.count(filter) for segment in self._newest_first())

    def page(self, filter: HistoryFilter, *, offset: int = 0, limit: int = 100) -> list[Entry]:
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
            self._segments.append(Segment())
            gone = self._segments.popleft() if len(self._segments) > self._most else None
        if gone is not None:
            self.cut = True
            gone.close()
