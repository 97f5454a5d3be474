"""The duty of tenants: their jobs are moved into the job queues by turns (fair_scheduler.py)."""

from collections.abc import Awaitable, Sequence
from typing import Any

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.leadership import operations
from palermo.brokers.rabbitmq.leadership.fair_scheduler import FairScheduler
from palermo.brokers.rabbitmq.leadership.operations import Operation
from palermo.brokers.rabbitmq.leadership.work import Work
from palermo.brokers.rabbitmq.publishing.job_destinations import TenantQueue
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.contract.broker import SessionParameters


class TenantDuty(Work):
    """What the leader in tenants does."""

    def __init__(self, session: SessionParameters, connection: Connection, outbox: Outbox, *, stands_in: bool) -> None:
        self._stands_in = stands_in
        self._fair_scheduler = FairScheduler(
            session.exchange, connection, outbox.destinations, order=session.tenant_order
        )

    def tasks(self) -> Sequence[Awaitable[None]]:
        """See Work.tasks."""
        return () if self._stands_in else (self._fair_scheduler.run(),)

    async def close(self) -> None:
        """See Work.close."""
        await self._fair_scheduler.close()

    async def handle(self, operation: Operation[Any]) -> Any:
        """See Work.handle."""
        tenants = self._fair_scheduler
        match operation:
            case operations.CountTenantJobs():
                return await tenants.totals()
            case operations.ListTenants(queue):
                return await tenants.tenants(queue)
            case operations.ListTenantNames(queue):
                return await tenants.names(queue)
            case operations.GiveBackTenantJobs(queue, still):
                return await tenants.give_back(queue, stopped=still)
            case operations.HasTenantJobs(queue, tenant):
                return await tenants.has(TenantQueue(queue, tenant))
            case operations.PurgeTenants(queue, tenant):
                return await tenants.clear(queue, tenant)
        raise TypeError(operation)
