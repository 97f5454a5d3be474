"""A copy of a stream's records in a classic queue: RabbitMQ may lose a stream for good, and keeps a queue.

Law: a record is stored in the copy before it is stored in the stream. The session that makes the stream anew fills
it from the copy, so a record whose write has returned is never lost with the stream. Nobody else reads the copy.

* A writer is killed between the two: the copy has a record that the stream lacks, until the stream is made anew.
* The copy's node is away, in a cluster: records go into the stream alone, and the log says so.
* RabbitMQ is killed: the copy is there, with all records whose write has returned.
"""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.destination import GONE
from palermo.brokers.rabbitmq.amqp.properties import PERSISTENT_JSON
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.amqp.state_log import StateLog
from palermo.core.topology import CLASSIC
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: The one bound of a stream that its copy has too.
_BOUND = "x-max-length-bytes"

Record = Mapping[str, Any]


class StreamCopy:
    """The copy of one stream, as one session sees it."""

    def __init__(self, stream: str, bounds: Mapping[str, Any]) -> None:
        """`bounds` are the stream's arguments."""
        self.name = f"{stream}.copy"
        self._bounds = {name: value for name, value in bounds.items() if name == _BOUND}

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
