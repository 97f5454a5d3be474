"""Purges and deletes queues, with what belongs to their waiting jobs: names, failed jobs, tenants, keys and steps."""

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.browsing.failed_log import FailedLog
from palermo.brokers.rabbitmq.cluster.facts import QUEUE, Facts
from palermo.brokers.rabbitmq.leadership.key_client import RabbitmqKeys
from palermo.brokers.rabbitmq.leadership.tenant_client import TenantClient
from palermo.brokers.rabbitmq.leadership.workflow_client import RabbitmqWorkflows
from palermo.brokers.rabbitmq.publishing.declarer import Declarer
from palermo.core.topology import amqp_queue, has_controls, is_failed
from palermo.errors import NotFound

_LINE_BREAKS = frozenset("\r\n")


class Removal:
    """Removes all jobs that wait in a queue, for one session."""

    def __init__(
        self,
        exchange: str,
        connection: Connection,
        declarer: Declarer,
        facts: Facts,
        failed_log: FailedLog,
        *,
        keys: RabbitmqKeys,
        tenants: TenantClient,
        workflows: RabbitmqWorkflows,
    ) -> None:
        self._exchange = exchange
        self._connection = connection
        self._declarer = declarer
        self._facts = facts
        self._failed_log = failed_log
        self._keys = keys
        self._tenants = tenants
        self._workflows = workflows

    async def purge(self, queue: str) -> int:
        """See palermo.contract.broker.Broker.purge."""
        count = await self._empty(queue, delete=False)
        if count is None:
            raise _missing(queue)
        await self._failed_log.emptied(queue)
        return count

    async def delete(self, queue: str) -> int:
        """See palermo.contract.broker.Broker.delete."""
        # RabbitMQ would remove the line breaks from the name, and answer for another queue.
        counted = await self._declarer.count(queue) if _LINE_BREAKS.isdisjoint(queue) else None
        if counted is None and has_controls(queue):
            # No NotFound: nobody is shown whether such a name is registered.
            await self._facts.remove(QUEUE, queue)
            return 0
        if counted is None:
            # The name may outlive a queue that another program deleted.
            if queue in (await self._facts.read(self._connection)).queues:
                await self._facts.remove(QUEUE, queue)
            raise _missing(queue)
        count = await self._empty(queue, delete=True)
        self._declarer.forget(queue)
        await self._facts.remove(QUEUE, queue)
        await self._failed_log.emptied(queue)
        return count or 0

    async def _empty(self, queue: str, *, delete: bool) -> int | None:
        """Purge or delete the queue; returns how many jobs were in it, None if it does not exist."""
        if not is_failed(queue) and (await self._keys.exist() or await self._workflows.exist()):
            return await self._keys.emptied(queue, delete=delete)
        # Tenants first, so that none of their jobs comes into the queue after it was emptied.
        apart = 0 if is_failed(queue) else await self._tenants.clear_all(queue)
        empty = self._connection.delete if delete else self._connection.purge
        count = await empty(amqp_queue(self._exchange, queue))
        return None if count is None else count + apart


def _missing(queue: str) -> NotFound:
    return NotFound(f"no queue {queue!r}; `palermo queues` lists them.")
