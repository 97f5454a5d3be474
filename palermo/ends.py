"""How jobs ended, as far as the journal told it lately: for those who ask only afterwards. Bounded, in memory."""

import time
from collections.abc import Callable, Iterator, Mapping

from palermo.core.journal import ENDS, Batch, Kind, Record

#: Ends that are kept, and bytes of results with them.
MOST, MOST_BYTES = 20_000, 32 * 1024 * 1024


#: What people do to jobs that nobody runs any more then, and what that makes of them.
_BY_HAND: Mapping[str, Kind] = {
    "cancel scheduled": Kind.CANCELLED,
    "give up": Kind.FAILED,
    "discard": Kind.DISCARDED,
}


def told(batch: Batch) -> Iterator[tuple[Record, bool]]:
    """The records of a batch that are about one job, each with whether it tells that the job is over.

    What ends a job names its writer. What someone did to many jobs is a record for each.
    """
    for record in batch.records:
        kind, id = record["kind"], record.get("id")
        if isinstance(id, str):
            ended = ENDS.get(kind, False)
            yield ({**record, "writer": batch.writer} if ended else record), ended
        elif kind == Kind.ACTION and record.get("action") in _BY_HAND and record.get("outcome") == "done":
            ids, by = record.get("ids"), record.get("by", "somebody")
            said = {"kind": _BY_HAND[record["action"]], "at": record["at"], "message": f"{record['action']} by {by}"}
            for one in ids if isinstance(ids, list) else ():
                yield {**said, "id": one, "by_hand": True}, True


def is_of(record: Record, created: int | None) -> bool:
    """Whether a record is of the job that was enqueued at that instant (Unix seconds): ids may be used again."""
    if created is None:
        return True
    return bool(record["at"] >= created) if "by_hand" in record else record.get("created") in (None, created)


class Ends:
    """The last end of each job, the newest of all."""

    def __init__(
        self,
        since: float,
        *,
        now: Callable[[], float] = time.time,
        most: int = MOST,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        #: Whatever ended since this instant, by this process's clock, and was read, is here.
        self.since = since
        self._now = now
        self._most, self._most_bytes = most, most_bytes
        self._bytes = 0
        #: By job, the record and when it was read.
        self._ends: dict[str, tuple[Record, float]] = {}

    @property
    def full(self) -> bool:
        """Whether one more end would take the place of another."""
        return len(self._ends) >= self._most or self._bytes >= self._most_bytes

    def add(self, record: Record) -> None:
        """Remember the end that this record tells."""
        id = record["id"]
        self._drop(id)
        self._ends[id] = record, self._now()
        self._bytes += _size(record)
        while len(self._ends) > self._most or (self._bytes > self._most_bytes and len(self._ends) > 1):
            # What is enqueued after this instant cannot be what is dropped.
            self.since = max(self.since, self._drop(next(iter(self._ends))))

    def find(self, id: str, created: int | None) -> Record | None:
        """How this job ended; None if that is not known."""
        found = self._ends.get(id)
        return found[0] if found is not None and is_of(found[0], created) else None

    def _drop(self, id: str) -> float:
        record, read_at = self._ends.pop(id, (None, 0.0))
        if record is not None:
            self._bytes -= _size(record)
        return read_at


def _size(record: Record) -> int:
    result = record.get("result")
    return sum(len(text) for text in result.values() if isinstance(text, str)) if isinstance(result, dict) else 0
