"""Recent ends of jobs, as the journal told them, for callers that ask only afterwards. Bounded, in memory."""

from collections.abc import Callable, Iterator, Mapping

from palermo.contract import clock
from palermo.core.journal_records import RUN_ENDS, Record, RecordBatch, RecordKind

#: The most ends that are kept, and the most bytes of results with them.
MAX_ENDS, MAX_BYTES = 20_000, 32 * 1024 * 1024


#: Actions of people after which no worker runs the job any more, and the kind of end that each of them is.
_ENDS_BY_ACTION: Mapping[str, RecordKind] = {
    "cancel scheduled": RecordKind.CANCELLED,
    "give up": RecordKind.FAILED,
    "discard": RecordKind.DISCARDED,
}


def job_records(batch: RecordBatch) -> Iterator[tuple[Record, bool]]:
    """The records of a batch that are about one job, each with whether it says that the job has ended.

    A record that ends a job names its writer. An action on many jobs becomes one record for each.
    """
    for record in batch.records:
        kind, id = record["kind"], record.get("id")
        if isinstance(id, str):
            ended = RUN_ENDS.get(kind, False)
            yield ({**record, "writer": batch.writer} if ended else record), ended
        elif kind == RecordKind.ACTION and record.get("action") in _ENDS_BY_ACTION and record.get("outcome") == "done":
            ids, by = record.get("ids"), record.get("by", "somebody")
            said = {
                "kind": _ENDS_BY_ACTION[record["action"]],
                "at": record["at"],
                "message": f"{record['action']} by {by}",
            }
            for one in ids if isinstance(ids, list) else ():
                yield {**said, "id": one, "by_hand": True}, True


def cancelled_ids(record: Record) -> list[str]:
    """The jobs that somebody cancelled by the action in this record: they may run all the same, or end only later."""
    if record["kind"] != RecordKind.ACTION or record.get("action") != "cancel" or record.get("outcome") != "done":
        return []
    ids = record.get("ids")
    return [id for id in ids if isinstance(id, str)] if isinstance(ids, list) else []


def is_about(record: Record, created: int | None) -> bool:
    """Whether a record is about the job that was enqueued at that instant (Unix seconds): ids may be used again."""
    if created is None:
        return True
    return bool(record["at"] >= created) if "by_hand" in record else record.get("created") in (None, created)


class RecentEnds:
    """The last end of each job. When there is no more room, the oldest ends are dropped."""

    def __init__(
        self,
        since: float,
        *,
        now: Callable[[], float] = clock.now,
        most: int = MAX_ENDS,
        most_bytes: int = MAX_BYTES,
    ) -> None:
        #: Every end since this instant, by this process's clock, that was read from the journal is here.
        self.since = since
        self._now = now
        self._most, self._most_bytes = most, most_bytes
        self._bytes = 0
        #: By job id, the record and when it was read.
        self._ends: dict[str, tuple[Record, float]] = {}

    @property
    def full(self) -> bool:
        """Whether one more end would push out another."""
        return len(self._ends) >= self._most or self._bytes >= self._most_bytes

    def add(self, record: Record) -> None:
        """Remember the end in this record."""
        id = record["id"]
        self._drop(id)
        self._ends[id] = record, self._now()
        self._bytes += _size(record)
        while len(self._ends) > self._most or (self._bytes > self._most_bytes and len(self._ends) > 1):
            # A job that is enqueued after this instant cannot be the one that is dropped.
            self.since = max(self.since, self._drop(next(iter(self._ends))))

    def find(self, id: str, created: int | None) -> Record | None:
        """How this job ended; None if that is not known."""
        found = self._ends.get(id)
        return found[0] if found is not None and is_about(found[0], created) else None

    def _drop(self, id: str) -> float:
        record, read_at = self._ends.pop(id, (None, 0.0))
        if record is not None:
            self._bytes -= _size(record)
        return read_at


def _size(record: Record) -> int:
    result = record.get("result")
    return sum(len(text) for text in result.values() if isinstance(text, str)) if isinstance(result, dict) else 0
