"""Purging and deleting a queue, with what hangs on it: name, log of failed jobs, tenants' jobs, keys of what waits."""

from palermo.brokers.rabbitmq.declarer import Declarer
from palermo.brokers.rabbitmq.failed_log import FailedLog
from palermo.brokers.rabbitmq.keys import RabbitmqKeys
from palermo.brokers.rabbitmq.link import Link
from palermo.brokers.rabbitmq.registry import Registry
from palermo.brokers.rabbitmq.tenants import Tenancy
from palermo.core.topology import amqp_queue, is_failed
from palermo.errors import NotFound, PalermoError


class Removal:
    """Takes all that waits in a queue away, for one session."""

    def __init__(
        self,
        exchange: str,
        link: Link,
        declarer: Declarer,
        registry: Registry,
        failed_log: FailedLog,
        *,
        keys: RabbitmqKeys,
        tenants: Tenancy,
    ) -> None:
        self._exchange = exchange
        self._link = link
        self._declarer = declarer
        self._registry = registry
        self._failed_log = failed_log
        self._keys = keys
        self._tenants = tenants

    async def purge(self, queue: str) -> int:
        """See palermo.broker.Broker.purge."""
        count = await self._empty(queue, delete=False)
        if count is None:
            raise _missing(queue)
        await self._failed_log.emptied(queue)
        return count

    async def delete(self, queue: str) -> int:
        """See palermo.broker.Broker.delete."""
        counted = await self._declarer.count(queue)
        if counted is None:
            # The name may outlive a queue that another program deleted.
            if queue in await self._registry.names(self._link):
                await self._registry.remove(queue)
            raise _missing(queue)
        count = await self._empty(queue, delete=True)
        self._declarer.forget(queue)
        await self._registry.remove(queue)
        await self._failed_log.emptied(queue)
        return count or 0

    async def _empty(self, queue: str, *, delete: bool) -> int | None:
        """How many were in it; None if it is not there."""
        if not is_failed(queue) and await self._keys.exist():
            return await self._keys.emptied(queue, delete=delete)
        # First, so that none of theirs comes into the queue that has been emptied.
        apart = 0 if is_failed(queue) else await self._tenants.clear_all(queue)
        channel = await self._link.channel()
        method = channel.raw.queue_delete if delete else channel.raw.queue_purge
        try:
            frame = await channel.call(method, amqp_queue(self._exchange, queue))
        except PalermoError:
            if channel.missing:
                return None
            raise
        await channel.close()
        return int(frame.method.message_count) + apart


def _missing(queue: str) -> NotFound:
    return NotFound(f"no queue {queue!r}; `palermo queues` lists them.")
