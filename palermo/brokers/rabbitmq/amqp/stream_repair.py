"""Finds streams that RabbitMQ cannot serve, and keeps copies from which they are made anew.

All sessions of a process know the broken streams, so that none runs into them again.

A session first looks into a suspected stream on a connection of its own, since a session that uses a broken stream may
lose its connection, and with it the jobs that it runs. Up to 4.2 a stream is suspected once it has failed a session of
this process; from 4.3 on, where it would end the connection, each session looks in advance.
"""

import asyncio
import json
import logging
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.messages import PERSISTENT_JSON
from palermo.brokers.rabbitmq.amqp.publisher import GONE, Publisher
from palermo.brokers.rabbitmq.amqp.replies import INTERNAL_ERROR, RESOURCE_ERROR
from palermo.brokers.rabbitmq.amqp.state_log import StateLog
from palermo.core.topology import CLASSIC
from palermo.errors import BrokerUnavailable, PalermoError

#: Seconds for which a stream is broken before it is made anew: RabbitMQ needs some after its start.
BROKEN_FOR = 10.0

#: The same for a stream whose history is lost then: most of a cluster's nodes may be away for a while.
HISTORY_BROKEN_FOR = 60.0

#: The reply codes by which RabbitMQ closes the connection of a session that uses a broken stream.
BREAKING = (INTERNAL_ERROR, RESOURCE_ERROR)

#: Seconds between two looks into one stream.
_LOOK_EVERY = 1.0

#: Seconds after which a broker that broke streams before is given new time for those that it breaks now.
_FORGOTTEN = 60.0

#: A broker, and a stream of it.
_Broker = tuple[tuple[tuple[str, int], ...], str]
_Key = tuple[_Broker, str]


class Suspect:
    """A stream that could not be used, and is looked into."""

    def __init__(self, key: _Key) -> None:
        self._broker, self._stream = key
        self._looked_at = float("-inf")
        #: What was found wrong with it when it was looked into last.
        self.error: BrokerUnavailable | None = None

    @property
    def is_due(self) -> bool:
        """Whether it is time for another look."""
        return time.monotonic() - self._looked_at >= _LOOK_EVERY

    @property
    def broken_for(self) -> float:
        """Seconds since the first of the broker's streams was found broken: after a start all of them may be."""
        return time.monotonic() - _broken_since[self._broker][0] if self._broker in _broken_since else 0.0

    def not_seen(self) -> None:
        """Note that nobody could look into it: the broker itself is away, and may open it when it comes back."""
        _broken_since.pop(self._broker, None)

    def found(self, error: BrokerUnavailable | None, connection: Connection) -> None:
        """Note what was found for this session; None clears the stream of suspicion."""
        self._looked_at, self.error = time.monotonic(), error
        if error is None:
            _sound[self._broker, self._stream] = weakref.ref(connection)
            _suspects.pop((self._broker, self._stream), None)
            return
        since, last = _broken_since.get(self._broker, (self._looked_at, self._looked_at))
        if self._looked_at - last > _FORGOTTEN:
            since = self._looked_at
        _broken_since[self._broker] = (since, self._looked_at)


_suspects: dict[_Key, Suspect] = {}

#: The streams that were found sound, and for which session.
_sound: dict[_Key, weakref.ref[Connection]] = {}

#: When a stream of the broker was first found broken, and when last.
_broken_since: dict[_Broker, tuple[float, float]] = {}


def _key(connection: Connection, stream: str) -> _Key:
    return (connection.address.hosts, connection.address.vhost), stream


def suspected(connection: Connection, stream: str) -> Suspect | None:
    """What is known of the stream, if it is under suspicion.

    Where a broken stream ends connections, each stream is, until it was found sound; and again once the session that
    found it so is lost, perhaps with its broker.
    """
    key = _key(connection, stream)
    if versions.ends_connections(connection.version):
        found_by = _sound[key]() if key in _sound else None
        if found_by is None or found_by.error is not None:
            return _suspects.setdefault(key, Suspect(key))
    return _suspects.get(key)


def suspect_of(connection: Connection, stream: str) -> Suspect:
    """The same, and suspect it from now on."""
    key = _key(connection, stream)
    return _suspects.setdefault(key, Suspect(key))


log = logging.getLogger("palermo.rabbitmq")

#: The one bound of a stream that its copy has too, and the most records of a copy: those behind them cannot be read.
_BOUND, _MOST = "x-max-length-bytes", {"x-max-length": 65_000}

Record = Mapping[str, Any]


class StreamCopy:
    """A copy of a stream's records in a classic queue: RabbitMQ may lose a stream for good, and keeps a queue.

    Law: a record is stored in the copy before it is stored in the stream. The session that makes the stream anew fills
    it from the copy, so a record whose write has returned is never lost with the stream. Nobody else reads the copy.

    * A writer is killed between the two: the copy has a record that the stream lacks, until the stream is made anew.
    * The copy's node is away, in a cluster: records go into the stream alone, and the log says so.
    * RabbitMQ is killed: the copy is there, with all records whose write has returned.
    """

    def __init__(self, stream: str, bounds: Mapping[str, Any]) -> None:
        """`bounds` are the stream's arguments."""
        self.name = f"{stream}.copy"
        self._bounds = _MOST | {name: value for name, value in bounds.items() if name == _BOUND}

    async def exists(self, connection: Connection) -> bool:
        """Whether the queue was made."""
        return await connection.has_queue(self.name)

    async def make(self, connection: Connection, records: Sequence[Record]) -> None:
        """Make the queue, with these records in it."""
        await connection.declare(self.name, versions.arguments(CLASSIC, connection.version) | self._bounds)
        publisher = await Publisher.open(connection)
        await connection.persist_queues()
        await self._store(publisher, records)
        publisher.channel.abandon()

    async def write(self, publisher: Publisher, record: Record) -> None:
        """Store a record. Raises Unroutable if there is no such queue, or the error of a lost session."""
        try:
            await self._store(publisher, [record])
        except PalermoError as error:
            connection = publisher.channel.connection
            if connection.error is not None or (isinstance(error, GONE) and not await self.exists(connection)):
                raise
            log.warning("a record has no copy, and is lost if its stream is queue=%s error=%r", self.name, str(error))

    async def read(self, connection: Connection) -> list[Record]:
        """All records, oldest first. Nobody else may read them at the same time."""
        found: list[Record] = []
        state = StateLog(
            self.name,
            connection,
            lambda: Publisher.open(connection),
            prepare=_nothing,
            on_record=lambda _, value: found.append(value) if isinstance(value, dict) else None,
        )
        await state.open()
        state.close()
        return found

    async def _store(self, publisher: Publisher, records: Sequence[Record]) -> None:
        sent = [publisher.send("", self.name, PERSISTENT_JSON, json.dumps(record).encode()) for record in records]
        await asyncio.gather(*sent)


async def _nothing() -> None:
    """Nothing is to be made before the records are read."""
