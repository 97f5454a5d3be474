"""The lives of workers, from the journal: which started, which ended properly, and which died.

A killed worker writes nothing. It counts as dead if it started, didn't record its end and is no longer found, or if
another life of the same id has started. A worker that is cut off from the broker therefore counts as dead until it
reconnects.
"""

import threading
from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from palermo.contract.rows import Row, iso_instant
from palermo.core.failure import printable
from palermo.core.journal_records import RUN_ENDS, Record, RecordBatch, RecordKind
from palermo.history.entry import number, text

#: Maximum number of lives. The newest are kept.
MOST_LIVES = 10_000

#: Seconds without a sign of a worker before it counts as dead, because all workers are away after a restart of the
#: broker.
GRACE = 30.0

#: The kinds of records with which a job leaves its slot.
_ENDS = frozenset(RUN_ENDS)


class LastJob(Struct, frozen=True, kw_only=True):
    """A job that a worker started without recording its end."""

    id: str
    job: str
    queue: str
    started_at: float


class WorkerLife(Struct, kw_only=True, eq=False):
    """One life of a worker. A restarted container has the same id again. Times are in Unix seconds."""

    id: str
    #: When it started; None if the journal doesn't go back that far.
    started_at: float | None = None
    #: When its newest record was written, or when it was last seen.
    heard_at: float
    queues: tuple[str, ...] = ()
    release: str = ""
    #: Whether it recorded its end, and whether another life of the same id has started.
    ended: bool = False
    replaced: bool = False
    #: The unfinished jobs, by slot.
    runs: dict[int, LastJob] = field(default_factory=dict)

    @property
    def last_jobs(self) -> tuple[LastJob, ...]:
        """The jobs whose end wasn't recorded."""
        return tuple(self.runs.values())

    def row(self) -> Row:
        """Return the life as a row with its unfinished jobs."""
        return {
            "id": self.id,
            "started_at": iso_instant(self.started_at),
            "last_seen": iso_instant(self.heard_at),
            "ended": self.ended,
            "queues": list(self.queues),
            "release": self.release or None,
            "jobs": [
                {"id": run.id, "job": run.job or None, "queue": run.queue, "started_at": iso_instant(run.started_at)}
                for run in self.last_jobs
            ],
        }


class WorkerLives:
    """The known lives. A JournalView (journal_reader.py); thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lives: list[WorkerLife] = []
        self._newest: dict[str, WorkerLife] = {}

    def take(self, batch: RecordBatch) -> None:
        """Add a batch to its writer's life."""
        with self._lock:
            writer = printable(batch.writer)
            life = self._newest.get(writer)
            for record in batch.records:
                kind, slot = record["kind"], record.get("slot")
                if kind.__class__ is not str:
                    continue
                if kind == RecordKind.WORKER_UP and record.get("worker") == batch.writer:
                    life = self._begin(writer, record)
                elif life is None and isinstance(slot, int) and writer:
                    life = self._begin(writer, {"at": record["at"]})
                if life is None:
                    continue
                if kind == RecordKind.WORKER_DOWN:
                    life.ended = True
                elif kind == RecordKind.STARTED and isinstance(slot, int):
                    life.runs[slot] = LastJob(
                        id=text(record.get("id")) or "",
                        job=text(record.get("job")) or "",
                        queue=text(record.get("queue")) or "",
                        started_at=number(record["at"]) or 0.0,
                    )
                elif life.runs and kind in _ENDS and isinstance(slot, int):
                    life.runs.pop(slot, None)
            if life is not None and batch.records:
                # The records of a batch are nearly in order, and a second doesn't matter.
                life.heard_at = max(life.heard_at, number(batch.records[-1]["at"]) or 0.0)

    def reset(self) -> None:
        with self._lock:
            self._lives.clear()
            self._newest.clear()

    def newest(self, id: str) -> WorkerLife | None:
        with self._lock:
            return self._newest.get(id)

    def deaths(
        self, workers: Iterable[Row], now: float, *, seen: Mapping[str, float] | None = None
    ) -> list[WorkerLife]:
        """Return the lives that ended without a record, newest first.

        `workers` are the rows of existing workers. `seen` contains when others were last seen, in Unix seconds.
        """
        alive = {row["id"] for row in workers}
        # A worker that doesn't answer and whose pid is unknown may be any of the missing ones.
        unknown = any(row["pid"] is None for row in workers)
        with self._lock:
            for id, at in (seen or {}).items():
                if (life := self._newest.get(id)) is not None:
                    life.heard_at = max(life.heard_at, at)
            found = [
                life
                for life in self._lives
                if not life.ended
                and (life.replaced or not (unknown or life.id in alive or now - life.heard_at < GRACE))
            ]
        return sorted(found, key=lambda life: -life.heard_at)

    def _begin(self, id: str, record: Record) -> WorkerLife:
        before, queues = self._newest.get(id), record.get("queues")
        named, at = queues if isinstance(queues, list) else (), number(record["at"]) or 0.0
        if before is not None:
            before.replaced = True
        life = WorkerLife(
            id=id,
            started_at=at if "worker" in record else None,
            heard_at=at,
            queues=tuple(printable(name) for name in named if isinstance(name, str)),
            release=text(record.get("release")) or "",
        )
        self._newest[id] = life
        self._lives.append(life)
        if len(self._lives) > MOST_LIVES:
            gone = self._lives.pop(0)
            if self._newest.get(gone.id) is gone:
                del self._newest[gone.id]
        return life
