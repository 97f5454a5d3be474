"""The ledger: everything that one part of the leader passes on to the next leader, as records in one durable queue.

Promise: after `commit` returns, every later leader knows its states. Each of its jobs is in its queue, in `failed` if
it can never be published, or waits here to be retried. This survives the death of any process, and of the broker.

* The leader appends a batch of states (ledger_records.py), and publishes its jobs after it; each is confirmed
  separately (handover.py). A later batch records that the jobs are stored.
* kill -9 of the leader, or a lost session: the next leader reads all records (state_log.py). It publishes again the
  jobs that no record reports as stored, and that it finds neither in their queues nor with a worker.
* A job that its queue refuses is retried until the queue accepts it, or its owner removes it.
* A record of a newer format: this leader hands over (NewerFormat).
* The queue is deleted: the leader's session ends, and the contents of the queue are lost.

Cost: two confirmed publishes for a commit with jobs, and one without. When the records are many or ten minutes old, a
snapshot replaces them, concurrently with commits.
"""

import asyncio
import json
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from palermo.brokers.features.portions import portions
from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.brokers.rabbitmq.amqp.messages import PERSISTENT_JSON
from palermo.brokers.rabbitmq.amqp.publisher import PublishFuture
from palermo.brokers.rabbitmq.amqp.state_log import Record, StateLog
from palermo.brokers.rabbitmq.publishing.handover import Refusals, find_published, outcomes
from palermo.brokers.rabbitmq.publishing.ledger_records import (
    FORMAT,
    Batch,
    LedgerState,
    NewerFormat,
    newer_format,
    parts,
)
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.contract.stored_records import UNREADABLE
from palermo.core.message import PUBLISHED_AGAIN, Message
from palermo.core.plain import message_to_plain
from palermo.core.topology import CLASSIC
from palermo.errors import BrokerUnavailable, HeadersTooLarge, PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Number of records after which the leader writes a snapshot; in a classic queue one more per state, up to _MOST.
_MANY, _MOST = 2_000, 30_000

#: Maximum bytes of job bodies in one record of a batch. A record may always have one job.
_JOBS_BYTES = 1_048_576


class State(Protocol):
    """A state that a ledger stores under a name."""

    def to_plain(self) -> Any: ...


T = TypeVar("T", bound=State)

#: Another session's record, such as the end of a run, with the argument for `settle` or `keep`.
Report = tuple[Mapping[str, Any], Record]


class Table(Struct, Generic[T], frozen=True):
    """The description of a ledger, by its owner."""

    exchange: str
    #: The AMQP name of its queue, and the arguments for declaring it.
    queue: str
    arguments: Mapping[str, Any]
    #: Decodes a state.
    read: Callable[[Any], T]
    #: Whether workers drop a second copy of a job at its start. If not, no job is published before its batch is stored,
    #: and a job is not published again if a worker remembers its end.
    drops_copies: bool


class _Reading(Struct, Generic[T]):
    """The data read while a ledger is opened."""

    state: LedgerState[T]
    reports: list[Report] = []
    newer: NewerFormat | None = None


class Ledger(Generic[T]):
    """One ledger, on the leader's side. Its owner holds the states."""

    def __init__(
        self,
        table: Table[T],
        connection: Connection,
        outbox: Outbox,
        *,
        beside: Channel | None = None,
        on_report: Callable[[Report], None] | None = None,
    ) -> None:
        """`beside` is the channel for `note`. `on_report` gets the reports that arrive while the ledger is open.

        Without `on_report`, other sessions must not write reports.
        """
        self._table = table
        self._connection = connection
        self._outbox = outbox
        self._beside = beside
        self._on_report = on_report
        self._by = uuid.uuid4().hex
        self._log = StateLog(table.queue, connection, outbox.open, prepare=self._prepare, on_record=self._on_record)
        self._classic = False
        #: None once the ledger is open.
        self._reading: _Reading[T] | None = self._read_nothing()
        #: The number of the last batch.
        self.number = 0
        #: Held while a batch and its jobs are being stored.
        self._turn = asyncio.Lock()
        self._refused = RefusedJobs(connection, self._store, f"jobs of the ledger {table.queue!r}")
        #: Ids of the jobs that no later record reports as stored.
        self.unsure: set[str] = set()
        #: States that this version can't read, as JSON values, kept for another leader.
        self._unread: dict[str, Any] = {}
        #: Records, oldest first: those that the next snapshot replaces, and those that the next commit replaces.
        self._folded: list[Record] = []
        self._done: list[Record] = []
        self._recording: asyncio.Task[None] | None = None
        self._snapshot: asyncio.Task[None] | None = None

    def _read_nothing(self) -> _Reading[T]:
        return _Reading(LedgerState(self._table.read, self._skip))

    @property
    def is_open(self) -> bool:
        """Whether the leader has read the whole ledger."""
        return self._log.is_open and self._reading is None

    @property
    def is_swift(self) -> bool:
        """Whether `note` keeps its promise. Not if a single node may lose the queue's unconfirmed messages."""
        return self._classic and self.is_open and self._beside is not None and self._beside.is_open

    @property
    def refused(self) -> Mapping[str, Message]:
        """The jobs, by id, that wait until their queues accept them."""
        return self._refused.jobs

    def give_up(self, ids: Iterable[str]) -> None:
        """Stop publishing these refused jobs. The next commit records that."""
        for id in ids:
            self._refused.jobs.pop(id, None)

    async def exists(self) -> bool:
        """Whether the queue exists. If not, the ledger was never needed."""
        return await (await self._outbox.open()).finds(self._table.queue)

    async def open(self) -> tuple[dict[str, T], list[Report]]:
        """Read the whole ledger, and republish jobs that are possibly not stored. Returns the states and the reports.

        The caller must handle the reports before it decides anything else. Raises NewerFormat.
        """
        await self._log.open()
        # Wait for everything that this leader wrote before it lost the ledger, confirmed or not.
        if self._beside is not None:
            await self._log.await_mark(self._beside)
        await self._log.await_mark()
        read = self._reading or self._read_nothing()
        if read.newer is not None:
            raise read.newer
        self._reading = None
        self.number, self._unread, jobs = read.state.number, read.state.unread(), read.state.unstored_jobs()
        self.give_up(list(self.refused))
        queues, table = {id: job.queue for id, job in jobs.items()}, self._table
        there = await find_published(
            self._connection, table.exchange, queues, self._outbox.declarer.ensure, ended=not table.drops_copies
        )
        again = (
            replace(job, extra={**job.extra, PUBLISHED_AGAIN: True}) for id, job in jobs.items() if id not in there
        )
        await self._publish(list(again))
        self.unsure = set(jobs)
        if jobs:
            await self._record_stored()
        return read.state.states(), read.reports

    async def _prepare(self) -> None:
        queue, arguments = self._table.queue, self._table.arguments
        if self.number and not (await self._connection.probe(queue)).exists:
            self._connection.give_up(f"queue {queue}")
            raise BrokerUnavailable(f"the queue {queue!r} was deleted.")
        ours = await self._connection.declare(queue, arguments) is None
        await self._connection.persist_queues()
        self._classic = ours and arguments.get("x-queue-type") == CLASSIC
        self._reading, self._folded, self._done = self._read_nothing(), [], []

    def drop_states(self) -> None:
        """Drop all states, so that the ledger must be read again."""
        if self._snapshot is not None:
            self._snapshot.cancel()
        self._refused.stop()
        self._log.close()

    def settle(self, record: Record) -> None:
        """Acknowledge a report with the next commit, because a batch now has its information."""
        self._done.append(record)

    def keep(self, record: Record) -> None:
        """Keep a report until the next snapshot, because no batch has its information."""
        self._folded.append(record)

    def note(self, name: str, state: T) -> None:
        """Write a state without waiting for a confirm; only if this ledger `is_swift`.

        A message published afterwards on the channel `beside` arrives later than the state. So if a session gets that
        message, the next leader knows the state, unless the broker is killed before it has written the state to disk.
        """
        assert self._beside is not None
        self.number += 1
        batch = self._batch(self.number, set={name: state.to_plain()}).to_plain()
        self._beside.publish("", self._table.queue, PERSISTENT_JSON, json.dumps(batch, separators=(",", ":")).encode())

    def _batch(self, number: int, **fields: Any) -> Batch:
        return Batch(format=FORMAT, n=number, by=self._by, **fields)

    def _records(
        self, states: Mapping[str, T | None], jobs: Sequence[Message], *, floor: int = 0
    ) -> list[dict[str, Any]]:
        """The records of the next batch: as many as its jobs need. The first one reports earlier jobs as stored."""
        self.number += 1
        plain = {name: None if state is None else state.to_plain() for name, state in states.items()}
        split = portions(jobs, most_size=_JOBS_BYTES, size=lambda job: len(job.body))
        first, *others = [[message_to_plain(job) for job in some] for some in split] or [[]]
        begin = self._batch(self.number, set=plain, jobs=first, refused=list(self.refused), floor=floor)
        return [begin.to_plain(), *(self._batch(self.number, jobs=some).to_plain() for some in others)]

    async def commit(self, states: Mapping[str, T | None], jobs: Sequence[Message] = ()) -> dict[str, PalermoError]:
        """Store states (None removes one) and jobs, either all of them or none.

        Returns the errors of refused jobs by id; these are retried. After an exception it is unknown whether anything
        was stored, and all states are dropped.
        """
        async with self._turn:
            if not self.is_open:
                raise BrokerUnavailable(f"the queue {self._table.queue!r} is not open.")
            try:
                records, done, self._done = self._records(states, jobs), self._done, []
                storing = asyncio.ensure_future(self._log.replace(done, *records))
                try:
                    if self._table.drops_copies:  # the jobs are sent after the batch, with one wait for both
                        await asyncio.sleep(0)
                    else:
                        await asyncio.wait({storing})
                    # Jobs must not be published without their batch, which is lost if the log was closed.
                    refused = {} if storing.done() and storing.exception() else await self._publish(jobs)
                finally:
                    stored = await storing
                self._folded += stored
            except BaseException:
                self.drop_states()
                raise
            for name in states:
                self._unread.pop(name, None)
            self.unsure = {*(job.id for job in jobs), *self.refused}
            if jobs:
                await self._record_stored()
            return refused

    async def _publish(self, jobs: Sequence[Message]) -> dict[str, PalermoError]:
        """Publish jobs to their places. Returns the errors of refused jobs by id; these are retried."""
        # Posted directly if their queues exist, because a task per job would cost more than everything else.
        posted = [
            (job, ended if self._outbox.try_publish(job, ended) else None) for job in jobs if (ended := PublishFuture())
        ]
        errors = iter(await outcomes(self._connection, [ended.future for _, ended in posted if ended is not None]))
        left = [job for job, ended in posted if ended is None or next(errors) is not None]
        again = await outcomes(self._connection, [self._outbox.publish(job, job.queue) for job in left])
        refused = {job.id: error for job, error in zip(left, again, strict=True) if error is not None}
        self._refused.add([job for job in left if job.id in refused], refused)
        return refused

    async def _store(self, job: Message) -> None:
        """Store a job in its queue, or in `failed` if it can never be published."""
        try:
            await self._outbox.publish(job, job.queue)
        except HeadersTooLarge as error:
            await self._outbox.destinations.fail(job, error)

    async def _record_stored(self) -> None:
        """Record that the jobs of all batches are stored, except the refused ones. Doesn't wait for a confirm."""
        self._recording = asyncio.ensure_future(self._write_stored(self._records({}, ())))
        # Write it to the socket before a caller gets the result for these jobs, and may end this process.
        await asyncio.sleep(0)
        self._connection.raw.flush()

    async def _write_stored(self, records: Sequence[dict[str, Any]]) -> None:
        unsure, refused = self.unsure, set(self.refused)
        with suppress(PalermoError):  # then the next batch records it
            stored = await self._log.append(*records)
            self._folded += stored
            if self.unsure is unsure:
                self.unsure = refused

    async def reach(self) -> None:
        """Wait until all records that are in the queue now have been read."""
        await self._log.await_mark()

    async def tidy(self, states: Mapping[str, T]) -> None:
        """Start a snapshot if the records are many or old, and record which jobs are stored.

        Call it every few seconds between commits, with all states.
        """
        if not self.is_open:
            return
        if self._snapshot is None or self._snapshot.done():
            before = [*self._folded, *self._done]
            most = min(_MANY + (len(states) if self._classic else 0), _MOST)
            if len(before) >= most or any(one.is_old for one in (*self._folded[:1], *self._done[:1])):
                self.number += 1
                self._snapshot = asyncio.ensure_future(self._write_snapshot(self.number, dict(states), before))
                self._snapshot.add_done_callback(self._on_snapshot)
        if self.unsure != self.refused.keys() and (self._recording is None or self._recording.done()):
            await self.commit({})

    async def _write_snapshot(self, number: int, states: Mapping[str, T], before: Sequence[Record]) -> None:
        """Write all states again and acknowledge the earlier records. Commits continue, with higher numbers."""
        plain = chain(self._unread.items(), ((name, state.to_plain()) for name, state in states.items()))
        for part in parts(plain):
            stored = await self._log.append(self._batch(number, set=part).to_plain())
            self._folded += stored
        async with self._turn:
            records = self._records({}, list(self.refused.values()), floor=number)
            stored = await self._log.replace(before, *records)
            self._folded = [one for one in (*self._folded, *stored) if one.is_held]
            self._done = [one for one in self._done if one.is_held]

    def _on_snapshot(self, ended: "asyncio.Task[None]") -> None:
        if not ended.cancelled() and (error := ended.exception()) is not None:
            log.warning("cannot write a snapshot, retrying queue=%s error=%r", self._table.queue, str(error))

    # -- reading

    def _on_record(self, held: Record, record: Any) -> None:
        if not isinstance(record, dict) or not record.keys() & {"n", "end"}:
            if not isinstance(record, dict) or "mark" not in record:  # written by an earlier leader
                self._skip(record, "not a record of this ledger")
            # RabbitMQ closes the channel of a message that is held for half an hour.
            self._log.forget(held)
        elif (newer := newer_format(record)) is not None:
            if self._reading is None:
                self.drop_states()
            else:
                self._reading.newer = newer
        elif "n" in record:
            self._folded.append(held)
            self._on_batch(record)
        elif self._reading is not None:
            self._reading.reports.append((record, held))
        elif self._on_report is not None:
            self._on_report((record, held))

    def _on_batch(self, record: Mapping[str, Any]) -> None:
        try:
            batch = Batch.from_plain(record)
        except UNREADABLE as error:
            self._skip(record, error)
            return
        if self._reading is not None:
            self._reading.state.take(batch)
        elif batch.by != self._by:
            log.warning("an earlier leader wrote to the queue, reading it again queue=%s", self._table.queue)
            self.drop_states()

    def _skip(self, record: object, error: object) -> None:
        self._connection.unreadable.skip(self._table.queue, record, error)


class RefusedJobs:
    """Jobs that their queues refused. They are retried until the queues accept them, or their owner removes them."""

    def __init__(self, connection: Connection, store: Callable[[Message], Awaitable[None]], what: str) -> None:
        """`what` describes the refused messages in the log."""
        self.jobs: dict[str, Message] = {}
        self._connection = connection
        self._store = store
        self._refusals = Refusals(what)
        self._task: asyncio.Task[None] | None = None

    def add(self, jobs: Sequence[Message], errors: Mapping[str, PalermoError]) -> None:
        """Retry these jobs, which were refused with these errors."""
        self.jobs |= {job.id: job for job in jobs}
        if jobs and (self._task is None or self._task.done()):
            self._task = asyncio.ensure_future(self._try_again(errors[jobs[0].id]))

    def stop(self) -> None:
        """Stop retrying until other jobs are added."""
        if self._task is not None:
            self._task.cancel()

    async def _try_again(self, error: PalermoError) -> None:
        """Publish one job of each queue, and more if the queue accepts it."""
        with suppress(PalermoError):  # the session is lost
            while self.jobs:
                await asyncio.sleep(self._refusals.refused(error))
                for queue in {job.queue for job in self.jobs.values()}:
                    most = 1
                    while batch := [job for job in self.jobs.values() if job.queue == queue][:most]:
                        errors = await outcomes(self._connection, map(self._store, batch))
                        for job, found in zip(batch, errors, strict=True):
                            if found is None:
                                self.jobs.pop(job.id, None)
                        if failed := [found for found in errors if found is not None]:
                            error = failed[0]
                            break
                        self._refusals.taken()
                        most *= 2
