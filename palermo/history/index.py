"""The index of what the journal says of jobs: those that ended, newest first, and all there is to say of one.

Made of stretches of the journal (segment.py), the oldest of which is forgotten when there are too many:
so it is bounded in memory and on the disk, however long the journal is. It is a view, in temporary
files, and is made again from the journal by every process that starts.
"""

import sqlite3
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from palermo.core.journal import Batch, Kind
from palermo.errors import StoreInvalid
from palermo.history.entry import Entry
from palermo.history.filters import HistoryFilter
from palermo.history.segment import Segment

#: Stretches kept at most: with segment.MAX_RECORDS each, 4,000,000 records.
SEGMENTS = 16

#: Names offered for a choice.
_NAMES = 500


class Index:
    """What the journal says of jobs. A Taker of palermo.history.following; safe to share between threads."""

    def __init__(self, segments: int = SEGMENTS) -> None:
        """Keeps so many stretches at most, 2 or more."""
        self._lock = threading.Lock()
        self._most = segments
        self._segments: deque[Segment] = deque([Segment()])
        #: How many records their writers could not store.
        self.lost = 0
        #: Whether the journal holds more than is kept here.
        self.cut = False

    def take(self, batch: Batch) -> None:
        """Keep a batch. Raises StoreInvalid where the temporary files cannot be written."""
        for record in batch.records:
            if record["kind"] == Kind.LOST and isinstance(count := record.get("count"), int):
                self.lost += count
        with _writing():
            newest = self._segments[-1]
            newest.put(batch.records, batch.writer)
            if newest.full:
                newest.seal()
                self._add()

    def reset(self) -> None:
        """Forget all. Raises the same."""
        with self._lock, _writing():
            before, self._segments = self._segments, deque([Segment()])
            self.lost, self.cut = 0, False
        for segment in before:
            segment.close()

    def close(self) -> None:
        """Throw all away."""
        with self._lock:
            for segment in self._segments:
                segment.close()

    # -- asking

    def count(self, filter: HistoryFilter) -> int:
        """How many finished runs match."""
        return sum(segment.count(filter) for segment in self._newest_first())

    def page(self, filter: HistoryFilter, *, offset: int = 0, limit: int = 100) -> list[Entry]:
        """Some of those that match, the newest first, in the order of the journal."""
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
        """All that is known of one job, in the order of the journal; of more than `limit` records the last."""
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
        """How many records are kept."""
        return sum(segment.size for segment in self._newest_first())

    def file_size(self) -> int:
        """How large the temporary files are at most."""
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


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise StoreInvalid(
            f"the index of the journal cannot be written: {error}. It is made of temporary files, of at most"
            " a gigabyte: free some room there, or name another place in TMPDIR."
        ) from error
