"""One session's access to tenants: asks the leader for a queue's tenants, and reads their queues."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.mutex import Mutex
from palermo.brokers.rabbitmq.browsing.sweep import Reader, sweep
from palermo.brokers.rabbitmq.leadership import operations
from palermo.brokers.rabbitmq.leadership.leader_client import LeaderClient
from palermo.brokers.rabbitmq.publishing.job_destinations import TenantQueue, browsing_lock, tenant_queue_name
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.brokers.rabbitmq.seconds import LONG_PATIENCE
from palermo.contract.broker import Tenant
from palermo.contract.sweep import Keep, Remove, SweepDecision
from palermo.core.message import Message
from palermo.core.topology import is_failed
from palermo.errors import BrokerUnavailable, NotFound


class Leaving(Protocol):
    """Frees the keys and ends the steps of jobs that are about to be removed. `drop_next`: see RabbitmqKeys.leaving."""

    def __call__(self, jobs: list[Message], *, drop_next: bool) -> Awaitable[None]: ...


class TenantClient:
    """See palermo.contract.broker.Tenants."""

    def __init__(
        self,
        exchange: str,
        consuming: Callable[[], Awaitable[Connection]],
        outbox: Outbox,
        leader_client: LeaderClient,
        leaving: Leaving,
    ) -> None:
        """`consuming` opens the connection for reading queues."""
        self._exchange = exchange
        self._mutex = Mutex(browsing_lock(exchange), "another session that reads the queues of tenants")
        self._consuming = consuming
        self._outbox = outbox
        self._leader_client = leader_client
        self._leaving = leaving

    async def of(self, queue: str) -> list[Tenant]:
        return [one for one in await self._known(queue) if one.pending]

    async def _known(self, queue: str) -> list[Tenant]:
        """The tenants that have their own queues for this queue, empty or not."""
        return await self._leader_client.ask(operations.ListTenants(queue)) if await self._are_there() else []

    async def _are_there(self) -> bool:
        return await self._outbox.tenant_queues.are_there(await self._consuming())

    async def totals(self) -> Mapping[str, int]:
        if not await self._are_there():
            return {}
        return await self._leader_client.ask(operations.CountTenantJobs())

    async def clear(self, queue: str, tenant: str) -> int:
        removed = 0
        if await self._are_there():
            with suppress(NotFound):
                removed = await self.remove(queue, tenant)
        if not removed:
            raise NotFound(
                f"no job of tenant {tenant!r} is waiting in queue {queue!r}; `palermo tenants` lists the tenants."
            )
        return removed

    async def remove(self, queue: str, tenant: str | None = None) -> int:
        """Remove the waiting jobs of a queue, or those of one tenant, one by one, with their keys and steps.

        Returns their number. Raises NotFound.
        """

        async def gate(jobs: list[tuple[Message, Message | None]]) -> list[bool]:
            await self._leaving([job for job, _ in jobs], drop_next=tenant is None)
            return [True] * len(jobs)

        def decide(message: Message) -> SweepDecision:
            return Remove() if tenant is None or message.tenant == tenant else Keep()

        reader = Reader(await self._consuming(), self._exchange, queue)
        async with self.alone(reader, queue, tenant):
            swept = await sweep(reader, queue, decide, self._outbox.publish_many, lambda _: None, gate=gate)
        return swept.removed

    @asynccontextmanager
    async def alone(self, reader: Reader, queue: str, only: str | None = None) -> AsyncIterator[None]:
        """Include in the reader the queues of all tenants, or of the tenant `only`.

        In the meantime no such queue is deleted, and the leader neither holds nor moves their jobs. The reader would
        miss jobs that are moved to the job queue, which seems empty while the reader holds its jobs.
        """
        if not await self.names(queue):
            yield
            return
        async with self._mutex.shared(reader.connection, patience=LONG_PATIENCE) as alone:
            if not alone:
                raise BrokerUnavailable("another process is reading the queues of tenants. Try again.")
            await self._leader_client.ask(operations.RequeueTenantJobs(queue, still=True))
            names = [name for name in await self.names(queue) if only in (None, name)]
            reader.add(tenant_queue_name(self._exchange, TenantQueue(queue, name)) for name in names)
            yield

    async def names(self, queue: str) -> list[str]:
        """The tenants that have their own queues for this queue, empty or not."""
        return [] if is_failed(queue) else sorted(one.name for one in await self._known(queue))
