"""One session's view of tenants: it asks the leader which tenants a queue has, and looks into their queues."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress

from msgspec.structs import replace

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.messages import read
from palermo.brokers.rabbitmq.amqp.mutex import Mutex
from palermo.brokers.rabbitmq.browsing import sweep as sweeping
from palermo.brokers.rabbitmq.browsing.sweep import AsTheyRun, Gate, Reader
from palermo.brokers.rabbitmq.leadership import operations
from palermo.brokers.rabbitmq.leadership.key_client import RabbitmqKeys
from palermo.brokers.rabbitmq.leadership.leader_client import LeaderClient
from palermo.brokers.rabbitmq.publishing.job_destinations import TenantQueue, browsing_lock, tenant_queue_name
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.contract.broker import Page, Tenant
from palermo.contract.sweep import Keep, Remove, Stop, SweepDecision, SweepProgress
from palermo.core.message import Message
from palermo.core.queue_selection import PausedQueues
from palermo.core.topology import CLASSIC, amqp_queue, is_failed, is_queue_name
from palermo.errors import BrokerUnavailable, NotFound

#: The most jobs in a paused job queue that are counted by tenant; more jobs without a tenant may wait there.
_MOVED = 1_000

#: Seconds to wait for another session that goes through tenants' queues: to go through them, and to count their jobs.
_PATIENCE, _SHORT_PATIENCE = 30.0, 1.0


class TenantClient:
    """See palermo.contract.broker.Tenants."""

    def __init__(
        self,
        exchange: str,
        consuming: Callable[[], Awaitable[Connection]],
        outbox: Outbox,
        leader_client: LeaderClient,
        keys: RabbitmqKeys,
        paused: Callable[[], Awaitable[PausedQueues]],
    ) -> None:
        """`consuming` opens the connection on which queues are read, and `paused` says which queues are paused."""
        self._exchange = exchange
        self._mutex = Mutex(browsing_lock(exchange), "another session that looks into the queues of tenants")
        self._consuming = consuming
        self._outbox = outbox
        self._leader_client = leader_client
        self._keys = keys
        self._paused = paused

    async def of(self, queue: str) -> list[Tenant]:
        if not await self._are_there():
            return []
        if queue not in await self._paused():
            return await self._leader_client.ask(operations.ListTenants(queue))
        # Jobs whose tenant has had its turn wait in the job queue. It is paused, so looking keeps none from a worker.
        async with self._mutex.shared(await self._consuming(), patience=_SHORT_PATIENCE) as alone:
            if not alone:
                return await self._leader_client.ask(operations.ListTenants(queue))
            await self._leader_client.ask(operations.GiveBackTenantJobs(queue, still=True))
            found = {one.name: one for one in await self._leader_client.ask(operations.ListTenants(queue))}
            for message in await self._moved(queue):
                one = found.get(message.tenant) or Tenant(name=message.tenant, pending=0, share=message.share or 1.0)
                found[message.tenant] = replace(one, pending=one.pending + 1)
        return sorted(found.values(), key=lambda one: (-one.pending, one.name))

    async def _moved(self, queue: str) -> list[Message]:
        """The jobs of tenants that wait in the job queue itself; none if it is not a classic queue."""
        connection = await self._consuming()
        # Without the first question, the second would make the queue.
        exists = (await connection.probe(amqp_queue(self._exchange, queue))).exists
        if not exists or await self._outbox.kind(queue) != CLASSIC:
            return []
        reader = Reader(connection, self._exchange, queue, only_look=True)
        found: list[Message] = []
        try:
            async for _, page in reader.pages(min(_MOVED, await reader.count_all())):
                found += [message for got in page if (message := read(got, queue)).tenant]
        except NotFound:
            pass  # The queue was deleted in the meantime.
        finally:
            await reader.close()
        return found

    async def _are_there(self) -> bool:
        return await self._outbox.tenant_queues.are_there(await self._consuming())

    async def totals(self) -> Mapping[str, int]:
        totals = dict(await self.apart())
        paused = await self._paused()
        # All that is left of a tenant may lie in the job queue: then a new leader knows nothing of it.
        marked = {name for name in paused.names if is_queue_name(name) and not is_failed(name)}
        for queue in marked | {queue for queue in totals if queue in paused}:
            totals[queue] = sum(one.pending for one in await self.of(queue))
        return totals

    async def apart(self) -> Mapping[str, int]:
        """By job queue, how many jobs wait in the queues of its tenants: all but those that have had their turn."""
        if not await self._are_there():
            return {}
        return await self._leader_client.ask(operations.CountTenantJobs())

    async def clear(self, queue: str, tenant: str) -> int:
        found = 0
        if await self._are_there():
            connection = await self._consuming()
            async with self._alone(connection, queue):
                found = await self._leader_client.ask(operations.ClearTenants(queue, tenant))
                # Jobs whose tenant has had its turn wait in the job queue.
                with suppress(NotFound):
                    swept = await sweeping.sweep(
                        Reader(connection, self._exchange, queue),
                        queue,
                        lambda message: Remove() if message.tenant == tenant else Keep(),
                        self._outbox.publish_many,
                        lambda _: None,
                        gate=lambda jobs: self._keys.gate(queue, jobs),
                    )
                    found += swept.removed
        if not found:
            raise NotFound(
                f"no job of tenant {tenant!r} is waiting in queue {queue!r}; `palermo tenants` lists the tenants."
            )
        return found

    async def clear_all(self, queue: str) -> int:
        """Remove the waiting jobs of all tenants of the queue; returns how many."""
        if not await self._are_there():
            return 0
        return await self._leader_client.ask(operations.ClearTenants(queue, None))

    async def browse(self, reader: Reader, queue: str, *, offset: int, limit: int, newest: bool) -> Page:
        """A page of the queue: first its own jobs, then those of its tenants' queues, tenant by tenant."""
        if not await self._names(queue):
            return await sweeping.browse(reader, queue, offset=offset, limit=limit, newest=newest)
        # While the jobs of the job queue are held, the leader would take them for done, and move others there.
        async with self._alone(reader.connection, queue) as names:
            readers = [reader, *self._readers(reader, names)]
            found: list[Message] = []
            total = 0
            for one in reversed(readers) if newest else readers:
                left = limit - len(found)
                try:
                    held = await one.count_all()
                    if left <= 0 or total + held <= offset:
                        total += held
                        continue
                    page = await sweeping.browse(one, queue, offset=max(0, offset - total), limit=left, newest=newest)
                except NotFound:
                    if one is reader:
                        raise
                    continue
                found += page.messages
                total += page.total
            return Page(messages=tuple(found), total=total)

    async def sweep(
        self,
        reader: Reader,
        queue: str,
        decide: Callable[[Message], SweepDecision],
        store: Callable[[list[Message]], Awaitable[object]],
        tell: Callable[[SweepProgress], None],
        gate: Gate,
        as_they_run: AsTheyRun,
    ) -> SweepProgress:
        """Sweep the queue and then its tenants' queues; see palermo.contract.broker.Broker.sweep."""
        if not await self._names(queue):
            return await sweeping.sweep(reader, queue, decide, store, tell, gate=gate, as_they_run=as_they_run)
        stopped = False

        def judge(message: Message) -> SweepDecision:
            nonlocal stopped
            verdict = decide(message)
            stopped = stopped or isinstance(verdict, Stop)
            return verdict

        async with self._alone(reader.connection, queue) as names:
            done = SweepProgress(total=0)
            apart = await self._leader_client.ask(operations.ListTenants(queue))
            total = await reader.count() + sum(one.pending for one in apart)
            for one in [reader, *self._readers(reader, names)]:
                before = done

                def add(swept: SweepProgress, before: SweepProgress = before) -> SweepProgress:
                    return replace(
                        before,
                        total=max(total, before.seen + swept.seen),
                        seen=before.seen + swept.seen,
                        removed=before.removed + swept.removed,
                        moved=before.moved + swept.moved,
                    )

                try:
                    swept = await sweeping.sweep(
                        one, queue, judge, store, lambda each: tell(add(each)), gate=gate, as_they_run=as_they_run
                    )
                except NotFound:
                    if one is reader:
                        raise
                    continue
                done = add(swept)
                if stopped:
                    break
            return done if stopped else replace(done, total=done.seen)

    def _readers(self, like: Reader, names: Iterable[str]) -> list[Reader]:
        return [
            Reader(like.connection, self._exchange, name=name, only_look=like.only_look, max_body=like.max_body)
            for name in names
        ]

    @asynccontextmanager
    async def _alone(self, connection: Connection, queue: str) -> AsyncIterator[list[str]]:
        """The AMQP queues of the tenants. Meanwhile none is deleted, and the leader neither holds nor moves their jobs.

        A caller that is through with the job queue would miss a job that was moved there.
        """
        async with self._mutex.shared(connection, patience=_PATIENCE) as alone:
            if not alone:
                raise BrokerUnavailable("another process is reading the queues of tenants. Try again.")
            await self._leader_client.ask(operations.GiveBackTenantJobs(queue, still=True))
            yield [tenant_queue_name(self._exchange, TenantQueue(queue, name)) for name in await self._names(queue)]

    async def _names(self, queue: str) -> list[str]:
        """The tenants that have a queue of their own beside this one, empty or not."""
        if is_failed(queue) or not await self._are_there():
            return []
        return await self._leader_client.ask(operations.ListTenantNames(queue))
