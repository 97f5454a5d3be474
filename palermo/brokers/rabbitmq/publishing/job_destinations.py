"""The destinations of jobs: a job queue, a tenant's queue, or an intake for delayed jobs.

See Destination in amqp/publisher.py.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.many_queues import declare_all, probe_all
from palermo.brokers.rabbitmq.amqp.publisher import Destination, Publisher, RecordQueue
from palermo.brokers.rabbitmq.browsing.failed_log import FailedLog
from palermo.brokers.rabbitmq.publishing.declarer import Declarer
from palermo.brokers.rabbitmq.publishing.handover import unpublishable
from palermo.brokers.rabbitmq.seconds import PATIENCE, SOON
from palermo.contract.broker import SessionParameters
from palermo.contract.clock import wall_clock
from palermo.contract.tasks import together
from palermo.core.due_times import Bucket, Intake
from palermo.core.limits import has_reservation
from palermo.core.message import Message
from palermo.core.topology import CLASSIC, PRIORITY, QUORUM, failed_queue, internal, is_failed
from palermo.errors import PalermoError


def delay_queue_name(exchange: str, place: Intake | Bucket | str) -> str:
    """The AMQP name of the queue of an intake or a bucket, given as an object or by its name."""
    return internal(exchange, f"later.{place}")


#: Seconds after its last use during which a session assumes that a tenant's queue exists.
_TRUSTED = 5.0

#: Seconds that a tenant's queue must be empty before it is deleted: longer than any session assumes that it exists.
LINGER = 2 * _TRUSTED

#: Maximum number of tenants' queues that a session remembers.
_REMEMBERED = 50_000


class TenantQueue(NamedTuple):
    """One tenant of one job queue."""

    queue: str
    tenant: str

    @classmethod
    def of(cls, message: Message) -> "TenantQueue | None":
        """The tenant's queue in which the message waits before the job queue; None if it waits only in the job queue.

        A message without a tenant waits in the job queue. So does one that a rate limit has postponed after its
        tenant's turn.
        """
        return cls(message.queue, message.tenant) if message.tenant and not has_reservation(message) else None


def tenant_queue_name(exchange: str, tenant_queue: TenantQueue) -> str:
    """The AMQP name of a tenant's queue. Contains a digest, because both names together may be too long for AMQP."""
    digest = hashlib.sha256(f"{tenant_queue.queue}\0{tenant_queue.tenant}".encode(errors="surrogatepass")).hexdigest()
    return internal(exchange, f"tenant.{digest[:32]}")


def browsing_lock(exchange: str) -> str:
    """The exclusive queue that a session holds while it reads tenants' queues, so that the leader deletes none.

    While a session holds a queue's jobs, the queue seems empty. The leader holds the same lock while it deletes queues.
    """
    return internal(exchange, "tenants.turn")


def deletion_lock(exchange: str) -> str:
    """The exclusive queue that the leader holds while it deletes tenants' queues. Publishers wait until it is free."""
    return internal(exchange, "tenants.deleting")


class TenantQueues:
    """The tenants' queues of one exchange, on one connection."""

    def __init__(self, exchange: str, connection: Connection, publisher: Callable[[], Awaitable[Publisher]]) -> None:
        self._exchange = exchange
        self._connection = connection
        self._publisher = publisher
        # Classic, whatever type job queues have: a broker can't handle ten thousand quorum queues
        # (docs/internals/decisions/tenants.md).
        self._arguments = versions.arguments(CLASSIC, connection.version)
        self._with_priorities = versions.arguments(PRIORITY, connection.version)
        self._used: dict[TenantQueue, float] = {}
        #: The list of the tenants with queues.
        self.names = RecordQueue(internal(exchange, "tenants"), connection, publisher, self._arguments)
        self._lock = asyncio.Lock()

    def has(self, tenant_queue: TenantQueue) -> bool:
        """Whether its queue existed a moment ago. Counts as a use of the queue."""
        used, now = self._used.get(tenant_queue), time.monotonic()
        if used is None or now - used > _TRUSTED:
            return False
        self._used[tenant_queue] = now
        return True

    async def ensure(self, *tenant_queues: TenantQueue, priority: int = 0) -> None:
        """Create the missing queues of these destinations, and list them for the leader.

        A queue created for jobs with a `priority` has priorities. An existing queue is not changed.
        """
        async with self._lock:
            missing = [tenant_queue for tenant_queue in dict.fromkeys(tenant_queues) if not self.has(tenant_queue)]
            if not missing:
                return
            if len(self._used) > _REMEMBERED:
                self._used.clear()
            arguments = self._with_priorities if priority else self._arguments
            names = [tenant_queue_name(self._exchange, tenant_queue) for tenant_queue in missing]
            are_new = False
            while True:
                now = time.monotonic()
                are_new = await self._declare(missing, arguments) or are_new
                # After the declarations, because a leader that found a queue empty might delete it after reading this
                # record. Before the first job, because no leader would look for it otherwise.
                record = {"all": [list(tenant_queue) for tenant_queue in missing]}
                listing = self.names.write(record)
                await (together(listing, self._connection.persist_queues()) if are_new else listing)
                # If the leader has deleted one of them, it may have forgotten the tenant too, so list it again.
                found = {} if await self._are_deleted() else await probe_all(self._connection, names)
                if found and all(probe.exists for probe in found.values()):
                    break
                await asyncio.sleep(SOON)
            self._used |= dict.fromkeys(missing, now)

    def forget(self, tenant_queue: TenantQueue) -> None:
        """Record that its queue was deleted and must be created again."""
        self._used.pop(tenant_queue, None)

    async def are_there(self, reading: Connection | None = None) -> bool:
        """Whether a tenant's queue was ever created. `reading` is as in RecordQueue.exists."""
        return await self.names.exists(reading)

    async def _are_deleted(self) -> bool:
        """Whether the leader is deleting queues now."""
        return await (await self._publisher()).finds(deletion_lock(self._exchange))

    async def _declare(self, tenant_queues: list[TenantQueue], arguments: Mapping[str, Any]) -> bool:
        """Create the missing queues. Returns whether one was missing, so that the leader must be informed.

        An existing queue with other arguments is used unchanged.
        """
        names = [tenant_queue_name(self._exchange, tenant_queue) for tenant_queue in tenant_queues]
        probes = await declare_all(self._connection, dict(zip(names, names, strict=True)), "", arguments)
        return any(one.error is None and not one.messages and not one.consumers for one in probes.values())


#: The destination of a message: a job queue by its name, a tenant's queue, or an intake.
Place = str | TenantQueue | Intake


class JobDestinations:
    """The destinations of one connection."""

    def __init__(
        self,
        session: SessionParameters,
        declarer: Declarer,
        tenant_queues: TenantQueues,
        intakes: Mapping[Intake, RecordQueue],
        publisher: Callable[[], Awaitable[Publisher]],
        failed_log: FailedLog,
    ) -> None:
        self._session = session
        self._declarer = declarer
        self.tenant_queues = tenant_queues
        self._intakes = intakes
        self.publisher = publisher
        self._failed_log = failed_log

    async def publish(self, place: Place, message: Message) -> None:
        """Store a job at its place. See Destination in amqp/publisher.py."""

        async def send() -> None:
            await (await self.publisher()).send_job(*self.route(place), message)

        await Destination(partial(self.ensure, place, message.priority), partial(self.forget, place)).publish(send)
        await self.note_failed(place, [message])

    async def fail(self, message: Message, error: PalermoError) -> None:
        """Store a job that can never be published in the failed queue, with this error."""
        await self.publish(self.failed_place(message.queue), unpublishable(message, error, now=wall_clock()))

    async def note_failed(self, place: Place, messages: Sequence[Message]) -> None:
        """Log jobs that were stored here, if this is a failed quorum queue, which can't be read."""
        if not isinstance(place, str) or not is_failed(place):
            return
        with suppress(PalermoError, TimeoutError):  # the jobs are stored, and the next sweep corrects the log
            async with asyncio.timeout(PATIENCE):
                kind = await self._declarer.kind(place)
            if kind == QUORUM:
                await self._failed_log.stored(place, messages)

    def failed_place(self, queue: str) -> str:
        """The queue for the failed jobs of a queue."""
        return failed_queue(queue, per_queue=self._session.failed_per_queue)

    def route(self, place: Place) -> tuple[str, str]:
        """The exchange and the routing key for publishing."""
        exchange = self._session.exchange
        if isinstance(place, str):
            return exchange, place
        if isinstance(place, TenantQueue):
            return "", tenant_queue_name(exchange, place)
        return "", delay_queue_name(exchange, place)

    def has(self, place: Place) -> bool:
        """Whether this connection has created or found the queue, so that a message can be sent immediately."""
        match place:
            case str():
                return place in self._declarer.kinds
            case TenantQueue():
                return place.queue in self._declarer.kinds and self.tenant_queues.has(place)
            case _:
                return self._intakes[place].made

    async def ensure(self, place: Place, priority: int = 0) -> str:
        """Create the queue, if it is missing, for a message with this priority. Returns the queue's type."""
        match place:
            case str():
                return await self._declarer.ensure(place, priority=0 if is_failed(place) else priority)
            case TenantQueue():
                # Create the job queue too, so that it appears in lists of queues.
                await self._declarer.ensure(place.queue, priority=priority)
                await self.tenant_queues.ensure(place, priority=priority)
                return CLASSIC
            case _:
                await self._intakes[place].ensure()
                return self._session.queue_type

    def forget(self, place: Place) -> None:
        """Record that the queue, or its exchange, may be missing."""
        match place:
            case str():
                self._declarer.forget(place)
            case TenantQueue():
                self.tenant_queues.forget(place)
            case _:
                self._intakes[place].forget()
