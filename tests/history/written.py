"""Records as workers, clients and people write them, and a journal to write them into."""

from collections.abc import Iterable, Sequence
from typing import Any

from palermo.client.client import Client
from palermo.core.durations import Durations
from palermo.core.journal_records import RecordBatch, encode, encode_record

#: 2026-11-21 09:00 UTC.
NOON = 1_795_251_600.0

Record = dict[str, Any]


def enqueued(id: str, *, at: float = NOON, job: str = "shop.resize", queue: str = "mail", **more: Any) -> Record:
    return {"kind": "enqueued", "at": at, "id": id, "job": job, "queue": queue, **more}


def ended(
    id: str,
    kind: str = "succeeded",
    *,
    at: float = NOON + 1,
    job: str = "shop.resize",
    queue: str = "mail",
    attempt: int = 1,
    **more: Any,
) -> Record:
    known = {"at": at, "id": id, "job": job, "queue": queue, "attempt": attempt, "slot": 2}
    return {"kind": kind, **known, "wait": 0.25, "took": 0.5, **more}


def failed(id: str, kind: str = "failed", message: str = "no such thing", **more: Any) -> Record:
    return ended(id, kind, error="builtins.ValueError", message=message, **more)


def done_by(by: str, action: str, *, at: float = NOON, **more: Any) -> Record:
    return {"kind": "action", "at": at, "action": action, "by": by, "source": "web", "outcome": "done", **more}


def counts(at: float, queue: str = "mail", job: str = "shop.send", *, run: Iterable[float] = (), **numbers: int) -> Any:
    """What a writer has counted; `run` has the seconds of each run."""
    took = Durations()
    for seconds in run:
        took.add(seconds)
    return {"kind": "counts", "at": at, "queue": queue, "job": job, **numbers, **took.fields("run")}


def batch(
    *records: Record, position: int = 1, writer: str = "pid:7@host", source: str = "", number: int = 0
) -> RecordBatch:
    return RecordBatch(position, writer, records, source, number)


def write(client: Client, *batches: Sequence[Record], writer: str = "pid:7@host", source: str = "") -> None:
    """Append these batches to the client's journal."""

    async def append(broker: Any) -> None:
        for number, records in enumerate(batches, start=1):
            await broker.journal.append(encode(writer, [*map(encode_record, records)], source=source, number=number))

    client.run(append)
