"""The fair scheduler: the part of the leader that gives every tenant of a queue its turn (fair_queue.py)."""

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.many_queues import probe_all
from palermo.brokers.rabbitmq.amqp.mutex import Mutex
from palermo.brokers.rabbitmq.leadership import operations
from palermo.brokers.rabbitmq.leadership.fair_queue import FairQueue, TenantState
from palermo.brokers.rabbitmq.leadership.operations import Operation
from palermo.brokers.rabbitmq.leadership.work import Work
from palermo.brokers.rabbitmq.publishing.job_destinations import (
    LINGER,
    TenantQueue,
    browsing_lock,
    deletion_lock,
    tenant_queue_name,
)
from palermo.brokers.rabbitmq.publishing.name_list import NameList
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.brokers.rabbitmq.seconds import HELD, TIDY_EVERY
from palermo.contract.broker import SessionParameters, Tenant
from palermo.core.topology import is_queue_name
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Number of queues deleted at a time, before jobs are moved again and publishers can continue.
_AT_ONCE = 20


class FairScheduler(Work):
    """The duty "tenants": the fair queues of one exchange, in the leader."""

    def __init__(self, session: SessionParameters, connection: Connection, outbox: Outbox, *, stands_in: bool) -> None:
        self._exchange = session.exchange
        self._connection = connection
        self._destinations = destinations = outbox.destinations
        self._order = session.tenant_order
        self._stands_in = stands_in
        # The confirms of many jobs arrive together, so their acks are sent together.
        connection.raw.acks_together = True
        self._fair_queues: dict[str, FairQueue] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._running = False
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._browsing, self._deleting = Mutex(browsing_lock(session.exchange)), Mutex(deletion_lock(session.exchange))
        self._tenant_queues = destinations.tenant_queues
        self._tenant_names: NameList[tuple[str, str]] = NameList(
            self._tenant_queues.names,
            connection,
            destinations.publisher,
            parse=_parse_tenant_queue,
            plain=list,
            news=self._on_tenant_queues,
        )

    def tasks(self) -> Sequence[Awaitable[None]]:
        """See Work.tasks."""
        return () if self._stands_in else (self.run(),)

    async def run(self) -> None:
        """Move jobs until cancelled. Raises the connection's error when the connection is lost."""
        self._running = True
        try:
            while True:
                # Without tenants the queue of their names need not be created.
                if self._tenant_names.names or await self._are_there():
                    await self._tenant_names.read()
                    await self._tenant_names.tidy()
                for fair_queue in list(self._fair_queues.values()):
                    self._start(fair_queue)
                    try:
                        await self._tidy(fair_queue)
                    except PalermoError:
                        if self._connection.error is not None:
                            raise
                        log.debug("cannot tidy tenants queue=%s", fair_queue.queue, exc_info=True)
                await asyncio.wait({self._failed}, timeout=TIDY_EVERY)
                if self._failed.done():
                    self._failed.result()
        finally:
            for task in self._tasks.values():
                task.cancel()

    async def close(self) -> None:
        """Wait for the jobs on their way. Otherwise the next leader would move them again."""
        await asyncio.gather(*(one.under_way.all_answered() for one in self._fair_queues.values()))

    async def _are_there(self) -> bool:
        """Like TenantQueues.are_there. Cheap to call every second."""
        return await (await self._destinations.publisher()).finds(self._tenant_queues.names.name)

    async def learn(self) -> None:
        """Read all tenants whose queues were created before this call."""
        if await self._tenant_queues.are_there():
            await self._tenant_names.reach()

    def _on_tenant_queues(self, tenant_queues: set[tuple[str, str]]) -> None:
        for queue, tenant in tenant_queues:
            if not is_queue_name(queue):
                continue
            fair_queue = self._fair_queues.get(queue)
            if fair_queue is None:
                fair_queue = self._fair_queues[queue] = FairQueue(
                    self._exchange, queue, self._connection, self._destinations, order=self._order
                )
                self._start(fair_queue)
            fair_queue.know(tenant)

    def _start(self, fair_queue: FairQueue) -> None:
        task = self._tasks.get(fair_queue.queue)
        if self._running and (task is None or task.done()):
            task = self._tasks[fair_queue.queue] = asyncio.ensure_future(fair_queue.run())
            task.add_done_callback(self._on_end)

    def _on_end(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self._failed.done():
            self._failed.set_exception(error)
            self._failed.exception()  # mark it as retrieved: there may be no waiter any more

    # -- unused tenants

    async def _tidy(self, fair_queue: FairQueue) -> None:
        now = asyncio.get_running_loop().time()
        stale = [one for one in fair_queue.states.values() if one.in_hand and now - one.active_at > HELD]
        if stale:
            async with fair_queue.turn:
                await fair_queue.requeue(stale)
        idle = [one for one in fair_queue.states.values() if _is_idle(fair_queue, one, now)]
        if not idle:
            return
        async with self._browsing.held(self._connection, patience=0) as alone:
            for start in range(0, len(idle) if alone else 0, _AT_ONCE):
                async with self._deleting.held(self._connection, patience=0) as ours:
                    if not ours:
                        return
                    # A publisher that did not see the start of the deletion has already listed its queues, so read them
                    # now.
                    await self.learn()
                    async with fair_queue.turn:
                        chosen = [one for one in idle[start : start + _AT_ONCE] if _is_idle(fair_queue, one, now)]
                        # Otherwise a job that is just being requeued might be missed, and its queue look empty.
                        if await fair_queue.requeue(chosen):
                            await self._delete(fair_queue, chosen)

    async def _delete(self, fair_queue: FairQueue, states: Iterable[TenantState]) -> None:
        """Delete the queues of these tenants, unless a job has arrived."""
        for state in states:
            # First, because a publisher may recreate the queue, and list it, before RabbitMQ answers the deletion.
            fair_queue.forget(state)
            self._tenant_names.names.discard((fair_queue.queue, state.name))
            gone = False
            try:
                gone = await self._connection.delete_unused(state.queue)
            finally:
                if not gone:
                    self._tenant_names.names.add((fair_queue.queue, state.name))
                    fair_queue.know(state.name)

    # -- requests

    async def handle(self, operation: Operation[Any]) -> Any:
        """See Work.handle."""
        match operation:
            case operations.CountTenantJobs():
                return await self.totals()
            case operations.ListTenants(queue):
                return await self.tenants(queue)
            case operations.RequeueTenantJobs(queue, still):
                return await self.requeue(queue, stopped=still)
            case operations.HasTenantJobs(queue, tenant):
                return await self.has(TenantQueue(queue, tenant))
        raise TypeError(operation)

    async def totals(self) -> dict[str, int]:
        """By job queue, the number of jobs in its tenants' queues."""
        await self.learn()
        return {queue: sum(one.pending for one in await self._listed(queue)) for queue in sorted(self._fair_queues)}

    async def tenants(self, queue: str) -> list[Tenant]:
        """The tenants of a queue, those with most jobs first."""
        await self.learn()
        return await self._listed(queue)

    async def _listed(self, queue: str) -> list[Tenant]:
        fair_queue = self._fair_queues.get(queue)
        states = [] if fair_queue is None else list(fair_queue.states.values())
        probes = await probe_all(self._connection, [state.queue for state in states])
        found = [
            Tenant(name=state.name, pending=probes[state.queue].ready + len(state.in_hand), share=state.share)
            for state in states
        ]
        return sorted(found, key=lambda one: (-one.pending, one.name))

    async def requeue(self, queue: str, *, stopped: bool = False) -> None:
        """Requeue the held jobs of this queue's tenants, for a session that reads all of their jobs.

        With `stopped`, also move no jobs until that session has finished.
        """
        await self.learn()
        fair_queue = self._fair_queues.get(queue)
        if fair_queue is not None:
            async with fair_queue.turn:
                await fair_queue.requeue([one for one in fair_queue.states.values() if one.tag or one.in_hand])
                fair_queue.stopped = fair_queue.stopped or stopped

    async def has(self, tenant_queue: TenantQueue) -> bool:
        """Whether the tenant's own queue has waiting jobs, or might have some."""
        fair_queue = self._fair_queues.get(tenant_queue.queue)
        state = None if fair_queue is None else fair_queue.states.get(tenant_queue.tenant)
        if fair_queue is not None and state is not None and (state.in_hand or tenant_queue.tenant in fair_queue):
            return True
        probe = await self._connection.probe(tenant_queue_name(self._exchange, tenant_queue))
        return probe.exists and bool(probe.messages)


def _is_idle(fair_queue: FairQueue, state: TenantState, now: float) -> bool:
    """Whether this tenant's queue may be deleted: it is still known, and has long been empty."""
    return fair_queue.states.get(state.name) is state and fair_queue.is_idle(state) and now - state.active_at > LINGER


def _parse_tenant_queue(name: Any) -> tuple[str, str]:
    queue, tenant = name
    # Another program's message may have any text as its tenant.
    if not is_queue_name(queue) or not isinstance(tenant, str):
        raise ValueError(f"{name!r} is not the queue of a tenant")
    return TenantQueue(queue, tenant)
