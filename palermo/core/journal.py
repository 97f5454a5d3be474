"""The journal: what is written down of jobs, workers and operators, and the batches it travels in.

A record is a dict with `kind` and `at` (Unix seconds) and what its kind says below. Many of them
make a batch, which is what a broker stores: JSON, with a version and who wrote it. Whoever reads
skips the kinds that it does not know, and batches of a later version, so that old and new may
be used side by side. docs/journal.md has the table of kinds; a test compares.
"""

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from palermo.core.values import dataclass

#: Changes only when old readers would misunderstand: a new kind or a new field is no reason.
VERSION = 1

#: How large a journal grows, in bytes, and how old, in seconds, unless settings say otherwise.
JOURNAL_BYTES = 1_000_000_000
JOURNAL_AGE = 30 * 86_400.0

Record = Mapping[str, Any]


class Level(StrEnum):
    """How much is written down."""

    OFF = "off"  #: nothing, and nothing is known of what was
    FAILURES = "failures"  #: what goes wrong, what people do, and how many jobs of which kind did what in which time
    ALL = "all"  #: every job, from being enqueued to its end


class Kind(StrEnum):
    """What a record is about. Fields in brackets are there where they say something."""

    # A job, each with id, job, queue; those that a worker writes with attempt and slot too.
    ENQUEUED = "enqueued"  #: [run_at]
    STARTED = "started"  #: wait
    PROGRESS = "progress"  #: [fraction, 0 to 1] [text]
    LOG = "log"  #: text: a line that the job wrote about itself
    LIMITED = "limited"  #: key [limit] [rate]: put aside by its limit or rate, before it ran
    SUCCEEDED = "succeeded"  #: wait, took [skipped] [result: see palermo.core.outcome] [refused: why it is not kept]
    FAILED = "failed"  #: wait, took, error, message
    RETRIED = "retried"  #: wait, took, error, message, delay
    SNOOZED = "snoozed"  #: wait, took, delay
    RELEASED = "released"  #: wait, took: given back, since its worker was stopped
    DISCARDED = "discarded"  #: wait, took, reason: as its own code or its policy said
    CANCELLED = "cancelled"  #: wait, took, by [ran]
    # An event, as it was told to all groups: id, topic. The job that it is in each of them has the id `<id>@<group>`.
    PUBLISHED = "published"
    # How many, since the writer's last: queue, job, and a number for each outcome there was: enqueued, or a kind that
    # ends a run. [wait] and [run] are histograms, with [wait_sum], [wait_min], [wait_max] and the same of run, seconds.
    COUNTS = "counts"
    # A worker: worker, host, pid, queues, slots, version [release]; down: processed, failed, and [code], or [anew].
    WORKER_UP = "worker_up"
    WORKER_DOWN = "worker_down"
    # A recurring job's turn: name, id, job, queue.
    FIRED = "fired"
    # What a person did: action, by, source, outcome (done, refused, failed) [queue] [ids] [count] [what]. Of more than
    # 1,000 ids there are several records, from the second on with [part].
    ACTION = "action"
    # So many records were not written down, since the journal was away or slow: count.
    LOST = "lost"


#: The kinds that end a run of a job, and whether the job itself is over then.
ENDS: Mapping[str, bool] = {
    Kind.SUCCEEDED: True,
    Kind.FAILED: True,
    Kind.RETRIED: False,
    Kind.SNOOZED: False,
    Kind.RELEASED: False,
    Kind.DISCARDED: True,
    Kind.CANCELLED: True,
}

#: What a writer leaves out at level "failures".
_ONLY_ALL = frozenset(
    {
        *(Kind.PUBLISHED, Kind.ENQUEUED, Kind.STARTED, Kind.LIMITED),
        *(Kind.SUCCEEDED, Kind.SNOOZED, Kind.RELEASED),
    }
)


@dataclass(frozen=True, slots=True)
class Batch:
    """Records as they were stored together."""

    #: Where it is in the journal: later ones have higher numbers, not always the next one.
    position: int
    #: Who wrote it: a worker's id, or what else it says of itself; "" if nothing.
    writer: str
    records: Sequence[Record]
    #: Tells its writer's life from any other, and how many batches it had written with this one: a batch that was
    #: stored twice, since nobody answered the first time, has the same of both.
    source: str = ""
    number: int = 0


def is_wanted(kind: str, level: Level) -> bool:
    """Whether records of this kind are written at this level."""
    return level is Level.ALL or (level is Level.FAILURES and kind not in _ONLY_ALL)


def encode(writer: str, records: Sequence[Record], *, source: str = "", number: int = 0) -> bytes:
    """A batch, to be stored."""
    batch = {"version": VERSION, "writer": writer, "source": source, "number": number, "records": records}
    return json.dumps(batch, separators=(",", ":")).encode()


def decode(position: int, body: bytes) -> Batch:
    """What `encode` made; without records where a later version, or nobody we know, wrote it."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    match found:
        case {"version": int(version), "records": list(records)} if version <= VERSION:
            known = [one for one in records if isinstance(one, dict) and "kind" in one and "at" in one]
            writer, source = (text if isinstance(text := found.get(name), str) else "" for name in ("writer", "source"))
            number = found.get("number")
            return Batch(position, writer, known, source, number if isinstance(number, int) else 0)
    return Batch(position, "", ())
