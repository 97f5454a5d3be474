"""The key log, and its records: the leader reads the durable queue `~unique`, adds to it, and rewrites it.

A record is a batch of key states, or the end of a run. The leader holds all records (state_log.py). It appends a batch
of key states, and publishes behind it the jobs that the batch lets into their queues; each is confirmed for itself
(handover.py). A record behind them says that they are stored. The next leader publishes again the jobs of which no
record says so, and which it finds neither in their queues nor with a worker: if such a job was stored after all, the
second one is a copy, and is dropped at its start. A job that its queue refuses is owed: the leader tries it again until
the queue takes it, or its key is taken from it.
"""

import asyncio
import json
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any

from msgspec import Struct, convert

from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.brokers.rabbitmq.amqp.messages import PERSISTENT_JSON
from palermo.brokers.rabbitmq.amqp.publisher import PublishFuture
from palermo.brokers.rabbitmq.amqp.state_log import Record, StateLog
from palermo.brokers.rabbitmq.publishing.handover import Refusals, outcomes, traces
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.brokers.rabbitmq.unique.batching import CODED_AT_ONCE, in_turns
from palermo.contract.stored_records import UNREADABLE
from palermo.core.message import Message
from palermo.core.topology import CLASSIC, internal
from palermo.core.unique_keys import Key, lock_of, message_from_plain, message_to_plain
from palermo.core.unique_rules import RunOutcome
from palermo.errors import BrokerUnavailable, PalermoError

#: The bytes of bodies in one message beyond which no key is added when all keys are written anew.
_PART_BYTES = 1_048_576


class RunEnd(Struct, frozen=True, kw_only=True):
    """The end of a run, as a worker writes it before it acknowledges the job."""

    key: str
    id: str
    how: RunOutcome
    #: The serial and starts that the answer to its start gave; None if the job needed no such answer.
    serial: int | None = None
    starts: int | None = None
    #: When the job runs again, and when this was written, in Unix seconds.
    run_at: float | None = None
    at: float | None = None

    def to_plain(self) -> dict[str, Any]:
        """The end as values that JSON has."""
        plain = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in plain.items() if value is not None}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "RunEnd":
        """The end that to_plain wrote. Raises ValueError for anything else."""
        return convert(plain, cls)


class LogContent:
    """What the batches of a log say together. They are taken in one after another, in any order.

    Each key is decoded at once, and forgotten with the next batch that has it; a job as soon as a batch says that it is
    stored. The texts of a log of 50,000 keys, jobs included, measure 100 MB.
    """

    def __init__(self, skip: Callable[[object, object], None] = lambda record, error: None) -> None:
        """`skip` is called with each key and each job that cannot be read, and with the reason."""
        self._skip = skip
        #: The number of the last batch, and of the last one whose jobs are stored or owed.
        self.number = self.sure = 0
        #: The last batch that names the owed jobs: its number, the batch up to which all other jobs are stored, and the
        #: ids of the owed ones.
        self._owed_in, self._owed_until, self._owed = 0, 0, frozenset[str]()
        #: The jobs that may not be stored, as JSON values, each with the number of its batch.
        self._jobs: list[tuple[int, Any]] = []
        #: The keys as the batches leave them, None for a free one, and the number of the last batch that has each.
        self._keys: dict[str, Key | None] = {}
        self._numbers: dict[str, int] = {}
        #: The keys that were written anew, by the number of the batch, without those that a later batch has; and how
        #: many of its parts have not come yet.
        self._anew: dict[int, dict[str, Key]] = {}
        self._missing: dict[int, int] = {}

    def take(self, batch: Mapping[str, Any]) -> None:
        """Take in one batch."""
        number = int(batch["n"])
        self.number, self.sure = max(self.number, number), max(self.sure, int(batch["sure"]))
        if "owed" in batch and number > self._owed_in:
            self._owed_in, self._owed_until = number, int(batch["sure"])
            self._owed = frozenset(map(str, batch["owed"]))
            self._jobs = [job for job in self._jobs if self._may_be_out(*job)]
        self._jobs += [(number, job) for job in batch["jobs"] if self._may_be_out(number, job)]
        if "all" in batch:
            self._missing[number] = self._missing.get(number, batch["all"][1]) - 1
            part = self._anew.setdefault(number, {})
            for name, plain in batch["keys"].items():
                if self._numbers.get(name, 0) < number and (key := self._read(plain)) is not None:
                    part[name] = key
            return
        for name, plain in batch["keys"].items():
            if number >= self._numbers.get(name, 0):
                self._numbers[name] = number
                self._keys[name] = None if plain is None else self._read(plain)
                for before, part in self._anew.items():
                    if before <= number:
                        part.pop(name, None)

    def _may_be_out(self, number: int, plain: Any) -> bool:
        return number > self._owed_until or (isinstance(plain, dict) and str(plain.get("id")) in self._owed)

    def _read(self, plain: Mapping[str, Any]) -> Key | None:
        try:
            return Key.from_plain(plain)
        except UNREADABLE as error:
            self._skip(plain, error)
            return None

    def _read_job(self, plain: Mapping[str, Any]) -> Message | None:
        try:
            return message_from_plain(plain)
        except UNREADABLE as error:
            self._skip(plain, error)
            return None

    def jobs(self) -> dict[str, Message]:
        """The jobs that may not be stored, by id."""
        found = dict[str, Message]()
        for number, plain in self._jobs:
            if (job := self._read_job(plain)) is not None and (number > self.sure or job.id in self._owed):
                found[job.id] = job
        return found

    async def keys(self) -> list[Key]:
        """The keys that are not free."""
        last = max((number for number, missing in self._missing.items() if missing <= 0), default=0)
        found = list(self._anew.get(last, {}).values())
        async for names in in_turns(list(self._keys)):
            found += [key for name in names if self._numbers[name] >= last and (key := self._keys[name]) is not None]
        return found


async def parts(keys: Sequence[Key]) -> list[list[Key]]:
    """All keys that are not free, divided among as many messages as they need; at least one message."""
    found, size = [list[Key]()], 0
    async for some in in_turns(keys):
        for key in some:
            if key.is_free:
                continue
            if len(found[-1]) >= CODED_AT_ONCE or size > _PART_BYTES:
                found.append([])
                size = 0
            found[-1].append(key)
            size += sum(len(kept.message.body) for kept in (key.next, key.holder and key.holder.content) if kept)
    return found


def _is_batch(record: Any) -> bool:
    """Whether a record is a batch of key states, as far as its outer form tells."""
    match record:
        case {"n": int(), "by": str(), "sure": int(), "keys": dict(), "jobs": list()}:
            match record.get("all", [0, 1]), record.get("owed", []):
                case [int(), int()], list():
                    return True
    return False


log = logging.getLogger("palermo.rabbitmq")

#: Records after which the leader writes all keys anew. A classic queue may have one record more for each key, up to
#: _MOST records.
_MANY, _MOST = 2_000, 30_000

#: Bytes of job bodies in one message of a batch; a message may always have one job.
_JOBS_BYTES = 1_048_576

#: Seconds until an owed job is tried again: doubled from the first to the last while it is refused.
_AGAIN, _STILL_REFUSED = 1.0, 30.0


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
        self._loop = asyncio.get_running_loop()
        self._log = StateLog(self._queue, connection, outbox.open, prepare=self._prepare, on_record=self._on_record)
        self._classic = False
        #: Whether the queue was deleted with all that this leader knew, and `write_all` is to be called.
        self.was_deleted = False
        #: What has been read, and the ends of runs among it, while the log is opened; else None.
        self._content: LogContent | None = LogContent(self._skip)
        self._ends: list[tuple[RunEnd, Record]] = []
        self._number = 0
        #: The number of the last batch whose jobs are known to be stored or owed; the number that the log says of it;
        #: and whether a record still has to say more.
        self._sure = self._told = 0
        self._unsaid = False
        #: Jobs whose queues have refused them, by id.
        self._owed: dict[str, Message] = {}
        self._paying: asyncio.Task[None] | None = None
        #: The ids of the jobs of which no later record says that they are stored.
        self.unsure: set[str] = set()
        #: The records whose content is in the keys; and those that the next commit replaces. Oldest first.
        self._folded: list[Record] = []
        self._done: list[Record] = []
        self._saying: asyncio.Task[list[Record]] | None = None
        #: Writes all keys anew; its result is the new records and those that they replace.
        self._rewriting: asyncio.Task[tuple[list[Record], list[Record]]] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the leader knows all that is in the log."""
        return self._log.is_open and self._content is None

    @property
    def number(self) -> int:
        """The number of the last batch."""
        return self._number

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
        content, self._content = self._content or LogContent(self._skip), None
        ends, self._ends = self._ends, []
        keys, jobs, self._number = await content.keys(), content.jobs(), content.number or self._number
        if not self.was_deleted:
            self._owed = {}
        queues = {id: job.queue for id, job in jobs.items() if not job.tenant}
        there = await traces(self._connection, self._exchange, queues, self._outbox.kind, ended=False)
        await self._publish([job for id, job in jobs.items() if id not in there])
        self.unsure = set(jobs)
        self._sure, self._told, self._unsaid = self._number, content.sure, True
        if jobs:
            await self._say()
        return keys, ends

    async def write_all(self, keys: Sequence[Key]) -> None:
        """Store all keys and the owed jobs, which were deleted with the queue, in the queue that was made anew."""
        self._number += 1
        anew, _ = await self._rewrite(self._number, keys, [])
        owed = list(self._owed.values())
        anew += await self._log.append(*self._records({}, owed))
        self._folded += anew
        self.was_deleted = False
        if owed:
            self._owed = {}
            await self._publish(owed)

    async def _prepare(self) -> None:
        if self._number and not (await self._connection.probe(self._queue)).exists:
            self.was_deleted = True
        ours = await self._connection.declare(self._queue, self._arguments) is None
        await self._connection.persist_queues()
        self._classic = ours and self._arguments.get("x-queue-type") == CLASSIC
        self._content, self._ends, self._folded, self._done = LogContent(self._skip), [], [], []
        self._end_rewriting()

    def let_go(self) -> None:
        """Forget all that is known: the log has to be read again."""
        self._end_rewriting()
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
        self._number += 1
        batch = self._batch(self._number, {key.name: key.to_plain()})
        self._beside.publish("", self._queue, PERSISTENT_JSON, json.dumps(batch, separators=(",", ":")).encode())

    def _batch(self, number: int, keys: Mapping[str, Any]) -> dict[str, Any]:
        return {"n": number, "by": self._by, "sure": self._told, "keys": keys, "jobs": []}

    def _records(self, keys: Mapping[str, Any], jobs: Iterable[Message] = (), **more: Any) -> list[dict[str, Any]]:
        """The records of the next batch: as many as its jobs need."""
        self._number += 1
        records, size = [{**self._batch(self._number, keys), "sure": self._sure, "owed": list(self._owed), **more}], 0
        for job in jobs:
            if size and size + len(job.body) > _JOBS_BYTES:
                records.append(self._batch(self._number, {}))
                size = 0
            records[-1]["jobs"].append(message_to_plain(job))
            size += len(job.body)
        return records

    async def commit(self, changes: Mapping[str, Key], jobs: Sequence[Message]) -> dict[str, PalermoError]:
        """Store a batch, and its jobs where they belong. Returns why each owed job is not stored, by id.

        After an exception nothing is known: `let_go` was called.
        """
        if not self.is_open:
            raise BrokerUnavailable("the log of keys is not open.")
        self._forgive(changes)
        try:
            keys = {name: None if key.is_free else key.to_plain() for name, key in changes.items()}
            records = self._records(keys, jobs)
            number, done, self._done = self._number, self._done, []
            # The jobs are sent behind the batch, without waiting for its confirm first: one wait for both.
            storing = self._loop.create_task(self._log.replace(done, *records))
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
        self._told, self._sure, self._unsaid = self._sure, number, bool(jobs)
        self.unsure = {*(job.id for job in jobs), *self._owed}
        if jobs:
            await self._say()
        return refused

    async def _publish(self, jobs: Sequence[Message]) -> dict[str, PalermoError]:
        """Publish jobs where they belong. Returns why each refused job, which is owed now, is not stored, by id."""
        # Posted at once where no queue has to be made first: a task for each job costs more than all else.
        posted = [
            (job, told if self._outbox.try_publish(job, told) else None) for job in jobs if (told := PublishFuture())
        ]
        errors = iter(await outcomes(self._connection, [told.future for _, told in posted if told is not None]))
        left = [job for job, told in posted if told is None or next(errors) is not None]
        again = await outcomes(self._connection, [self._outbox.publish(job, job.queue) for job in left])
        refused = {job.id: error for job, error in zip(left, again, strict=True) if error is not None}
        self._owed |= {job.id: job for job in jobs if job.id in refused}
        if refused and (self._paying is None or self._paying.done()):
            self._paying = self._loop.create_task(self._pay(next(iter(refused.values()))))
        return refused

    async def _pay(self, error: PalermoError) -> None:
        """Publish the owed jobs: one of each queue at first, then more as long as the queue takes them."""
        refusals = Refusals("jobs that waited for their keys", first=_AGAIN, last=_STILL_REFUSED)
        with suppress(PalermoError):  # the session is lost: the next leader owes them
            while self._owed and self.is_open:
                await asyncio.sleep(refusals.refused(error))
                for queue in {job.queue for job in self._owed.values()}:
                    most = 1
                    while batch := [job for job in self._owed.values() if job.queue == queue][:most]:
                        errors = await outcomes(self._connection, [self._outbox.publish(job, queue) for job in batch])
                        for job, found in zip(batch, errors, strict=True):
                            if found is None:
                                self._owed.pop(job.id, None)
                                self._unsaid = True
                        if failed := [found for found in errors if found is not None]:
                            error = failed[0]
                            break
                        refusals.taken()
                        most *= 2

    @property
    def owed(self) -> Set[str]:
        """The ids of jobs that have their keys and wait for room in their queues."""
        return self._owed.keys()

    def forgive(self, id: str) -> None:
        """Do not try to publish this owed job any more."""
        self._owed.pop(id, None)

    def _forgive(self, changes: Mapping[str, Key]) -> None:
        """Do not try to publish owed jobs any more that lose their keys by these changes."""
        for id, job in list(self._owed.items()):
            lock = lock_of(job)
            key = None if lock is None else changes.get(lock.key)
            if key is not None and (key.holder is None or key.holder.id != id):
                self.forgive(id)

    async def _say(self) -> None:
        """Write that the jobs of the last batch are stored, except the owed ones; wait for no confirm."""
        number, owed = self._sure, set(self._owed)

        def said(saying: "asyncio.Task[list[Record]]") -> None:
            if saying.cancelled() or saying.exception() is not None:
                return  # then the next batch says it
            self._folded += saying.result()
            if number == self._sure:
                self._told, self.unsure, self._unsaid = number, owed, owed != self.owed

        self._saying = self._loop.create_task(self._log.append(*self._records({})))
        self._saying.add_done_callback(said)
        # Written to the socket before a caller is told of these jobs, and may end this process.
        await asyncio.sleep(0)
        self._connection.raw.flush()

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
                self._number += 1
                self._rewriting = self._loop.create_task(self._rewrite(self._number, list(keys.values()), before))
                self._rewriting.add_done_callback(lambda done: done.cancelled() or done.exception())
        elif self._rewriting.done():
            try:
                anew, before = self._rewriting.result()
                await self._replace(before, anew)
            except BaseException:
                self.let_go()
                raise
            self._rewriting = None
            return
        if self._unsaid:
            await self.commit({}, ())

    async def _rewrite(
        self, number: int, keys: Sequence[Key], before: list[Record]
    ) -> tuple[list[Record], list[Record]]:
        """Write these keys as batch `number`, in parts. Until the last part is stored, no reader heeds the others."""
        anew, found = list[Record](), await parts(keys)
        for place, part in enumerate(found):
            batch = self._batch(number, {key.name: key.to_plain() for key in part})
            anew += await self._log.append({**batch, "all": [place, len(found)]})
        return anew, before

    async def _replace(self, before: list[Record], anew: list[Record]) -> None:
        owed = list(self._owed.values())
        anew += await self._log.replace(before, *self._records({}, owed))
        self._folded = [*anew, *(held for held in self._folded if held.is_held)]
        self._done = [held for held in self._done if held.is_held]
        self._told, self._sure, self._unsaid = self._sure, self._number, False
        self.unsure = {job.id for job in owed}

    def _end_rewriting(self) -> None:
        if self._rewriting is not None:
            self._rewriting.cancel()
            self._rewriting = None

    def _skip(self, record: object, error: object) -> None:
        self._connection.unreadable.skip(self._queue, record, error)

    def _on_record(self, held: Record, record: Any) -> None:
        match record:
            case _ if _is_batch(record):
                self._folded.append(held)
                if self._content is not None:
                    self._content.take(record)
                elif record.get("by") != self._by:
                    log.warning("who led before has written of keys after we read them")
                    self.let_go()
            case {"end": dict() as plain} if "n" not in record:
                self._on_end(plain, held)
            case {"mark": _}:
                self._log.forget(held)  # written by a previous leader
            case _:
                self._skip(record, "not a record of keys")
                # RabbitMQ closes the channel of a message that is held for half an hour.
                self._log.forget(held)

    def _on_end(self, plain: Mapping[str, Any], held: Record) -> None:
        try:
            end = RunEnd.from_plain(plain)
        except UNREADABLE as error:
            self._skip(plain, error)
            self.keep(held)
            return
        if self._content is None:
            self._ended(end, held)
        else:
            self._ends.append((end, held))
