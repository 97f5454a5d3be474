"""The common part of all outboxes: a job's row, moving rows to the broker, and the job's handle. Also contains
`JobAfterCommit`, the handle of a job that is enqueued after a commit without an outbox.

A row is moved to the broker right after its commit by the process that stored it, or else by a sweep. It is deleted
only after the broker has confirmed its job. If a process is killed in between, the job is enqueued a second time with
the same id, and no job is lost.

A sweep leaves rows of the last MIN_AGE seconds to the processes that stored them, because not all databases can lock
rows.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from palermo.client import results
from palermo.client.client import Client, default_client
from palermo.client.handle import Job
from palermo.client.prepare import new_id
from palermo.client.status import JobStatus, State
from palermo.contract import clock
from palermo.core.text import safe
from palermo.core.times import Duration, due_at, in_seconds
from palermo.errors import (
    BrokerError,
    BrokerRefused,
    BrokerUnavailable,
    DuplicateJob,
    JobCancelled,
    JobFailed,
    JobTerminated,
    JobTimeout,
    PublishRefused,
    ResultTimeout,
)
from palermo.jobs.definition import JobDefinition
from palermo.jobs.job_registry import registry

log = logging.getLogger("palermo.outbox")

R_co = TypeVar("R_co", covariant=True)

#: Seconds for which a row is left to the process that stored it.
MIN_AGE = 10.0

#: Maximum number of rows per transaction that are enqueued right after the commit, so that requests don't take long.
#: Sweeps move the rest.
_AT_COMMIT = 100

#: Seconds during which commits don't try an unavailable broker again.
_PAUSE = 30.0

#: Seconds between checks of the row of an awaited job: the first and the maximum pause.
_LOOK_AFTER, _LOOK_EVERY = 0.05, 1.0

#: Exceptions that end the enqueuing job and must not be caught.
_ENDS = (JobTimeout, JobTerminated, JobCancelled)


class Enqueueable(Protocol):
    """A job, with or without options: `send`, `send.options(queue="slow")`."""

    @property
    def definition(self) -> JobDefinition:
        """The job's definition."""

    @property
    def enqueue(self) -> Any:
        """Enqueue one job with the job's own arguments."""


class OutboxRow(Struct, frozen=True, kw_only=True):
    """A job as a row of an outbox."""

    #: The job's id.
    id: str
    #: The job's name.
    job: str
    #: JSON object with `args` and `kwargs`.
    arguments: str
    #: The options of the enqueue, as JSON.
    options: str
    #: Unix seconds.
    created_at: float
    #: The row's number, which determines the order of moving; None before it is stored.
    number: int | None = None


class RowBatch(Protocol):
    """Some rows, oldest first, locked if the database supports that."""

    @property
    def rows(self) -> Sequence[OutboxRow]:
        """The rows."""

    def run(self, call: Callable[[], object]) -> None:
        """Call a function without blocking the event loop, if the rows are read in one."""

    def delete(self, numbers: Sequence[int]) -> None:
        """Delete these rows."""

    def refuse(self, number: int, error: str) -> None:
        """Record why this row can't be enqueued, and omit it from later batches."""


class RowSelection(Struct, frozen=True, kw_only=True):
    """The rows for a batch: the oldest ones without an error, up to `limit`."""

    limit: int
    #: Only rows created up to this time, in Unix seconds.
    until: float | None = None
    #: Only the rows of these jobs.
    ids: Sequence[str] | None = None
    #: Not the rows of jobs with these names.
    without: Collection[str] = ()


#: The errors of jobs that the broker refused, by job name.
_Refused = dict[str, BrokerError]

#: Locks rows, and commits deletions and refusals at the end of its block, even after an error.
OpenBatch = Callable[[RowSelection], AbstractContextManager[RowBatch]]


def make_row(job: Enqueueable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> OutboxRow:
    """Create a job's row. It is JSON, even if the job has another serializer.

    Raises ArgumentsInvalid, EncodeError.
    """
    definition, options = job.definition, dict(getattr(job, "given", {}))
    definition.bind(args, kwargs)
    args, kwargs = definition.written(args, kwargs)
    now = clock.now()
    # A delay counts from now, not from when the row is moved.
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
    """Enqueue the jobs of all rows of this age in batches, and delete the rows. Returns their number.

    Raises BrokerError, and exceptions that end the sweeping job; remaining rows wait for the next sweep.
    """
    chosen = client or default_client()
    selection = RowSelection(limit=limit, until=clock.now() - min_age)
    total, refused = 0, _Refused()
    while True:
        with open_batch(replace(selection, without=refused.keys())) as batch:
            total += _move(batch, chosen, refused)
        if len(batch.rows) < limit:
            break
    for refusal in refused.values():
        raise refusal
    return total


class CommitSweep:
    """Enqueues the jobs of an outbox right after the commit of their transaction."""

    def __init__(self) -> None:
        #: The client whose broker was unavailable, and until when commits don't try it.
        self._paused: tuple[Client | None, float] = None, 0.0

    def move(self, open_batch: OpenBatch, ids: Sequence[str]) -> None:
        """Enqueue the jobs of these rows, and delete the rows. Rows that remain wait for a sweep.

        The data is already committed, so only exceptions that end the storing job are raised. After a commit has found
        the broker unavailable, only one per half minute waits for it.
        """
        if not ids:
            return
        client = default_client()
        paused, until = self._paused
        if paused is client:
            if time.monotonic() < until:
                return
            self._paused = client, time.monotonic() + _PAUSE  # only this commit tries the broker again
        try:
            refused = _Refused()
            with open_batch(RowSelection(limit=_AT_COMMIT, ids=ids[:_AT_COMMIT])) as batch:
                _move(batch, client, refused)
            self._paused = None, 0.0
            for refusal in refused.values():
                raise refusal
        except _ENDS:
            raise
        except Exception as error:
            if isinstance(error, BrokerUnavailable):
                self._paused = client, time.monotonic() + _PAUSE
            log.warning("outbox rows wait for a sweep rows=%d error=%r", len(ids), str(error))


def waiting_since(oldest: float | None) -> float:
    """Return how long the oldest row has waited, in seconds, from its `created_at`."""
    return 0.0 if oldest is None else max(0.0, clock.now() - oldest)


def _move(batch: RowBatch, client: Client, refused: _Refused) -> int:
    """Move these rows, and return their number.

    Adds to `refused` the errors of queues that are full or in use, which must not block the jobs of other queues.
    """
    moved: list[int] = []
    try:
        for row in batch.rows:
            assert row.number is not None
            if row.job in refused:
                continue
            try:
                batch.run(partial(_enqueue, client, row))
                moved.append(row.number)
            except (PublishRefused, BrokerRefused) as error:
                refused[row.job] = error
            except (BrokerError, *_ENDS):
                raise
            except Exception as error:  # a user's hook may raise anything, and must not stop the others
                log.error("outbox row cannot be enqueued id=%s job=%s error=%r", row.id, row.job, str(error))
                # Escaped, because no database stores every character.
                batch.refuse(row.number, safe(f"{type(error).__name__}: {error}", lines=True))
    finally:
        # Even after an error, because a confirmed job must not be enqueued again.
        batch.delete(moved)
    return len(moved)


def _enqueue(client: Client, row: OutboxRow) -> None:
    definition = registry.find(row.job)
    json = client.serializers.get("json")
    call: Any = json.loads(row.arguments.encode(), definition.classes if definition is not None else {})
    options: Any = json.loads(row.options.encode(), {})
    with suppress(DuplicateJob):
        if client.enqueue_as(row.id, definition or row.job, call["args"], call["kwargs"], **options).enqueued:
            return
    log.info("outbox row not enqueued, another job has its key id=%s job=%s", row.id, row.job)


class FindRow(Protocol):
    """Finds a job's row. Returns its error ("" for none), or None if the row doesn't exist."""

    def __call__(self, id: str) -> str | None: ...

    async def in_loop(self, id: str) -> str | None:
        """Like a call, without blocking the event loop."""


@dataclass(frozen=True, slots=True)
class OutboxJob(Job[R_co]):
    """The handle of a job that is or was in an outbox. Waiting for the job includes its time in the outbox.

    Its status is "outbox" while the row exists. When pickled, it becomes a handle without the outbox.
    """

    _find_row: FindRow | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, row: OutboxRow, job: Enqueueable, find_row: FindRow) -> "OutboxJob[Any]":
        """Return the handle for a newly stored row."""
        client, definition = default_client(), job.definition
        given = getattr(job, "given", {})
        keeps = given.get("keep_result")
        return cls(
            row.id,
            given.get("queue") or definition.queue_in(client.settings),
            row.job,
            # Not True, because waiting for a job with a kept result doesn't check that the job exists.
            keep_result=None if (definition.keep_result if keeps is None else keeps) else False,
            _client=client,
            _find_row=find_row,
        )

    # Calls `Job.status(self)`, because super() doesn't work in a dataclass with slots.

    def status(self) -> JobStatus:
        """See Job."""
        return self._status(self._find(self.id)) or Job.status(self)

    def result(self, timeout: Duration | None = None) -> R_co:
        """See Job. Also raises JobFailed if the job can't be enqueued."""
        results.check_kept(self._owner(), self)
        found: R_co = Job.result(self, self._moved(timeout))
        return found

    def wait(self, timeout: Duration | None = None) -> JobStatus:
        """See Job. Raises JobFailed if the job can't be enqueued."""
        return Job.wait(self, self._moved(timeout))

    async def status_async(self) -> JobStatus:
        """See Job."""
        return self._status(await self._find.in_loop(self.id)) or await Job.status_async(self)

    async def result_async(self, timeout: Duration | None = None) -> R_co:
        """See Job. Also raises JobFailed if the job can't be enqueued."""
        results.check_kept(self._owner(), self)
        found: R_co = await Job.result_async(self, await self._moved_async(timeout))
        return found

    async def wait_async(self, timeout: Duration | None = None) -> JobStatus:
        """See Job. Raises JobFailed if the job can't be enqueued."""
        return await Job.wait_async(self, await self._moved_async(timeout))

    @property
    def _find(self) -> FindRow:
        assert self._find_row is not None
        return self._find_row

    def _status(self, error: str | None) -> JobStatus | None:
        if error is None:
            return None
        reason = f"it cannot be enqueued, and its row remains in the outbox: {error}" if error else ""
        return JobStatus(state=State.OUTBOX, id=self.id, job=self.job, queue=self.queue, reason=reason)

    def _moved(self, timeout: Duration | None) -> float | None:
        """Wait until the row is gone, and return the remaining seconds of the timeout."""
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
    """One call's wait for the row of a job to be moved."""

    def __init__(self, id: str, seconds: float | None) -> None:
        self.pause = _LOOK_AFTER
        self._id = id
        self._seconds = seconds
        self._end = None if seconds is None else time.monotonic() + seconds

    @property
    def left(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def goes_on(self, error: str | None) -> bool:
        """Whether the row still exists. Raises JobFailed if it has an error, and ResultTimeout."""
        if error is None:
            return False
        if error:
            name, _, message = error.partition(": ")
            text = f"job {self._id} cannot be enqueued, and its row remains in the outbox: {error}"
            raise JobFailed(text, state=State.OUTBOX.value, error=name, message=message)
        left = self.left
        if left == 0.0:
            raise ResultTimeout(
                f"job {self._id} is still in the outbox after {self._seconds:g} s. Check that the broker is available"
                " and that a worker serves the queue of the outbox's sweep job."
            )
        self.pause = min(2 * self.pause, _LOOK_EVERY, _LOOK_EVERY if left is None else left)
        return True


@dataclass(frozen=True, slots=True)
class JobAfterCommit(Job[R_co]):
    """The handle of a job that is enqueued after a commit. Before that, and after a rollback, its status is unknown.

    If another job holds its key at the commit, it becomes the handle of that job.
    """

    _call: partial[Job[R_co]] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, job: Enqueueable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "JobAfterCommit[Any]":
        """Return the handle for one call. Raises ArgumentsInvalid."""
        definition, given = job.definition, getattr(job, "given", {})
        definition.bind(args, kwargs)
        client = default_client()
        id = given.get("id") or new_id()
        # A handle by id doesn't claim that the job exists.
        return cls(
            id,
            given.get("queue") or definition.queue_in(client.settings),
            definition.name,
            _client=client,
            _call=partial(client.enqueue_as, id, definition, args, kwargs, **given),
        )

    def enqueue(self) -> None:
        """Enqueue the job. Raises the same errors as `Client.enqueue`."""
        assert self._call is not None
        made = self._call()
        for each in fields(made):
            object.__setattr__(self, each.name, getattr(made, each.name))
