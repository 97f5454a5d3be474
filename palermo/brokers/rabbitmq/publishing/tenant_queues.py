"""The queues in which the jobs of tenants wait, and the list of them.

Each tenant of a job queue has a durable queue of its own. The publisher that has the first job for it declares it,
then writes its name to the queue `~tenants`, and only then publishes. The leader (fair_scheduler.py) reads that list,
moves the jobs into their job queue, one tenant after another, and deletes a tenant's queue that has been empty for a
while. A publisher whose message then finds no queue makes it again.

RabbitMQ confirms a message that is on its way into a queue that is just being deleted, and drops it. So the leader
deletes only while it holds the exclusive queue `~tenants.deleting`, and spares the queues that the list names by then.
A publisher lists its queues first, and publishes once it has seen that no leader holds that exclusive queue.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.messages import TRANSIENT
from palermo.brokers.rabbitmq.amqp.publisher import Publisher, RecordQueue, Unroutable
from palermo.core.limits import has_reservation
from palermo.core.message import Message
from palermo.core.topology import CLASSIC, PRIORITY, internal

#: Seconds after its last use for which a session assumes that a tenant's queue still exists.
_TRUSTED = 5.0

#: Seconds that a tenant's queue stays empty before it is deleted: longer than any session assumes that it exists.
LINGER = 2 * _TRUSTED

#: Seconds between two checks whether the leader is deleting queues of tenants.
_AGAIN = 0.02

#: The most tenants' queues that a session remembers to have made.
_REMEMBERED = 50_000


class TenantQueue(NamedTuple):
    """One tenant of one job queue."""

    queue: str
    tenant: str

    @classmethod
    def of(cls, message: Message) -> "TenantQueue | None":
        """The tenant and job queue for which the message waits; None for a message that waits in its job queue itself.

        Such a message has no tenant, or a rate limit put it aside: then it has had its tenant's turn already.
        """
        return cls(message.queue, message.tenant) if message.tenant and not has_reservation(message) else None


def tenant_queue_name(exchange: str, tenant_queue: TenantQueue) -> str:
    """The name of a tenant's AMQP queue. It holds a digest: both names together may be too long for AMQP."""
    digest = hashlib.sha256(f"{tenant_queue.queue}\0{tenant_queue.tenant}".encode(errors="surrogatepass")).hexdigest()
    return internal(exchange, f"tenant.{digest[:32]}")


def browsing_lock(exchange: str) -> str:
    """The exclusive queue by which a session that looks into tenants' queues keeps the leader from deleting any.

    While a session holds a queue's jobs in order to look at them, the queue only seems empty. The leader holds this
    lock while it deletes some.
    """
    return internal(exchange, "tenants.turn")


def deletion_lock(exchange: str) -> str:
    """The exclusive queue that the leader holds while it deletes tenants' queues, so that publishers wait."""
    return internal(exchange, "tenants.deleting")


class TenantQueues:
    """The tenants' queues of one exchange, as one connection sees them."""

    def __init__(self, exchange: str, connection: Connection, publisher: Callable[[], Awaitable[Publisher]]) -> None:
        self._exchange = exchange
        self._connection = connection
        self._publisher = publisher
        # Classic, whatever type job queues have: a broker cannot bear ten thousand quorum queues, as
        # docs/internals/design.md says.
        self._arguments = versions.arguments(CLASSIC, connection.version)
        self._with_priorities = versions.arguments(PRIORITY, connection.version)
        self._used: dict[TenantQueue, float] = {}
        #: The list of the tenants that have a queue.
        self.names = RecordQueue(internal(exchange, "tenants"), connection, publisher, self._arguments)
        self._lock = asyncio.Lock()

    def has(self, tenant_queue: TenantQueue) -> bool:
        """Whether its queue existed a moment ago; if so, this counts as a use of it."""
        used, now = self._used.get(tenant_queue), time.monotonic()
        if used is None or now - used > _TRUSTED:
            return False
        self._used[tenant_queue] = now
        return True

    async def ensure(self, *tenant_queues: TenantQueue, priority: int = 0) -> None:
        """Make their queues where they are missing, and list them for the leader.

        A queue made for jobs with a `priority` has priorities; one that exists without them stays so.
        """
        async with self._lock:
            missing = [tenant_queue for tenant_queue in dict.fromkeys(tenant_queues) if not self.has(tenant_queue)]
            if not missing:
                return
            if len(self._used) > _REMEMBERED:
                self._used.clear()
            arguments = self._with_priorities if priority else self._arguments
            are_new = False
            while True:
                now = time.monotonic()
                are_new = await self._declare_all(missing, arguments) or are_new
                # After the declarations, or a leader that found one empty might delete it after this record; and
                # before the first job, or no leader would look for that job.
                record = {"all": [list(tenant_queue) for tenant_queue in missing]}
                await self.names.write(record)
                if not await self._are_deleted():
                    break
                await asyncio.sleep(_AGAIN)
            # A leader may have died while it deleted one.
            are_new = await self._declare_all(missing, arguments) or are_new
            if are_new:
                await self._connection.persist_queues()
            self._used |= dict.fromkeys(missing, now)

    def forget(self, tenant_queue: TenantQueue) -> None:
        """Note that its queue was deleted, so that it is made again next time."""
        self._used.pop(tenant_queue, None)

    async def are_there(self) -> bool:
        """Whether a tenant's queue was ever made."""
        return await self.names.exists()

    async def _are_deleted(self) -> bool:
        """Whether the leader is deleting queues now."""
        try:
            await (await self._publisher()).send("", deletion_lock(self._exchange), TRANSIENT, b"")
        except Unroutable:
            return False
        return True

    async def _declare_all(self, tenant_queues: list[TenantQueue], arguments: Mapping[str, Any]) -> bool:
        """Make those that are missing. Returns whether one was."""
        are_new = False
        for tenant_queue in tenant_queues:
            name = tenant_queue_name(self._exchange, tenant_queue)
            # One that exists with other arguments is used as it is.
            if not (await self._connection.probe(name)).exists:
                await self._connection.declare(name, arguments)
                are_new = True
        return are_new
