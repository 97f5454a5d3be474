"""Where the jobs of tenants wait: a durable queue for each tenant of a job queue that has any, and the list of them.

Such a queue is declared by whoever first has a job for it, who then writes its name to the queue `~tenants`, and only
then publishes. Who leads (dealer.py) reads that list, deals the jobs into their job queue in turn, and
deletes a tenant's queue that has been empty for a while; a publisher whose message then finds no queue makes it again.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from pika import spec

from palermo.brokers.rabbitmq import versions
from palermo.brokers.rabbitmq.link import Channel, Link
from palermo.brokers.rabbitmq.publisher import Publisher, Unroutable
from palermo.brokers.rabbitmq.translate import PRECONDITION_FAILED
from palermo.brokers.rabbitmq.wire import PERSISTENT
from palermo.core.message import Message
from palermo.core.permits import has_turn
from palermo.core.topology import CLASSIC, PRIORITY, internal
from palermo.errors import PalermoError

#: Seconds since its last use for which a session takes it that a tenant's queue is still there.
_TRUSTED = 5.0

#: Seconds that a tenant's queue is left empty before it is deleted: longer than anybody trusts that it is there.
LINGER = 2 * _TRUSTED

#: Seats that a session remembers to have made.
_REMEMBERED = 50_000


class Seat(NamedTuple):
    """One tenant's place in one job queue."""

    queue: str
    tenant: str

    @classmethod
    def of(cls, message: Message) -> "Seat | None":
        """Where the message waits; None for one that waits in its job queue itself.

        That is one of nobody, and one that was put aside until a turn by its rate: it has had its tenant's.
        """
        return cls(message.queue, message.tenant) if message.tenant and not has_turn(message) else None


def seat_queue(exchange: str, seat: Seat) -> str:
    """The AMQP queue of a seat. A digest, since both names together are longer than an AMQP name may be."""
    digest = hashlib.sha256(f"{seat.queue}\0{seat.tenant}".encode(errors="surrogatepass")).hexdigest()
    return internal(exchange, f"tenant.{digest[:32]}")


def list_queue(exchange: str) -> str:
    """The queue in which the seats are listed."""
    return internal(exchange, "tenants")


class Seats:
    """The seats of one exchange, as one link sees them."""

    def __init__(self, exchange: str, link: Link, publisher: Callable[[], Awaitable[Publisher]]) -> None:
        self._exchange = exchange
        self._link = link
        self._publisher = publisher
        # Classic whatever job queues are: ten thousand quorum queues are more than a broker bears (docs/design.md).
        self._arguments = versions.arguments(CLASSIC, link.version)
        self._with_priorities = versions.arguments(PRIORITY, link.version)
        self._used: dict[Seat, float] = {}
        self._listed = False
        #: On which queues are declared.
        self._channel: Channel | None = None
        self._lock = asyncio.Lock()

    def has(self, seat: Seat) -> bool:
        """Whether its queue was there a moment ago; then it is used now."""
        used, now = self._used.get(seat), time.monotonic()
        if used is None or now - used > _TRUSTED:
            return False
        self._used[seat] = now
        return True

    async def ensure(self, *seats: Seat, priority: int = 0) -> None:
        """See that their queues are there, and known to whoever leads.

        What has to be made for jobs with a `priority` gets priorities; one that is there without stays so.
        """
        async with self._lock:
            missing = [seat for seat in dict.fromkeys(seats) if not self.has(seat)]
            if not missing:
                return
            if len(self._used) > _REMEMBERED:
                self._used.clear()
            await self.make_list()
            arguments = self._with_priorities if priority else self._arguments
            for seat in missing:
                await self._declare(seat_queue(self._exchange, seat), arguments)
            # Behind the declarations, or a deletion by a leader that found one empty might be the later word; and
            # before the first job, or nobody would look for that.
            record = {"all": [list(seat) for seat in missing]}
            try:
                await self.write(record)
            except Unroutable:
                await self.make_list(again=True)
                await self.write(record)
            now = time.monotonic()
            self._used |= dict.fromkeys(missing, now)

    def forget(self, seat: Seat) -> None:
        """Its queue has been deleted: make it again next time."""
        self._used.pop(seat, None)

    async def make_list(self, *, again: bool = False) -> None:
        """See that the list is there; `again` if it may have been deleted."""
        if not self._listed or again:
            await self._declare(list_queue(self._exchange), self._arguments)
            self._listed = True

    async def write(self, record: Mapping[str, Any]) -> None:
        """Add a record to the list; returns once it is stored."""
        properties = spec.BasicProperties(delivery_mode=PERSISTENT, content_type="application/json")
        publisher = await self._publisher()
        await publisher.send("", list_queue(self._exchange), properties, json.dumps(record).encode())

    async def are_there(self) -> bool:
        """Whether anybody has ever made one."""
        channel = await self._link.channel()
        try:
            await channel.call(channel.raw.queue_declare, list_queue(self._exchange), passive=True)
        except PalermoError:
            if channel.missing:
                return False
            raise
        await channel.close()
        return True

    async def _declare(self, name: str, arguments: Mapping[str, Any]) -> None:
        if self._channel is None or not self._channel.is_open:
            self._channel = await self._link.channel()
        channel = self._channel
        try:
            await channel.call(channel.raw.queue_declare, name, durable=True, arguments=arguments)
        except PalermoError:
            if channel.code != PRECONDITION_FAILED:  # there already, by other arguments
                raise
