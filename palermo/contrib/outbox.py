"""The shared part of the outboxes: the row that a job becomes, and the sweep that moves rows to the broker.

A row is deleted after the broker has confirmed its job, never before. So a sweep that is killed in between enqueues the
job a second time, with the same id, and loses none.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol

from msgspec import Struct

from palermo.client.client import Client, default_client
from palermo.client.prepare import new_id
from palermo.contract import clock
from palermo.core.times import due_at
from palermo.errors import BrokerError, DuplicateJob, JobCancelled, JobTerminated, JobTimeout
from palermo.jobs.definition import JobDefinition
from palermo.jobs.job_registry import registry

log = logging.getLogger("palermo.outbox")


class Enqueueable(Protocol):
    """A job, or a job with options: `send`, `send.options(queue="slow")`."""

    @property
    def definition(self) -> JobDefinition:
        """The job's definition."""

    @property
    def enqueue(self) -> Any:
        """Enqueues one, with the job's own arguments."""


class OutboxRow(Struct, frozen=True, kw_only=True):
    """A job as a row of an outbox."""

    #: The job's id.
    id: str
    #: The job's name.
    job: str
    #: JSON: an object of `args` and `kwargs`.
    arguments: str
    #: JSON: the options of the enqueue.
    options: str
    #: Unix seconds.
    created_at: float
    #: The row's number in the order in which rows are moved; None before it is stored.
    number: int | None = None


class RowBatch(Protocol):
    """Some rows that a sweep has locked, oldest first."""

    @property
    def rows(self) -> Sequence[OutboxRow]:
        """The rows."""

    def delete(self, numbers: Sequence[int]) -> None:
        """Delete these rows."""

    def refuse(self, number: int, error: str) -> None:
        """Note why this row cannot be enqueued. No later batch has it."""


def make_row(job: Enqueueable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> OutboxRow:
    """The row of a job. It is written as JSON, whatever the job's serializer is later.

    Raises ArgumentsInvalid, EncodeError.
    """
    definition, options = job.definition, dict(getattr(job, "given", {}))
    definition.bind(args, kwargs)
    id = options.pop("id", None) or new_id()
    now = clock.now()
    # A delay counts from now, and not from when the row is moved.
    run_at = due_at(
        now, delay=options.pop("delay", None), run_at=options.pop("run_at", None), declared=definition.delay
    )
    if run_at is not None:
        options["run_at"] = run_at
    json = default_client().serializers.get("json")
    return OutboxRow(
        id=id,
        job=definition.name,
        arguments=json.dumps({"args": list(args), "kwargs": dict(kwargs)}).decode(),
        options=json.dumps({name: value for name, value in options.items() if value is not None}).decode(),
        created_at=now,
    )


def sweep_rows(open_batch: Callable[[int], AbstractContextManager[RowBatch]], client: Client | None, limit: int) -> int:
    """Enqueue the jobs of all rows, in batches of at most `limit`, and delete the rows; returns how many.

    `open_batch` locks the next rows. When its block ends, also by an error, it commits what was deleted and refused.
    Raises BrokerError, and what ends the job that sweeps; the rows that are left then wait for the next sweep.
    """
    chosen = client or default_client()
    total = 0
    while True:
        with open_batch(limit) as batch:
            moved = _move(batch, chosen)
        total += moved
        if len(batch.rows) < limit:
            return total


def waiting_since(oldest: float | None) -> float:
    """For how many seconds the oldest row waits, by its `created_at`."""
    return 0.0 if oldest is None else max(0.0, clock.now() - oldest)


def _move(batch: RowBatch, client: Client) -> int:
    moved: list[int] = []
    try:
        for row in batch.rows:
            assert row.number is not None
            try:
                with suppress(DuplicateJob):  # it is there already
                    _enqueue(client, row)
                moved.append(row.number)
            except (BrokerError, JobTimeout, JobTerminated, JobCancelled):
                raise
            except Exception as error:  # a hook of the user may raise anything, and must not stop the others
                log.error("outbox row cannot be enqueued id=%s job=%s error=%r", row.id, row.job, str(error))
                batch.refuse(row.number, f"{type(error).__name__}: {error}")
    finally:
        # Also after an error: what the broker has confirmed must not be enqueued again.
        batch.delete(moved)
    return len(moved)


def _enqueue(client: Client, row: OutboxRow) -> None:
    definition = registry.find(row.job)
    json = client.serializers.get("json")
    call: Any = json.loads(row.arguments.encode(), definition.classes if definition is not None else {})
    options: Any = json.loads(row.options.encode(), {})
    client.enqueue(definition or row.job, call["args"], call["kwargs"], id=row.id, **options)
