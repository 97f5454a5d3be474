"""The leader: the one session that decides about delayed jobs, and publishes them when they are due.

A session leads as long as its connection holds the exclusive queue `~leader`, which RabbitMQ frees the moment that
the connection ends. The leader consumes and publishes on that same connection. So a leader that is cut off can do
nothing at all: the jobs that it held have gone back to the queues of their time slots.

The leader holds the jobs of near time slots (due_jobs.py). It spreads the jobs of a farther time slot over shorter ones
when that time slot comes near (due_jobs.py). Each job is published and confirmed before it is acknowledged, so a
kill at any instant loses none, and doubles at most the jobs that were being confirmed.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.connection import Connection, open_connection
from palermo.brokers.rabbitmq.amqp.mutex import Mutex
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.amqp.rpc import Responder, Send
from palermo.brokers.rabbitmq.leadership import operations
from palermo.brokers.rabbitmq.leadership.fair_scheduler import FairScheduler
from palermo.brokers.rabbitmq.leadership.limits import LeaderLimits
from palermo.brokers.rabbitmq.leadership.operations import BriefOperation, Operation, leader_queue
from palermo.brokers.rabbitmq.publishing.declarer import Declarer
from palermo.brokers.rabbitmq.publishing.job_destinations import DelayQueues
from palermo.brokers.rabbitmq.publishing.name_list import NameList
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.brokers.rabbitmq.scheduling.due_jobs import DelayReader, DueJobs, FarReader, NearReader
from palermo.brokers.rabbitmq.scheduling.recurring_jobs import RecurringJobs
from palermo.brokers.rabbitmq.scheduling.scheduled_listing import ScheduledListing
from palermo.brokers.rabbitmq.unique import orphaned_keys
from palermo.brokers.rabbitmq.unique.unique_keys import UniqueKeys
from palermo.contract.broker import SessionParameters
from palermo.contract.clock import wall_clock
from palermo.contract.scheduled import MOVE, RUN, AlteredJob, OnJobs, ScheduledFilter, ScheduledPage, ignore_jobs
from palermo.core.job_edit import JobEdit
from palermo.core.message import Message
from palermo.core.time_slots import KEPT_AFTER_END, TimeSlot
from palermo.core.topology import amqp_queue
from palermo.core.unique_keys import lock_of
from palermo.errors import BrokerRefused, PalermoError, PublishRefused

T = TypeVar("T")

#: Seconds between two checks which time slots come near or are over.
_LOOK_EVERY = 0.5

#: Time slots that come near within this many seconds are opened before a request reads others, which may take as long.
_AHEAD = 60.0

#: Seconds. RabbitMQ notices within two or three heartbeats that a leader is cut off; then another takes over.
_HEARTBEAT = 5


class Leader:
    """The leader, from its election to the end of its connection."""

    def __init__(
        self,
        exchange: str,
        connection: Connection,
        responder: Responder,
        outbox: Outbox,
        due_jobs: DueJobs,
        recurring_jobs: RecurringJobs,
        unique_keys: UniqueKeys,
        fair_scheduler: FairScheduler,
    ) -> None:
        self._recurring_jobs = recurring_jobs
        #: The keys of unique jobs.
        self.unique_keys = unique_keys
        #: The tenants.
        self.fair_scheduler = fair_scheduler
        self._limits = LeaderLimits(exchange, connection, due_jobs)
        self._exchange = exchange
        self._connection = connection
        self._responder = responder
        self._outbox = outbox
        self._due_jobs = due_jobs
        self._now = wall_clock
        self._runs = False
        self._readers: dict[str, DelayReader] = {}
        #: The names of the time slots that this leader has ever opened.
        self._seen: set[str] = set()
        #: The names of the time slots that are left alone, since a request reads them.
        self._reading: set[str] = set()
        #: Locks: one to open time slots, one to show or change scheduled jobs.
        self._opening = asyncio.Lock()
        self._listing_turn = asyncio.Lock()
        self._news = asyncio.Event()
        self._scheduled_listing = ScheduledListing(exchange, connection, outbox, self._leaving, unique_keys.as_they_run)
        self._delay_queues: DelayQueues = outbox.delay_queues
        self._slot_names: NameList[str] = NameList(
            self._delay_queues.names,
            connection,
            outbox.open,
            parse=lambda name: str(TimeSlot.parse(name, 0.0)),
            plain=str,
            news=lambda _: self._news.set(),
        )

    @classmethod
    async def take(
        cls, session: SessionParameters, declarer: Callable[[Connection], Declarer], fired: OnJobs = ignore_jobs
    ) -> "Leader | None":
        """Become the leader, on a new connection; None if another session leads. The caller closes it."""
        connection = await open_connection(session, f"{session.name} clock", heartbeat=_HEARTBEAT)
        try:
            queue = leader_queue(session.exchange)
            channel = await Mutex(queue).take(connection)
            if channel is not None:
                # A publisher of its own: one that publishes to queues ends with the first queue that refuses.
                responder = Responder(channel, queue, await Publisher.open(connection))
                outbox = Outbox(session, connection, declarer(connection))
                due_jobs = DueJobs(connection, outbox.open, outbox.destinations, now=wall_clock)
                states = versions.arguments(session.queue_type, connection.version)
                publisher = await outbox.open()
                recurring_jobs = RecurringJobs(
                    session.exchange,
                    connection,
                    publisher,
                    outbox.destinations,
                    states,
                    now=wall_clock,
                    fired=fired,
                )
                unique_keys = UniqueKeys(session.exchange, connection, outbox, states, channel, now=time.time)
                fair_scheduler = FairScheduler(
                    session.exchange, connection, outbox.destinations, order=session.tenant_order
                )
                return cls(
                    session.exchange,
                    connection,
                    responder,
                    outbox,
                    due_jobs,
                    recurring_jobs,
                    unique_keys,
                    fair_scheduler,
                )
        except BaseException:
            await connection.close()
            raise
        await connection.close()
        return None

    async def close(self) -> None:
        """Stop leading."""
        await self._due_jobs.close()
        await self.unique_keys.close()
        self._responder.close()
        await self._connection.close()

    async def run(self) -> None:
        """Lead until the call is cancelled. Raises the connection's error when the connection is lost."""
        self._runs = True
        beside = (
            self._recurring_jobs.run(),
            self.unique_keys.run(),
            self.fair_scheduler.run(),
            self._limits.run(),
            orphaned_keys.watch(self._exchange, self._connection, self.unique_keys, self._now, self.fair_scheduler.has),
        )
        tasks = [asyncio.ensure_future(work) for work in beside]
        for task in tasks:
            task.add_done_callback(self._on_end)
        try:
            await self._keep(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _on_end(self, task: "asyncio.Task[None]") -> None:
        """Have `_keep` raise the task's error. That counts as read here: `run` may have been cancelled already."""
        self._news.set()
        if not task.cancelled():
            task.exception()

    async def _keep(self, beside: "list[asyncio.Task[None]]") -> None:
        await self._slot_names.read()
        await self._look(self._now())
        await self._responder.start(self._on_request)
        while self._connection.error is None:
            for task in beside:
                if task.done():
                    task.result()
            self._news.clear()
            # Again, since there may have been no list yet, or somebody deleted it.
            await self._slot_names.read()
            await self._look(self._now())
            await self._slot_names.tidy()
            self._scheduled_listing.indexes.forget_unused()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY):
                    await self._news.wait()
        raise self._connection.error

    async def learn(self) -> None:
        """Read which time slots there are, for a session that leads only for one operation."""
        await self._slot_names.read()

    # -- opening and closing time slots

    async def _look(self, now: float) -> None:
        async with self._opening:
            for name in sorted(self._slot_names.names - self._reading):
                time_slot = TimeSlot.parse(name, now)
                reader = self._readers.get(name)
                if reader is not None and reader.closed:
                    del self._readers[name]
                    reader = None
                # Each shortest one is opened once at least: one that begins later may hold jobs that are long overdue.
                wanted = time_slot.opens <= now or (time_slot.shortest and name not in self._seen)
                if reader is None and wanted:
                    await self._open(name, time_slot)
                elif reader is not None and not reader.held and self._is_over(time_slot, now):
                    await self._end(name, time_slot, reader)

    @staticmethod
    def _is_over(time_slot: TimeSlot, now: float) -> bool:
        # Names of shortest time slots come round again: when one is over, its name already stands for the next one.
        return time_slot.opens > now if time_slot.shortest else time_slot.ends + KEPT_AFTER_END < now

    async def _open(self, name: str, time_slot: TimeSlot) -> None:
        reader: DelayReader
        if time_slot.shortest:
            reader = NearReader(self._exchange, self._connection, time_slot, self._due_jobs)
        else:
            reader = FarReader(self._exchange, self._connection, time_slot, self._delay_queues, self._outbox.open)
        self._readers[name] = reader
        self._seen.add(name)
        self._scheduled_listing.indexes.forget(time_slot)
        await reader.open()
        if reader.closed:
            # Someone deleted its queue. A session that makes it again lists it again.
            self._slot_names.names.discard(name)
            del self._readers[name]

    async def _end(self, name: str, time_slot: TimeSlot, reader: DelayReader) -> None:
        """Stop reading a time slot that is over. Delete the queue of a long one, unless a job has come into it."""
        await reader.leave()
        self._readers.pop(name, None)
        if not time_slot.shortest and await self._delay_queues.delete(time_slot):
            self._slot_names.names.discard(name)
            self._seen.discard(name)

    # -- operations

    def _on_request(self, request: Mapping[str, Any], send: Send) -> Awaitable[Mapping[str, Any]] | Mapping[str, Any]:
        operation = operations.from_plain(request)
        # Fast path: most starts and permits need no task, and are answered on the channel that they came on.
        now = self._reply_now(operation)
        return self._reply(operation, send) if now is None else now

    def _reply_now(self, operation: Operation[Any]) -> Mapping[str, Any] | None:
        """The values of the reply if nothing has to be waited for, else None. They are to be sent at once."""
        match operation:
            case operations.StartJob(message, worker, run, again):
                self.unique_keys.touch()
                start = self.unique_keys.start_now(message, worker=worker, run=run, again=again)
                return None if start is None else operation.reply.write(start)[-1].values
            case operations.RequestPermit() | operations.EndRun() | operations.ListLimits() if self._limits.knows:
                self.unique_keys.touch()
                return operation.reply.write(self._decide_limit(operation))[-1].values
        return None

    def _decide_limit(self, operation: operations.RequestPermit | operations.EndRun | operations.ListLimits) -> Any:
        match operation:
            case operations.RequestPermit(demand, id, worker):
                return self._limits.request(demand, id=id, worker=worker)
            case operations.EndRun(key, id, worker):
                return self._limits.end(key, id=id, worker=worker)
            case operations.ListLimits():
                return self._limits.known()

    async def _reply(self, operation: Operation[Any], send: Send) -> Mapping[str, Any]:
        try:
            *parts, last = operation.reply.write(await self.handle(operation))
        except PalermoError as error:
            for name, reported in operation.errors.items():
                if isinstance(error, reported):
                    return {name: str(error)}
            raise
        for part in parts:
            send(part)
        return last.values or {}

    async def handle(self, operation: Operation[T]) -> T:
        """Do the operation. Returns its reply."""
        reply: T
        if not isinstance(operation, BriefOperation):
            reply = await self._handle(operation)
            return reply
        self.unique_keys.touch()
        try:
            reply = await self._handle(operation)
        except BrokerRefused as error:
            raise PublishRefused(str(error)) from error
        finally:
            self.unique_keys.touch()
        return reply

    async def _handle(self, operation: Operation[Any]) -> Any:
        keys, tenants = self.unique_keys, self.fair_scheduler
        match operation:
            case operations.StartJob(message, worker, run, again):
                return await keys.start(message, worker=worker, run=run, again=again)
            case operations.EnqueueUnique(claims):
                return await keys.enqueue(claims)
            case operations.ReadmitJobs(messages):
                return await keys.readmit(messages)
            case operations.RemoveJobs(jobs):
                return await keys.gone(jobs)
            case operations.CancelJobs(ids):
                return await keys.cancelled(ids)
            case operations.FreeKeys(names):
                return await keys.free(names)
            case operations.EmptyQueue(queue, delete):
                return await self._empty(queue, delete=delete)
            case operations.ListKeys(text, offset, limit, exact):
                return await (keys.named(text) if exact else keys.page(text, offset=offset, limit=limit))
            case operations.ListReplaced(names):
                return await keys.replaced(names)
            case operations.RequestPermit() | operations.EndRun() | operations.ListLimits():
                await self._limits.learn()
                return self._decide_limit(operation)
            case operations.ListScheduled(chosen, offset, limit):
                return await self._show(chosen, offset=offset, limit=limit)
            case operations.ListingProgress():
                return self._scheduled_listing.progress
            case operations.AlterScheduled(chosen, action, at, apart):
                return await self._alter(chosen, action, at, apart=apart)
            case operations.EditScheduled(id, edit):
                return await self._edit(id, edit)
            case operations.ListRecurring():
                return await self._recurring_jobs.entries()
            case operations.ChangeRecurring(change):
                return await self._recurring_jobs.change(change)
            case operations.CountTenantJobs():
                return await tenants.totals()
            case operations.ListTenants(queue):
                return await tenants.tenants(queue)
            case operations.ListTenantNames(queue):
                return await tenants.names(queue)
            case operations.GiveBackTenantJobs(queue, still):
                return await tenants.give_back(queue, stopped=still)
            case operations.ClearTenants(queue, tenant):
                return await self._clear(queue, tenant)
        raise TypeError(operation)

    async def _empty(self, queue: str, *, delete: bool) -> int | None:
        """Purge or delete a queue, and before that free the keys of the jobs that wait in it."""
        count: int | None = None
        await self.fair_scheduler.learn()

        async def empty() -> None:
            nonlocal count
            # The tenants' queues first, so that none of their jobs comes into the queue after it is emptied.
            apart = await self.fair_scheduler.clear(queue, None)
            empty = self._connection.delete if delete else self._connection.purge
            count = await empty(amqp_queue(self._exchange, queue))
            if count is not None:
                count += apart

        await self.unique_keys.emptied(queue, empty)
        return count

    async def _clear(self, queue: str, tenant: str | None) -> int:
        """Remove the waiting jobs of one tenant of a queue, or of all with None; free their keys. Returns how many."""
        removed = 0
        await self.fair_scheduler.learn()

        async def clear() -> None:
            nonlocal removed
            removed = await self.fair_scheduler.clear(queue, tenant)

        if await self.unique_keys.is_needed():
            await self.unique_keys.emptied(queue, clear, tenant=tenant, apart=True)
        else:
            await clear()
        return removed

    async def _leaving(self, jobs: list[Message]) -> None:
        """Free the keys of these scheduled jobs, which are about to be removed."""
        locks = [(lock.key, job.id) for job in jobs if (lock := lock_of(job)) is not None]
        if locks:
            await self.unique_keys.gone(locks)

    async def _show(self, chosen: ScheduledFilter, *, offset: int, limit: int) -> ScheduledPage:
        """See palermo.contract.scheduled.ScheduledJobs.scheduled."""
        async with self._listing_turn, self._untouched() as lying:
            try:
                return await self._scheduled_listing.browse(
                    chosen, offset=offset, limit=limit, held=self._due_jobs.jobs(), lying=lying
                )
            finally:
                self._scheduled_listing.progress = None

    async def _alter(self, chosen: ScheduledFilter, action: str, at: float | None, *, apart: bool) -> list[AlteredJob]:
        """See palermo.contract.scheduled.ScheduledJobs.alter_scheduled; `apart` is its failed_per_queue."""
        instant = self._now() if action == RUN or at is None else at
        async with self._listing_turn, self._untouched() as lying:
            return await self._scheduled_listing.alter(
                chosen, action, instant, held=self._due_jobs, lying=lying, apart=apart
            )

    async def _edit(self, id: str, edit: JobEdit) -> list[AlteredJob]:
        """See palermo.contract.scheduled.ScheduledJobs.edit_scheduled."""
        chosen, at = ScheduledFilter(ids=frozenset({id})), edit.run_at or self._now()
        async with self._listing_turn, self._untouched() as lying:
            return await self._scheduled_listing.alter(chosen, MOVE, at, held=self._due_jobs, lying=lying, edit=edit)

    @asynccontextmanager
    async def _untouched(self) -> AsyncIterator[Mapping[TimeSlot, int]]:
        """The time slots whose jobs stay in their queues while the block runs, and how many jobs each has.

        Before that the leader opens the time slots that are due soon, and stops all spreading.
        """
        now = self._now()
        async with self._opening:
            for name in sorted(self._slot_names.names):
                time_slot, reader = TimeSlot.parse(name, now), self._readers.get(name)
                if isinstance(reader, FarReader):
                    await reader.leave()
                    del self._readers[name]
                elif self._runs and reader is None and time_slot.shortest and time_slot.opens <= now + _AHEAD:
                    await self._open(name, time_slot)
            await asyncio.gather(*(reader.caught_up() for reader in self._readers.values()))
            self._reading = self._slot_names.names - set(self._readers)
        try:
            yield await self._delay_queues.counts(TimeSlot.parse(name, now) for name in sorted(self._reading))
        finally:
            self._reading = set()
            self._news.set()
