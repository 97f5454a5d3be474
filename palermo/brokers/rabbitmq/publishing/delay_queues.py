"""The delay queues: a durable queue of scheduled jobs for each time slot in use, and the list of these queues.

The session that first has a job for a time slot declares the time slot's queue, then writes its name to the
queue `~later`, and only then publishes the job. The leader (leader.py) reads `~later` (name_list.py).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.publisher import Publisher, RecordQueue
from palermo.brokers.rabbitmq.amqp.state_log import settled
from palermo.core.time_slots import TimeSlot
from palermo.core.topology import internal

#: The most time slots of which a session remembers that it made their queues.
_REMEMBERED = 10_000


def queue_of(exchange: str, time_slot: TimeSlot) -> str:
    """The AMQP name of a time slot's queue."""
    return internal(exchange, f"later.{time_slot}")


class DelayQueues:
    """The delay queues of one exchange, as one connection sees them."""

    def __init__(
        self,
        exchange: str,
        connection: Connection,
        publisher: Callable[[], Awaitable[Publisher]],
        arguments: Mapping[str, Any],
    ) -> None:
        """`arguments` are those that the queues are declared with."""
        self._exchange = exchange
        self._connection = connection
        self._arguments = dict(arguments)
        self._made: set[str] = set()
        #: The list of the time slots that have a queue.
        self.names = RecordQueue(internal(exchange, "later"), connection, publisher, arguments)
        self._lock = asyncio.Lock()

    def has(self, time_slot: TimeSlot) -> bool:
        """Whether the time slot's queue has been made on this connection."""
        return str(time_slot) in self._made

    async def ensure(self, time_slot: TimeSlot) -> None:
        """Make the time slot's queue if it is missing, and let the leader know of it."""
        async with self._lock:
            if str(time_slot) in self._made:
                return
            if len(self._made) > _REMEMBERED:
                self._made.clear()
            name = queue_of(self._exchange, time_slot)
            is_new = not (await self._connection.probe(name)).exists
            if is_new:
                await self._connection.declare(name, self._arguments)
            # Written after the declaration, or a leader that found the queue empty might delete it afterwards; and
            # before the first job, or nobody would look for that job.
            await self.names.write({"made": str(time_slot)})
            if is_new:
                await self._connection.persist_queues()
            self._made.add(str(time_slot))

    def forget(self, time_slot: TimeSlot) -> None:
        """Note that the time slot's queue has been deleted: it is made again next time."""
        self._made.discard(str(time_slot))

    async def counts(self, time_slots: Iterable[TimeSlot]) -> dict[TimeSlot, int]:
        """How many jobs wait in each of these time slots; those without a queue are left out."""
        found: dict[TimeSlot, int] = {}
        for one in time_slots:
            async with self._connection.spare_channel() as channel:
                probe = await channel.probe(queue_of(self._exchange, one))
                if probe.exists and probe.consumers:
                    # The last leader has just gone, and RabbitMQ is about to take back what it held.
                    probe = await settled(channel, queue_of(self._exchange, one), readers=0)
            if probe.exists:
                found[one] = probe.messages
        return found

    async def delete(self, time_slot: TimeSlot) -> bool:
        """Delete the time slot's queue unless it has a message or a consumer. Returns whether it is gone."""
        self._made.discard(str(time_slot))
        return await self._connection.delete_unused(queue_of(self._exchange, time_slot))
