"""The key log, and its records: the leader reads the durable queue `~unique`, adds to it, and rewrites it.

A record is a batch of key states, or the end of a run. The leader holds all records (state_log.py). It appends a batch
of key states, and publishes behind it the jobs that the batch lets into their queues; each is confirmed for itself
(handover.py). A record behind them says that they are stored. The next leader publishes again the jobs of which no
record says so, and which it finds neither in their queues nor with a worker: if such a job was stored after all, the
second one is a copy, and is dropped at its start. A job that its queue refuses is owed: the leader tries it again until
the queue takes it, or its key is taken from it. See docs/internals/design.md.
"""

import asyncio
import json
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any

from msgspec import Struct

from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.brokers.rabbitmq.amqp.messages import PERSISTENT_JSON
from palermo.brokers.rabbitmq.amqp.publisher import PublishFuture
from palermo.brokers.rabbitmq.amqp.state_log import Record, StateLog
from palermo.brokers.rabbitmq.publishing.handover import Refusals, outcomes, traces
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.brokers.rabbitmq.unique.batching import CODED_AT_ONCE, in_turns
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
        """The end that to_plain wrote. Raises KeyError, TypeError or ValueError for anything else."""
        return cls(
            key=str(plain["key"]),
            id=str(plain["id"]),
            how=RunOutcome(plain["how"]),
            serial=plain.get("serial"),
            starts=plain.get("starts"),
            run_at=plain.get("run_at"),
            at=plain.get("at"),
        )


async def fold(found: Sequence[Mapping[str, Any]]) -> dict[str, Key]:
    """The keys as all these batches leave them. The batches may come in any order."""
    whole: dict[int, list[Mapping[str, Any]]] = {}
    for batch in found:
        if "all" in batch:
            whole.setdefault(batch["n"], []).append(batch)
    anew = max((n for n, parts in whole.items() if len(parts) >= parts[0]["all"][1]), default=0)
    keys: dict[str, Mapping[str, Any]] = {}
    async for some in in_turns(sorted(found, key=lambda one: int(one["n"])), at_once=CODED_AT_ONCE):
        for batch in some:
            if batch["n"] < anew or ("all" in batch and batch["n"] != anew):
                continue
            for name, plain in batch["keys"].items():
                if plain is None:
                    keys.pop(name, None)
                else:
                    keys[name] = plain
    read = dict[str, Key]()
    async for pairs in in_turns(list(keys.items()), at_once=CODED_AT_ONCE):
        read |= {name: key for name, plain in pairs if (key := _read(name, plain)) is not None}
    return read


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


def _read(name: str, plain: Mapping[str, Any]) -> Key | None:
    try:
        return Key.from_plain(plain)
    except (ValueError, KeyError, TypeError) as error:
        log.warning("a key cannot be read key=%r error=%r", name, str(error))
        return None


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
        ended: Callable[[Mapping[str, Any], Record], None],
        beside: Channel,
    ) -> None:
        """`arguments` are those that the queue is declared with; `beside` is a channel that is not for transactions.

        `ended` is called with a worker's record of the end of a run, and with what to give to `settle` or `keep`.
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
        #: The records read since the log was opened; None once they are folded into keys.
        self._read: list[tuple[Record, Mapping[str, Any]]] | None = []
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
        return self._log.is_open and self._read is None

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

    async def open(self) -> tuple[dict[str, Key], list[tuple[Mapping[str, Any], Record]]]:
        """Read the whole log, and publish again the jobs that may not be stored. Returns the keys and the ends of runs.

        The caller applies these ends to the keys before it decides anything else, each as `ended` would get it.
        """
        await self._log.open()
        # All that this leader wrote before it lost the log, confirmed or not.
        await self._log.await_mark(self._beside)
        await self._log.await_mark()
        read, self._read = self._read or [], None
        batches = [record for _, record in read if "n" in record]
        self._folded = [held for held, record in read if "n" in record]
        keys = await fold(batches)
        self._number = max((record["n"] for record in batches), default=0)
        known = max((record["sure"] for record in batches), default=0)
        owed = max((record for record in batches if "owed" in record), key=lambda one: int(one["n"]), default={})
        ids, jobs = set(map(str, owed.get("owed", ()))), dict[str, Message]()
        for record in batches if ids else [record for record in batches if record["n"] > known]:
            for plain in record["jobs"]:
                if record["n"] > known or str(plain["id"]) in ids:
                    jobs[str(plain["id"])] = message_from_plain(plain)
        self._owed = {}
        queues = {id: job.queue for id, job in jobs.items() if not job.tenant}
        there = await traces(self._connection, self._exchange, queues, self._outbox.kind, ended=False)
        await self._publish([job for id, job in jobs.items() if id not in there])
        self.unsure = set(jobs)
        self._sure, self._told, self._unsaid = self._number, known, True
        if jobs:
            await self._say()
        return keys, [(record, held) for held, record in read if "end" in record]

    async def _prepare(self) -> None:
        ours = await self._connection.declare(self._queue, self._arguments) is None
        await self._connection.persist_queues()
        self._classic = ours and self._arguments.get("x-queue-type") == CLASSIC
        self._read, self._folded, self._done = [], [], []
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
                refused = await self._publish(jobs)
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

    def _on_record(self, held: Record, record: Any) -> None:
        match record:
            case {"n": int(), "sure": int(), "keys": dict(), "jobs": list()} | {"end": dict()}:
                if self._read is not None:
                    self._read.append((held, record))
                elif "n" in record:
                    self._folded.append(held)
                    if record.get("by") != self._by:
                        log.warning("who led before has written of keys after we read them")
                        self.let_go()
                else:
                    self._ended(record, held)
            case {"mark": _} | {"canary": _}:
                self._log.forget(held)  # written by a leader that is gone, or by an older version of Palermo
            case _:
                log.warning("a record of keys cannot be read record=%.200r", record)
                # RabbitMQ closes the channel of a message that is held for half an hour.
                self._log.forget(held)
