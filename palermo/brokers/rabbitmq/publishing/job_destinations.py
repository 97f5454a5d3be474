"""The destinations of jobs: a job queue, a tenant's queue, or the delay queue of a time slot (amqp/publisher.py)."""

from collections.abc import Awaitable, Callable
from functools import partial

from palermo.brokers.rabbitmq.amqp.messages import Properties
from palermo.brokers.rabbitmq.amqp.publisher import Destination, Publisher
from palermo.brokers.rabbitmq.publishing.declarer import Declarer
from palermo.brokers.rabbitmq.publishing.delay_queues import DelayQueues, queue_of
from palermo.brokers.rabbitmq.publishing.tenant_queues import TenantQueue, TenantQueues, tenant_queue_name
from palermo.contract.broker import SessionParameters
from palermo.core.time_slots import TimeSlot
from palermo.core.topology import CLASSIC, is_failed

#: Where a message goes: a job queue by its name, a tenant's queue, or the delay queue of a time slot.
Place = str | TenantQueue | TimeSlot


class JobDestinations:
    """The destinations of one connection."""

    def __init__(
        self,
        session: SessionParameters,
        declarer: Declarer,
        tenant_queues: TenantQueues,
        delay_queues: DelayQueues,
        publisher: Callable[[], Awaitable[Publisher]],
    ) -> None:
        self._session = session
        self._declarer = declarer
        self.tenant_queues = tenant_queues
        self._delay_queues = delay_queues
        self.publisher = publisher

    def at(self, place: Place, priority: int = 0) -> Destination:
        """The destination for a message with this priority."""
        return Destination(partial(self.ensure, place, priority), partial(self.forget, place))

    async def publish(self, place: Place, properties: Properties, body: bytes, *, priority: int = 0) -> None:
        """Store a message at its place. See palermo.brokers.rabbitmq.amqp.publisher."""

        async def send() -> None:
            await (await self.publisher()).send(*self.route(place), properties, body)

        await self.at(place, priority).publish(send)

    def route(self, place: Place) -> tuple[str, str]:
        """The exchange and the routing key to publish by."""
        exchange = self._session.exchange
        if isinstance(place, str):
            return exchange, place
        return "", tenant_queue_name(exchange, place) if isinstance(place, TenantQueue) else queue_of(exchange, place)

    def has(self, place: Place) -> bool:
        """Whether this connection has made it or found it, so that a message may be sent at once."""
        match place:
            case str():
                return self._declarer.has(place)
            case TenantQueue():
                return self._declarer.has(place.queue) and self.tenant_queues.has(place)
            case _:
                return self._delay_queues.has(place)

    async def ensure(self, place: Place, priority: int = 0) -> str:
        """Make the queue if it is missing, for a message with this priority. Returns the queue's type."""
        match place:
            case str():
                return await self._declarer.ensure(place, priority=0 if is_failed(place) else priority)
            case TenantQueue():
                # The job queue is made as well, so that every listing of queues shows it.
                await self._declarer.ensure(place.queue, priority=priority)
                await self.tenant_queues.ensure(place, priority=priority)
                return CLASSIC
            case _:
                await self._delay_queues.ensure(place)
                return self._session.queue_type

    def forget(self, place: Place) -> None:
        """Note that the queue, or the exchange before it, may be gone."""
        match place:
            case str():
                self._declarer.forget(place)
            case TenantQueue():
                self.tenant_queues.forget(place)
            case _:
                self._delay_queues.forget(place)

    async def count(self, queue: str) -> tuple[int, int] | None:
        """How many messages wait in a job queue, and how many consumers it has; None if it does not exist."""
        return await self._declarer.count(queue)
