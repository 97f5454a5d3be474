"""The facts of an exchange: its queues, its pauses, the groups that subscribe to events, and the unique jobs.

AMQP can list none of them, so they are records in the stream `~facts`, which a session follows from its first use:

    {"format": 1, "kind": "pause", "name": "mail", "value": {"by": "ann", "at": 1764430000}}

Law: a record replaces the last one of its kind and name, and removes the fact if its value is null. A reader ignores
unknown kinds and fields, and keeps them when the records are written again.

Promise: every session that reads after a fact is stored sees it. If the stream is deleted, a session that follows it
writes it again from memory.
Cost: one record for each change. The stream drops its oldest records, so the leader writes all facts again, with
`"again": true`, before one is dropped. If that leader dies, the next one does it. If no worker runs for many thousands
of records, the oldest facts are lost; a queue is registered again when it is used.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.followed_stream import FollowedStream
from palermo.brokers.rabbitmq.amqp.many_queues import probe_all
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.amqp.replies import Probe
from palermo.brokers.rabbitmq.amqp.stream import Record
from palermo.brokers.rabbitmq.cluster.worker_control import notify_workers
from palermo.brokers.rabbitmq.seconds import RARELY
from palermo.contract import clock
from palermo.contract.events import Subscription
from palermo.contract.unique_jobs import UniqueJob
from palermo.core.queue_selection import EVERY_QUEUE, PausedQueues
from palermo.core.topology import amqp_queue, check_queue_name, internal, is_queue_name
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: The kinds of facts, each identified by the name of a queue, a group or a job.
QUEUE, PAUSE, GROUP, UNIQUE_JOB = "queue", "pause", "group", "unique job"

#: The stream's bounds in bytes, tens of thousands of records. It drops a segment at a time.
_BOUNDS = {"x-max-length-bytes": 16 * 1024 * 1024, "x-stream-max-segment-size-bytes": 2 * 1024 * 1024}

#: All facts are written again when this number of records, plus this number for each fact, follow the oldest one.
_FAR, _FAR_PER_FACT = 5_000, 2

#: Number of facts written at a time.
_TOGETHER = 100


class _Fact(NamedTuple):
    record: Record
    #: The record's value, for readers that know its kind.
    value: Any
    #: The number of records read when it was last written.
    written: int


class FactState:
    """The facts that result from the stream's records."""

    def __init__(self) -> None:
        #: By kind and name.
        self._facts: dict[str, dict[str, _Fact]] = {}
        self._records = 0

    def apply(self, record: Record) -> None:
        self._records += 1
        match record:
            case {"kind": str(kind), "name": str(name), "value": None}:
                self._facts.get(kind, {}).pop(name, None)
            case {"kind": str(kind), "name": str(name), "value": value}:
                read = _READERS.get(kind)
                meant = value if read is None else read(name, value)
                self._facts.setdefault(kind, {})[name] = _Fact(record, meant, self._records)
            case {"kind": _}:
                raise ValueError("not a fact with a name and a value")

    def records(self) -> Iterator[Record]:
        """Records from which these facts can be rebuilt."""
        return (fact.record for fact in self._all())

    def has(self, kind: str, name: str) -> bool:
        """Whether this fact exists."""
        return name in self._facts.get(kind, {})

    @property
    def queues(self) -> set[str]:
        return set(self._facts.get(QUEUE, ()))

    @property
    def paused(self) -> PausedQueues:
        names = frozenset(self._facts.get(PAUSE, ()))
        return PausedQueues(names - {EVERY_QUEUE}, every=EVERY_QUEUE in names)

    @property
    def subscriptions(self) -> dict[str, Subscription]:
        """The subscriptions, by group."""
        return self._values(GROUP)

    @property
    def unique_jobs(self) -> dict[str, UniqueJob]:
        """The unique jobs that workers have announced, by name."""
        return self._values(UNIQUE_JOB)

    @property
    def is_far_back(self) -> bool:
        """Whether the stream may soon drop a fact's record."""
        written = [fact.written for fact in self._all()]
        return self._records - min(written, default=self._records) > max(_FAR, _FAR_PER_FACT * len(written))

    def written(self, queue: str) -> int:
        """The number of records that were read when the queue's name was last written; 0 if the name is unknown."""
        fact = self._facts.get(QUEUE, {}).get(queue)
        return fact.written if fact is not None else 0

    def _all(self) -> Iterator[_Fact]:
        return (fact for facts in self._facts.values() for fact in facts.values())

    def _values(self, kind: str) -> dict[str, Any]:
        return {name: fact.value for name, fact in sorted(self._facts.get(kind, {}).items())}


def _check_pause(name: str, value: object) -> None:
    """Check a pause. It names a queue, all queues, or a queue in migration (RabbitmqBroker.migrate)."""
    if name != EVERY_QUEUE and not is_queue_name(name.removeprefix("~migrating.")):
        raise ValueError(f"{name!r} is not a queue name")


#: The check of a fact's name and value, by kind. RabbitMQ answers no query about an invalid queue name.
_READERS: dict[str, Callable[[str, Any], Any]] = {
    QUEUE: lambda name, value: check_queue_name(name),
    PAUSE: _check_pause,
    GROUP: lambda name, value: Subscription.from_plain(value),
    UNIQUE_JOB: lambda name, value: UniqueJob.from_plain(value),
}


def fact(kind: str, name: str, value: object) -> Record:
    """The record of a fact."""
    return {"kind": kind, "name": name, "value": value}


class Facts(FollowedStream[FactState]):
    """One session's access to the facts of one exchange."""

    def __init__(
        self, exchange: str, connection: Connection, publisher: Callable[[], Awaitable[Publisher]], *, patience: float
    ) -> None:
        """See FollowedStream."""
        super().__init__(
            internal(exchange, "facts"),
            connection,
            publisher,
            FactState,
            patience=patience,
            holds="the list of queues and pauses",
            arguments=_BOUNDS,
        )
        self._exchange = exchange
        #: By missing queue: its `written` number, and until when it is not queried again.
        self._missing: dict[str, tuple[int, float]] = {}

    async def put(self, kind: str, name: str, value: object = True) -> None:
        """Store a fact; return once every session can read it."""
        await self.write(fact(kind, name, value))

    async def remove(self, kind: str, name: str) -> None:
        await self.put(kind, name, None)

    async def pause(self, queue: str, by: str) -> None:
        """Pause a queue; returns once no worker takes jobs from it, or all have been notified."""
        await self.put(PAUSE, queue, {"by": by, "at": int(clock.now())})
        await notify_workers(self._writing, self._exchange, {"ask": "look"})

    async def resume(self, connection: Connection, queue: str) -> None:
        """Resume a queue if it is paused. `connection` is for reading."""
        if (await self.read(connection)).has(PAUSE, queue):
            await self.remove(PAUSE, queue)
            await notify_workers(self._writing, self._exchange, {"ask": "look"})

    async def probe(self, connection: Connection, queues: Iterable[str]) -> dict[str, Probe]:
        """The state of these queues in RabbitMQ, for callers that ask repeatedly. Call `read` first.

        Remembers missing queues, because RabbitMQ logs each query of a missing queue as an error. A queue that Palermo
        creates is seen immediately, since its name is written first. A queue that another program creates is seen up to
        a minute late.
        """
        now = time.monotonic()
        written = {queue: self.state.written(queue) for queue in queues}
        self._missing = {
            queue: (seen, until)
            for queue, (seen, until) in self._missing.items()
            if now < until and seen == written.get(queue)
        }
        asked = {amqp_queue(self._exchange, queue): queue for queue in written if queue not in self._missing}
        found = {asked[name]: probe for name, probe in (await probe_all(connection, asked)).items()}
        self._missing |= {queue: (written[queue], now + RARELY) for queue, probe in found.items() if not probe.exists}
        return {queue: found.get(queue) or Probe(exists=False) for queue in written}

    async def keep(self, connection: Connection) -> None:
        """Rewrite the facts whenever necessary, for the leader, until the connection is lost or this is cancelled."""
        while connection.error is None:
            await asyncio.sleep(RARELY)
            try:
                await self.write_again(connection)
            except PalermoError as error:
                if connection.error is None:
                    log.warning("cannot store the list of queues and pauses error=%r", str(error))

    async def write_again(self, connection: Connection) -> int:
        """Rewrite all facts if one is far back in the stream. Returns the number written.

        Names of missing queues are left out, so that the stream drops them.
        """
        state = await self.read(connection)
        if not state.is_far_back:
            return 0
        left, written = iter(list(state.records())), 0
        while some := list(islice(left, _TOGETHER)):
            names = {str(record["name"]) for record in some if record["kind"] == QUEUE}
            probes = await probe_all(connection, [amqp_queue(self._exchange, name) for name in names])
            gone = {name for name in names if not probes[amqp_queue(self._exchange, name)].exists}
            kept = [record for record in some if record["kind"] != QUEUE or record["name"] not in gone]
            await asyncio.gather(*(self.stream.write({**record, "again": True}) for record in kept))
            written += len(kept)
        log.info("stored the list of queues and pauses again entries=%d", written)
        return written
