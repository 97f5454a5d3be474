"""The journal's records of jobs, workers and operators, and the batches in which a broker stores them.

A record is a dict with `kind`, `at` (Unix seconds) and the fields that are listed at its kind below. A batch is JSON
with many records, a version and the writer's name. A reader skips unknown kinds and batches of a later version, so that
old and new versions can run side by side. docs/internals/journal.md has the table of kinds; `make docs` compares.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from palermo.core.message import MAX_SECONDS

#: Changes only if old readers would misunderstand; new kinds and fields are no reason.
VERSION = 1

#: Default maximum size of a journal in bytes, and its maximum age in seconds.
JOURNAL_BYTES = 1_000_000_000
JOURNAL_AGE = 30 * 86_400.0

Record = Mapping[str, Any]


class JournalLevel(StrEnum):
    """Which events are recorded."""

    OFF = "off"  #: nothing, so there is no history
    FAILURES = "failures"  #: failures, operators' actions, and counts of jobs with their outcomes and durations
    ALL = "all"  #: every job, from its enqueue to its end


class RecordKind(StrEnum):
    """The event that a record describes. Fields in brackets are left out when they are empty."""

    # A job: each record has id, job, queue; workers' records also have attempt and slot.
    ENQUEUED = "enqueued"  #: [run_at] [parent] [displaced: the same id, if it was enqueued before and not started]
    STARTED = "started"  #: wait
    PROGRESS = "progress"  #: [fraction, 0 to 1] [text]
    LOG = "log"  #: text: a line that the job wrote about itself
    LIMITED = "limited"  #: key [limit] [rate]: postponed by its limit or rate, before it ran
    SUCCEEDED = "succeeded"  #: wait, took [skipped] [result: a StoredResult] [refused: why it is not stored]
    EXPANDED = "expanded"  #: wait, took: the run added steps; the workflow continues, and a later record has its end
    FAILED = "failed"  #: wait, took, error, message
    RETRIED = "retried"  #: wait, took, error, message, delay
    SNOOZED = "snoozed"  #: wait, took, delay
    RELEASED = "released"  #: wait, took: released because its worker was stopped
    DISCARDED = "discarded"  #: wait, took, reason: by its own code or its policy
    CANCELLED = "cancelled"  #: wait, took, by [ran]
    # An event that was published to all groups: id, topic. In each group it becomes a job with the id `<id>@<group>`.
    PUBLISHED = "published"
    # Counts since the writer's last such record: queue, job, and a number for each outcome that occurred: enqueued, or
    # a kind that ends a run. [wait] and [run] are histograms in seconds, with [wait_sum], [wait_min], [wait_max] and
    # the same of run.
    COUNTS = "counts"
    # A worker: worker, host, pid, queues, slots, version [release]; down: processed, failed, and [code], or [restarts].
    WORKER_UP = "worker_up"
    WORKER_DOWN = "worker_down"
    # A recurring job's turn: name, id, job, queue.
    FIRED = "fired"
    # An operator's action: action, by, source, outcome (done, refused, failed) [queue] [ids] [count] [what]. An action
    # on more than 1,000 ids makes several records; from the second on they have [part].
    ACTION = "action"
    # Records that were not written because the journal was unavailable or slow: count.
    LOST = "lost"


#: The kinds that end a run of a job, each with whether the job is finished.
RUN_ENDS: Mapping[str, bool] = {
    RecordKind.SUCCEEDED: True,
    RecordKind.EXPANDED: False,
    RecordKind.FAILED: True,
    RecordKind.RETRIED: False,
    RecordKind.SNOOZED: False,
    RecordKind.RELEASED: False,
    RecordKind.DISCARDED: True,
    RecordKind.CANCELLED: True,
}

#: Texts that JSON contains unchanged.
_PLAIN = re.compile(r"[\w.:@~=, -]*\Z", re.ASCII)

#: Maximum number of ids that `names_any` searches for.
_FEW = 16

#: The kinds that are not recorded at level "failures".
_ONLY_ALL = frozenset(
    {
        *(RecordKind.PUBLISHED, RecordKind.ENQUEUED, RecordKind.STARTED, RecordKind.LIMITED),
        *(RecordKind.SUCCEEDED, RecordKind.SNOOZED, RecordKind.RELEASED),
    }
)


class RecordBatch(Struct, frozen=True):
    """Records that were stored together."""

    #: Its position in the journal: later batches have higher numbers, not always consecutive ones.
    position: int
    #: The writer: a worker's id, or another name that the writer chose; "" for none.
    writer: str
    records: Sequence[Record]
    #: One run of the writer's process, and the batch's number in it. Both are equal in a batch that was stored twice
    #: because the broker didn't answer the first time.
    source: str = ""
    number: int = 0
    #: The number of unreadable records, which are left out; 1 if the whole batch is unreadable.
    unreadable: int = 0


def is_recorded(kind: str, level: JournalLevel) -> bool:
    """Whether records of this kind are written at this level."""
    return level is JournalLevel.ALL or (level is JournalLevel.FAILURES and kind not in _ONLY_ALL)


def names_any(ids: Collection[str]) -> Callable[[bytes], bool]:
    """A quick check of a batch's bytes: False if none of its records contains one of these ids.

    Decoding a batch takes about a hundred times as long. The check passes every batch if decoding is as fast, because
    there are many ids, or if JSON may contain an id in escaped form.
    """
    if len(ids) > _FEW or not all(map(_PLAIN.match, ids)):
        return lambda _: True
    texts = [id.encode() for id in ids]
    return lambda body: any(text in body for text in texts)


def encode_record(record: Record) -> msgspec.Raw:
    """The JSON of one record, for `encode`."""
    # Fast path: a record with 1 kB of arguments takes 2 µs, 12 without; msgspec refuses lone surrogates and integers
    # beyond 64 bits.
    try:
        return msgspec.Raw(msgspec.json.encode(record))
    except (TypeError, ValueError, OverflowError):
        return msgspec.Raw(json.dumps(record, separators=(",", ":"), default=str).encode())


def encode(writer: str, records: Sequence[msgspec.Raw], *, source: str = "", number: int = 0) -> bytes:
    """The bytes of a batch for a broker to store, from records made by `encode_record`."""
    batch = {"version": VERSION, "writer": writer, "source": source, "number": number, "records": records}
    return msgspec.json.encode(batch)


def decode(position: int, body: bytes) -> RecordBatch:
    """The inverse of `encode`, without unreadable records, which another program may have written."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    match found:
        case {"version": int(version), "records": list(records)} if version <= VERSION:
            known = [one for one in records if _is_readable(one)]
            writer, source = (text if isinstance(text := found.get(name), str) else "" for name in ("writer", "source"))
            number = found.get("number")
            left_out = len(records) - len(known)
            return RecordBatch(position, writer, known, source, number if isinstance(number, int) else 0, left_out)
        case {"version": int()}:
            return RecordBatch(position, "", ())
    return RecordBatch(position, "", (), unreadable=1)


#: The fields that are text in every kind, and the numeric ones; each may be None. Readers rely on that.
_TEXTS = frozenset(
    {
        *("id", "job", "queue", "worker", "host", "error", "message", "reason", "name", "topic", "key", "text"),
        *("by", "action", "source", "outcome", "parent", "displaced", "refused", "release"),
    }
)
_NUMBERS = frozenset({"took", "delay", "fraction", "attempt", "slot", "pid", "slots", "run_at", "count"})


def _is_readable(record: Any) -> bool:
    """Whether a record has a kind and a time, and all its fields have the types that readers expect."""
    match record:
        case {"kind": str(), "at": int() | float() as at} if 0 <= at < MAX_SECONDS:
            return all(
                value is None or (isinstance(value, str) if name in _TEXTS else _is_number(value))
                for name, value in record.items()
                if name in _TEXTS or name in _NUMBERS
            )
    return False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and -(2**63) < value < 2**63
