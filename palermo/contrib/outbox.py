"""The shared part of the outboxes: the row that a job becomes, the ways of a row to the broker, and the job's handle.
`JobAfterCommit` is the handle of a job that is in no outbox.

A row goes to the broker right after its commit, by the process that stored it, or else by a sweep. It is deleted after
the broker has confirmed its job, never before: a process that is killed in between has the job enqueued a second time,
with the same id, and loses none.

A sweep leaves rows of the last MIN_AGE seconds to the processes that stored them, since not every database can lock
rows.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from palermo.client import results
from palermo.client.client import Client, default_client
from palermo.client.handle import Job
from palermo.client.prepare import new_id
from palermo.client.status import JobStatus, State
from palermo.contract import clock
from palermo.core.times import Duration, due_at, in_seconds
from palermo.errors import (
    BrokerError,
    BrokerUnavailable,
    DuplicateJob,
    JobCancelled,
    JobFailed,
    JobTerminated,
    JobTimeout,
    ResultTimeout,
)
from palermo.jobs.definition import JobDefinition
from palermo.jobs.job_registry import registry

log = logging.getLogger("palermo.outbox")

R_co = TypeVar("R_co", covariant=True)

#: Seconds for which a row is left to the process that stored it.
MIN_AGE = 10.0

#: How many rows of one transaction are enqueued right after its commit, so that no request takes long; sweeps move the
#: others.
_AT_COMMIT = 100

#: Seconds in which no commit tries the broker after it was away, so that only one request waits for it.
_PAUSE = 30.0

#: Seconds between two looks at a row whose job is waited for, from the first to the longest.
_LOOK_AFTER, _LOOK_EVERY = 0.05, 1.0

#: What ends the job that enqueues: nothing may keep it.
_ENDS = (JobTimeout, JobTerminated, JobCancelled)


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
    """Some rows that are locked where the database can, oldest first."""

    @property
    def rows(self) -> Sequence[OutboxRow]:
        """The rows."""

    def run(self, call: Callable[[], object]) -> None:
        """Call this, without blocking the event loop if the rows are read in one."""

    def delete(self, numbers: Sequence[int]) -> None:
        """Delete these rows."""

    def refuse(self, number: int, error: str) -> None:
        """Note why this row cannot be enqueued. No later batch has it."""


class RowSelection(Struct, frozen=True, kw_only=True):
    """The rows that a batch takes; of all that have no error, at most `limit`, oldest first."""

    limit: int
    #: Unix seconds: only rows that are not younger; None for rows of any age.
    until: float | None = None
    #: Only rows of these jobs; None for all.
    ids: Sequence[str] | None = None


#: Locks rows. When its block ends, also by an error, it commits what was deleted and refused.
OpenBatch = Callable[[RowSelection], AbstractContextManager[RowBatch]]


def make_row(job: Enqueueable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> OutboxRow:
    """The row of a job. It is written as JSON, whatever the job's serializer is later.

    Raises ArgumentsInvalid, EncodeError.
    """
    definition, options = job.definition, dict(getattr(job, "given", {}))
    definition.bind(args, kwargs)
    args, kwargs = definition.written(args, kwargs)
    now = clock.now()
    # A delay counts from now, and not from when the row is moved.
    run_at = due_at(
        now, delay=options.pop("delay", None), run_at=options.pop("run_at", None), declared=definition.delay
    )
    if run_at is not None:
        options["run_at"] = run_at
    json = default_client().serializers.get("json")
    return OutboxRow(
        id=options.get("id") or new_id(),
        job=definition.name,
        arguments=json.dumps({"args": list(args), "kwargs": dict(kwargs)}).decode(),
        options=json.dumps({name: value for name, value in options.items() if value is not None}).decode(),
        created_at=now,
    )


def sweep_rows(open_batch: OpenBatch, client: Client | None, *, limit: int, min_age: float) -> int:
    """Enqueue the jobs of all rows of this age, in batches, and delete the rows; returns how many.

    Raises BrokerError, and what ends the job that sweeps; the rows that are left then wait for the next sweep.
    """
    chosen = client or default_client()
    selection = RowSelection(limit=limit, until=clock.now() - min_age)
    total = 0
    while True:
        with open_batch(selection) as batch:
            moved = _move(batch, chosen)
        total += moved
        if len(batch.rows) < limit:
            return total


class CommitSweep:
    """Enqueues the jobs of one outbox right after the commit of their transaction."""

    def __init__(self) -> None:
        #: The client whose broker was away, and until when no commit tries it.
        self._paused: tuple[Client | None, float] = None, 0.0

    def move(self, open_batch: OpenBatch, ids: Sequence[str]) -> None:
        """Enqueue the jobs of these rows, and delete the rows. Rows that are left wait for a sweep.

        The data are committed, so nothing is raised but what ends the job that stores them. While the broker is away
        only one commit in half a minute waits for it.
        """
        if not ids:
            return
        client = default_client()
        paused, until = self._paused
        if paused is client and time.monotonic() < until:
            return
        try:
            with open_batch(RowSelection(limit=_AT_COMMIT, ids=ids[:_AT_COMMIT])) as batch:
                _move(batch, client)
        except _ENDS:
            raise
        except Exception as error:
            if isinstance(error, BrokerUnavailable):
                self._paused = client, time.monotonic() + _PAUSE
            log.warning("outbox rows wait for a sweep rows=%d error=%r", len(ids), str(error))


def waiting_since(oldest: float | None) -> float:
    """How many seconds the oldest row has waited, by its `created_at`."""
    return 0.0 if oldest is None else max(0.0, clock.now() - oldest)


def _move(batch: RowBatch, client: Client) -> int:
    moved: list[int] = []
    try:
        for row in batch.rows:
            assert row.number is not None
            try:
                with suppress(DuplicateJob):  # it is there already
                    batch.run(partial(_enqueue, client, row))
                moved.append(row.number)
            except (BrokerError, *_ENDS):
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
    client.enqueue_as(row.id, definition or row.job, call["args"], call["kwargs"], **options)


class FindRow(Protocol):
    """Looks for the row of a job: its error, "" if it has none, and None if there is no such row."""

    def __call__(self, id: str) -> str | None: ...

    async def in_loop(self, id: str) -> str | None:
        """The same without holding up the event loop."""


@dataclass(frozen=True, slots=True)
class OutboxJob(Job[R_co]):
    """The handle of a job that is, or was, in an outbox. It waits for the job there too.

    Its status is "outbox" while the row is there. Pickled, it becomes a handle that does not know the outbox.
    """

    _find_row: FindRow | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, row: OutboxRow, job: Enqueueable, find_row: FindRow) -> "OutboxJob[Any]":
        """The handle for a row that has just been stored."""
        client, definition = default_client(), job.definition
        given = getattr(job, "given", {})
        keeps = given.get("keep_result")
        return cls(
            row.id,
            given.get("queue") or definition.queue_in(client.settings),
            row.job,
            # Not True: a job that keeps its result is waited for without asking whether it exists.
            keep_result=None if (definition.keep_result if keeps is None else keeps) else False,
            _client=client,
            _find_row=find_row,
        )

    # `Job.status(self)`: the class that a dataclass with slots becomes is not the one that `super()` would look for.

    def status(self) -> JobStatus:
        """See Job."""
        return self._status(self._find(self.id)) or Job.status(self)

    def result(self, timeout: Duration | None = None) -> R_co:
        """See Job. Raises JobFailed too if the job cannot be enqueued."""
        results.check_kept(self._owner(), self)
        found: R_co = Job.result(self, self._moved(timeout))
        return found

    def wait(self, timeout: Duration | None = None) -> JobStatus:
        """See Job. Raises JobFailed if the job cannot be enqueued."""
        return Job.wait(self, self._moved(timeout))

    async def status_async(self) -> JobStatus:
        """See Job."""
        return self._status(await self._find.in_loop(self.id)) or await Job.status_async(self)

    async def result_async(self, timeout: Duration | None = None) -> R_co:
        """See Job. Raises JobFailed too if the job cannot be enqueued."""
        results.check_kept(self._owner(), self)
        found: R_co = await Job.result_async(self, await self._moved_async(timeout))
        return found

    async def wait_async(self, timeout: Duration | None = None) -> JobStatus:
        """See Job. Raises JobFailed if the job cannot be enqueued."""
        return await Job.wait_async(self, await self._moved_async(timeout))

    @property
    def _find(self) -> FindRow:
        assert self._find_row is not None
        return self._find_row

    def _status(self, error: str | None) -> JobStatus | None:
        if error is None:
            return None
        reason = f"it cannot be enqueued, and its row stays in the outbox: {error}" if error else ""
        return JobStatus(state=State.OUTBOX, id=self.id, job=self.job, queue=self.queue, reason=reason)

    def _moved(self, timeout: Duration | None) -> float | None:
        """Wait until the row is gone; returns how many seconds are left of the timeout."""
        wait = _RowWait(self.id, in_seconds(timeout))
        while wait.goes_on(self._find(self.id)):
            time.sleep(wait.pause)
        return wait.left

    async def _moved_async(self, timeout: Duration | None) -> float | None:
        wait = _RowWait(self.id, in_seconds(timeout))
        while wait.goes_on(await self._find.in_loop(self.id)):  # noqa: ASYNC110 - another process moves the row
            await asyncio.sleep(wait.pause)
        return wait.left


class _RowWait:
    """How long one call has waited for the row of a job to be moved."""

    def __init__(self, id: str, seconds: float | None) -> None:
        self.pause = _LOOK_AFTER
        self._id = id
        self._seconds = seconds
        self._end = None if seconds is None else time.monotonic() + seconds

    @property
    def left(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def goes_on(self, error: str | None) -> bool:
        """Whether the row is still there. Raises JobFailed for one with an error, and ResultTimeout."""
        if error is None:
            return False
        if error:
            name, _, message = error.partition(": ")
            text = f"job {self._id} cannot be enqueued, and its row stays in the outbox: {error}"
            raise JobFailed(text, state=State.OUTBOX.value, error=name, message=message)
        left = self.left
        if left == 0.0:
            raise ResultTimeout(
                f"job {self._id} is still in the outbox after {self._seconds:g} s. Check that the broker is"
                " available, and that a worker serves the queue of the job that sweeps the outbox."
            )
        self.pause = min(2 * self.pause, _LOOK_EVERY, _LOOK_EVERY if left is None else left)
        return True


@dataclass(frozen=True, slots=True)
class JobAfterCommit(Job[R_co]):
    """The handle of a job that is enqueued after a commit. Before that, and after a rollback, it is not known.

    If another job has its key at the commit, it becomes the handle of that job.
    """

    _call: partial[Job[R_co]] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, job: Enqueueable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "JobAfterCommit[Any]":
        """The handle for one call. Raises ArgumentsInvalid."""
        definition, given = job.definition, getattr(job, "given", {})
        definition.bind(args, kwargs)
        client = default_client()
        id = given.get("id") or new_id()
        # A handle by id: it does not say that the job exists.
        return cls(
            id,
            given.get("queue") or definition.queue_in(client.settings),
            definition.name,
            _client=client,
            _call=partial(client.enqueue_as, id, definition, args, kwargs, **given),
        )

    def enqueue(self) -> None:
        """Enqueue the job. Raises what `Client.enqueue` raises."""
        assert self._call is not None
        made = self._call()
        for each in fields(made):
            object.__setattr__(self, each.name, getattr(made, each.name))
