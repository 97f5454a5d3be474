"""The key log: the leader reads the durable queue `~unique`, adds to it, and replaces its records by a snapshot.

A record is a batch of key states, or the end of a run (key_records.py). The leader holds all records (state_log.py). It
appends a batch of key states, and publishes behind it the jobs that the batch lets into their queues; each is confirmed
for itself (handover.py). A record behind them says that they are stored. The next leader publishes again the jobs of
which no record says so, and which it finds neither in their queues nor with a worker: if such a job was stored after
all, the second one is a copy, and is dropped at its start. A job that its queue refuses is tried again until the queue
takes it, or its key is taken from it.
"""

import asyncio
import json
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any

from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.brokers.rabbitmq.amqp.messages import PERSISTENT_JSON
from palermo.brokers.rabbitmq.amqp.publisher import PublishFuture
from palermo.brokers.rabbitmq.amqp.state_log import Record, StateLog
from palermo.brokers.rabbitmq.publishing.handover import RefusedJobs, outcomes, traces
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.brokers.rabbitmq.unique.key_records import Batch, LogState, RunEnd, parts
from palermo.contract.stored_records import UNREADABLE
from palermo.core.message import Message
from palermo.core.topology import CLASSIC, internal
from palermo.core.unique_keys import Key, lock_of, message_to_plain
from palermo.errors import BrokerUnavailable, PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Records after which the leader writes all keys anew. A classic queue may have one record more for each key, up to
#: _MOST records.
_MANY, _MOST = 2_000, 30_000

#: Bytes of job bodies in one message of a batch; a message may always have one job.
_JOBS_BYTES = 1_048_576


def key_log_queue(exchange: str) -> str:
    """The AMQP name of the log's queue."""
    return internal(exchange, "unique")


class KeyLog:
    """The key log, as the leader keeps it; see the module's first lines."""

    def __init__(
        self,
        exchange: str,
        connection: Connection,
        outbox: Outbox,
        arguments: Mapping[str, Any],
        ended: Callable[[RunEnd, Record], None],
        beside: Channel,
    ) -> None:
        """`arguments` are those that the queue is declared with; `beside` is a channel that is not for transactions.

        `ended` is called with the end of a run, as a worker wrote it, and with what to give to `settle` or `keep`.
        """
        self._exchange = exchange
        self._queue = key_log_queue(exchange)
        self._connection = connection
        self._outbox = outbox
        self._arguments = dict(arguments)
        self._ended = ended
        self._beside = beside
        self._by = uuid.uuid4().hex
        self._log = StateLog(self._queue, connection, outbox.open, prepare=self._prepare, on_record=self._on_record)
        self._classic = False
        #: What has been read while the log is opened; else None.
        self._read: LogState | None = LogState(self._skip)
        #: The number of the last batch, and of the last one with jobs that are all stored or refused.
        self.number = self._stored = 0
        #: What the log says of the jobs that are stored: a number, and the refused jobs.
        self._recorded: tuple[int, Set[str]] = 0, set()
        #: The jobs that have their keys and wait for room in their queues.
        self.refused = RefusedJobs(connection, outbox.publish, "jobs that waited for their keys")
        #: The ids of the jobs of which no later record says that they are stored.
        self.unsure: set[str] = set()
        #: The records whose content is in the keys; and those that the next commit replaces. Oldest first.
        self._folded: list[Record] = []
        self._done: list[Record] = []
        self._recording: asyncio.Task[None] | None = None
        #: Writes all keys anew; its result is the new records and those that they replace.
        self._rewriting: asyncio.Task[tuple[list[Record], list[Record]]] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the leader knows all that is in the log."""
        return self._log.is_open and self._read is None

    @property
    def is_swift(self) -> bool:
        """Whether `note` keeps its promise: not if the queue may lose unconfirmed messages together with one node."""
        return self._classic and self.is_open and self._beside.is_open

    async def exists(self) -> bool:
        """Whether the log's queue exists: whether anybody has ever needed a key."""
        return await (await self._outbox.open()).finds(self._queue)

    async def open(self) -> tuple[list[Key], list[tuple[RunEnd, Record]]]:
        """Read the whole log, and publish again the jobs that may not be stored. Returns the keys and the ends of runs.

        The caller applies these ends to the keys before it decides anything else, each as `ended` would get it.
        """
        await self._log.open()
        # All that this leader wrote before it lost the log, confirmed or not.
        await self._log.await_mark(self._beside)
        await self._log.await_mark()
        read, self._read = self._read or LogState(self._skip), None
        keys, jobs, self.number = read.held_keys(), self.refused.jobs | read.unstored_jobs(), read.number or self.number
        self.refused.jobs.clear()
        queues = {id: job.queue for id, job in jobs.items() if not job.tenant}
        there = await traces(self._connection, self._exchange, queues, self._outbox.kind, ended=False)
        await self._publish([job for id, job in jobs.items() if id not in there])
        self.unsure = set(jobs)
        self._stored = self.number
        if jobs:
            await self._record_stored()
        return keys, read.ends

    async def _prepare(self) -> None:
        if self.number and not (await self._connection.probe(self._queue)).exists:
            log.warning("the queue of keys was deleted, and all keys are free queue=%s", self._queue)
        ours = await self._connection.declare(self._queue, self._arguments) is None
        await self._connection.persist_queues()
        self._classic = ours and self._arguments.get("x-queue-type") == CLASSIC
        self._read, self._folded, self._done = LogState(self._skip), [], []
        self._end_rewriting()

    def let_go(self) -> None:
        """Forget all that is known: the log has to be read again."""
        self._end_rewriting()
        self.refused.stop()
        self._log.close()

    def settle(self, held: Record) -> None:
        """Acknowledge a worker's record with the next commit: a stored batch has what it says."""
        self._done.append(held)

    def keep(self, held: Record) -> None:
        """Keep a worker's record in the log until all keys are written anew: no batch has what it says."""
        self._folded.append(held)

    def note(self, key: Key) -> None:
        """Write a key's state without waiting for a confirm; only where this log `is_swift`.

        RabbitMQ passes on what is published on the channel `beside` in order. So the next leader knows this state by
        the time that anybody gets a later message, unless the broker is killed too before it has written to the disk.
        """
        self.number += 1
        batch = Batch(n=self.number, by=self._by, keys={key.name: key.to_plain()}, jobs=[]).to_plain()
        self._beside.publish("", self._queue, PERSISTENT_JSON, json.dumps(batch, separators=(",", ":")).encode())

    def _batch(self, keys: Mapping[str, Any], jobs: Iterable[Message] = ()) -> list[dict[str, Any]]:
        """The records of the next batch: as many as its jobs need. The first one says which jobs are stored."""
        self.number += 1
        first = Batch(
            n=self.number, by=self._by, keys=dict(keys), jobs=[], stored=(self._stored, list(self.refused.jobs))
        )
        records, size = [first], 0
        for job in jobs:
            if size and size + len(job.body) > _JOBS_BYTES:
                records.append(Batch(n=self.number, by=self._by, keys={}, jobs=[]))
                size = 0
            records[-1].jobs.append(message_to_plain(job))
            size += len(job.body)
        return [record.to_plain() for record in records]

    async def commit(self, changes: Mapping[str, Key], jobs: Sequence[Message]) -> dict[str, PalermoError]:
        """Store a batch, and its jobs where they belong. Returns why each refused job is not stored, by id.

        After an exception nothing is known: `let_go` was called.
        """
        if not self.is_open:
            raise BrokerUnavailable("the log of keys is not open.")
        self._give_up(changes)
        try:
            keys = {name: None if key.is_free else key.to_plain() for name, key in changes.items()}
            records = self._batch(keys, jobs)
            number, said, done, self._done = self.number, self._said(), self._done, []
            # The jobs are sent behind the batch, without waiting for its confirm first: one wait for both.
            storing = asyncio.ensure_future(self._log.replace(done, *records))
            try:
                await asyncio.sleep(0)
                # The log may have been closed before the batch was sent: then no job may be published without it.
                refused = {} if storing.done() else await self._publish(jobs)
            finally:
                stored = await storing
            self._folded += stored
        except BaseException:
            self.let_go()
            raise
        self._recorded, self._stored = said, number if jobs else self._stored
        self.unsure = {*(job.id for job in jobs), *self.refused.jobs}
        if jobs:
            await self._record_stored()
        return refused

    def _said(self) -> tuple[int, Set[str]]:
        """What a record says now of the jobs that are stored."""
        return self._stored, set(self.refused.jobs)

    async def _publish(self, jobs: Sequence[Message]) -> dict[str, PalermoError]:
        """Publish jobs where they belong. Returns why each refused job, which is tried again, is not stored, by id."""
        # Posted at once where no queue has to be made first: a task for each job costs more than all else.
        posted = [
            (job, told if self._outbox.try_publish(job, told) else None) for job in jobs if (told := PublishFuture())
        ]
        errors = iter(await outcomes(self._connection, [told.future for _, told in posted if told is not None]))
        left = [job for job, told in posted if told is None or next(errors) is not None]
        again = await outcomes(self._connection, [self._outbox.publish(job, job.queue) for job in left])
        refused = {job.id: error for job, error in zip(left, again, strict=True) if error is not None}
        self.refused.add([job for job in jobs if job.id in refused], refused)
        return refused

    def _give_up(self, changes: Mapping[str, Key]) -> None:
        """Do not try to publish refused jobs any more that lose their keys by these changes."""
        for id, job in list(self.refused.jobs.items()):
            lock = lock_of(job)
            key = None if lock is None else changes.get(lock.key)
            if key is not None and (key.holder is None or key.holder.id != id):
                del self.refused.jobs[id]

    async def _record_stored(self) -> None:
        """Write that the jobs of the last batch are stored, except the refused ones; wait for no confirm."""
        self._recording = asyncio.ensure_future(self._write_stored())
        # Written to the socket before a caller is told of these jobs, and may end this process.
        await asyncio.sleep(0)
        self._connection.raw.flush()

    async def _write_stored(self) -> None:
        said = self._said()
        with suppress(PalermoError):  # then the next batch says it
            stored = await self._log.append(*self._batch({}))
            self._folded += stored
            if said[0] == self._stored:
                self._recorded, self.unsure = said, set(said[1])

    async def reach(self) -> None:
        """Wait until all records that are in the queue now have been read."""
        await self._log.await_mark()

    async def tidy(self, keys: Mapping[str, Key]) -> None:
        """Have all keys written anew if the log is long or old, and say which jobs are stored.

        Called every few seconds, between commits. Commits go on while the keys are written: their numbers are higher.
        """
        if not self.is_open:
            return
        if self._rewriting is None:
            before = [*self._folded, *self._done]
            most = min(_MANY + (len(keys) if self._classic else 0), _MOST)
            if len(before) >= most or any(held.is_old for held in (*self._folded[:1], *self._done[:1])):
                self.number += 1
                self._rewriting = asyncio.ensure_future(self._write_snapshot(self.number, list(keys.values()), before))
                self._rewriting.add_done_callback(lambda done: done.cancelled() or done.exception())
        elif self._rewriting.done():
            try:
                await self._replace(*self._rewriting.result())
            except BaseException:
                self.let_go()
                raise
            self._rewriting = None
            return
        if self._recorded != self._said():
            await self.commit({}, ())

    async def _write_snapshot(
        self, number: int, keys: Sequence[Key], before: list[Record]
    ) -> tuple[list[Record], list[Record]]:
        """Write these keys as batch `number`. Returns its records, and those `before`, which they replace."""
        found, snapshot = list[dict[str, Any]](), list[Record]()
        for part in parts(keys):
            found.append(part)
            await asyncio.sleep(0)
        for place, part in enumerate(found):
            batch = Batch(n=number, by=self._by, keys=part, jobs=[], all=(place, len(found)))
            snapshot += await self._log.append(batch.to_plain())
        return snapshot, before

    async def _replace(self, snapshot: list[Record], before: list[Record]) -> None:
        refused, said = list(self.refused.jobs.values()), self._said()
        snapshot += await self._log.replace(before, *self._batch({}, refused))
        self._folded = [*snapshot, *(held for held in self._folded if held.is_held)]
        self._done = [held for held in self._done if held.is_held]
        self._recorded, self._stored = said, self.number if refused else self._stored
        self.unsure = {job.id for job in refused}

    def _end_rewriting(self) -> None:
        if self._rewriting is not None:
            self._rewriting.cancel()
            self._rewriting = None

    def _skip(self, record: object, error: object) -> None:
        self._connection.unreadable.skip(self._queue, record, error)

    def _on_record(self, held: Record, record: Any) -> None:
        match record:
            case {"n": _}:
                self._folded.append(held)
                self._on_batch(record)
            case {"end": dict() as plain}:
                self._on_end(plain, held)
            case {"mark": _}:
                self._log.forget(held)  # written by a previous leader
            case _:
                self._skip(record, "not a record of keys")
                # RabbitMQ closes the channel of a message that is held for half an hour.
                self._log.forget(held)

    def _on_batch(self, record: Mapping[str, Any]) -> None:
        try:
            batch = Batch.from_plain(record)
        except UNREADABLE as error:
            self._skip(record, error)
            return
        if self._read is not None:
            self._read.take(batch)
        elif batch.by != self._by:
            log.warning("an earlier leader has written to the log of keys since this one read it, reading it again")
            self.let_go()

    def _on_end(self, plain: Mapping[str, Any], held: Record) -> None:
        try:
            end = RunEnd.from_plain(plain)
        except UNREADABLE as error:
            self._skip(plain, error)
            self.keep(held)
            return
        if self._read is None:
            self._ended(end, held)
        else:
            self._read.ends.append((end, held))
