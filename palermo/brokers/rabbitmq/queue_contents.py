"""A session's operations on the jobs in queues: listing, sweeping, purging and deleting.

If jobs may have keys, workflows or tenants, they are removed one by one, together with their keys and steps, at about
10,000 per second. Otherwise RabbitMQ purges the queue.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence

from msgspec.structs import replace

from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.browsing import sweep as sweeping
from palermo.brokers.rabbitmq.cluster.cancels import CancelMarks
from palermo.brokers.rabbitmq.cluster.facts import QUEUE, Facts
from palermo.brokers.rabbitmq.connections import Connections
from palermo.brokers.rabbitmq.leadership.key_client import RabbitmqKeys
from palermo.brokers.rabbitmq.leadership.tenant_client import TenantClient
from palermo.brokers.rabbitmq.leadership.workflow_client import RabbitmqWorkflows
from palermo.brokers.rabbitmq.publishing.declarer import Declarer, QueueRegistration
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.contract.broker import Page, SessionParameters
from palermo.contract.sweep import SweepDecision, SweepProgress
from palermo.core.message import Message
from palermo.core.topology import CLASSIC, QUORUM, amqp_queue, has_controls, is_failed
from palermo.errors import BrokerRefused, BrokerUnavailable, NotBrowsable, NotFound

log = logging.getLogger("palermo.rabbitmq")

_LINE_BREAKS = frozenset("\r\n")


class QueueContents:
    """The jobs of all queues, for one session."""

    def __init__(
        self,
        session: SessionParameters,
        connections: Connections,
        registration: QueueRegistration,
        outbox: Outbox,
        facts: Facts,
        cancels: CancelMarks,
        *,
        keys: RabbitmqKeys,
        tenants: TenantClient,
        workflows: RabbitmqWorkflows,
    ) -> None:
        self._exchange = session.exchange
        self._takes = session.takes
        self._connections = connections
        self._registration = registration
        self._outbox = outbox
        self._facts = facts
        self._cancels = cancels
        self._keys = keys
        self._tenants = tenants
        self._workflows = workflows
        #: Declares queues on the connection for reading, once that is open.
        self._declarer: Declarer | None = None
        self._failed_turn = sweeping.FailedTurn(session.exchange)

    def forget(self, queue: str) -> None:
        """Record that the queue may be missing, or have another type."""
        self._outbox.declarer.forget(queue)
        if self._declarer is not None:
            self._declarer.forget(queue)

    async def browse(self, queue: str, *, offset: int, limit: int, newest: bool, max_body: int) -> Page:
        """See palermo.contract.broker.Broker.browse."""
        connection = await self._connections.to_consume()
        reader = sweeping.Reader(connection, self._exchange, queue, only_look=True, max_body=max_body)
        held = await reader.count()
        kind = await self._kind(connection, queue)
        if kind == QUORUM and is_failed(queue):
            return await self._outbox.failed_log.page(
                connection, queue, held, offset=offset, limit=limit, newest=newest
            )
        if kind != CLASSIC:
            raise NotBrowsable(
                f"queue {queue!r} is a {kind} queue: reading it would count against the delivery limit of its jobs,"
                " so only its counts are shown."
            )
        if is_failed(queue):
            if not limit:
                return Page(messages=(), total=held)  # nothing to read, so other readers need not be awaited
            async with self._failed_turn.held(connection, only_look=True):
                return await sweeping.browse(reader, queue, offset=offset, limit=limit, newest=newest)
        async with self._tenants.alone(reader, queue):
            page = await sweeping.browse(reader, queue, offset=offset, limit=limit, newest=newest)
        if not page.messages:
            return page
        marks = await self._cancels.read(connection)
        messages = page.messages
        try:
            messages = tuple(await self._keys.as_they_run(list(messages), max_body=max_body))
        except BrokerUnavailable as error:
            log.warning("cannot read replaced arguments, showing the old ones error=%r", str(error))
        return replace(page, messages=messages, cancelled=frozenset(one.id for one in messages if marks.find(one)))

    async def sweep(
        self,
        queue: str,
        decide: Callable[[Message], SweepDecision],
        progress: Callable[[SweepProgress], None],
        *,
        only_look: bool,
        ids: Collection[str],
        most: int | None,
    ) -> SweepProgress:
        """See palermo.contract.broker.Broker.sweep."""
        connection = await self._connections.to_consume()
        reader = sweeping.Reader(connection, self._exchange, queue, only_look=only_look)
        held = await reader.count()
        if not is_failed(queue):
            gate, as_they_run, publish = self._gate(queue), self._keys.as_they_run, self._outbox.publish_many
            async with self._tenants.alone(reader, queue):
                return await sweeping.sweep(
                    reader, queue, decide, publish, progress, gate=gate, as_they_run=as_they_run
                )
        logged = await self._declarer_on(connection).kind(queue) == QUORUM
        if logged and only_look:
            return await self._outbox.failed_log.show(connection, queue, held, decide, progress, ids=ids)

        async def store(messages: list[Message]) -> None:
            # The user wants a requeued job to run, and did not see its cancel mark.
            await self.restore(message.id for message in messages)
            await self._outbox.publish_many(messages)

        async with self._failed_turn.held(connection, only_look=only_look) as alone:
            if logged:
                # A worker trims failed jobs, and should not keep their whole log in memory.
                corrects = alone and not ids and not self._takes
                return await self._outbox.failed_log.sweep(
                    reader, queue, decide, store, progress, self._gate(queue), ids=ids, corrects=corrects
                )
            return await sweeping.sweep(
                reader, queue, decide, store, progress, gate=self._gate(queue), ids=ids, most=most
            )

    async def purge(self, queue: str) -> int:
        """See palermo.contract.broker.Broker.purge."""
        count = await self._empty(queue, delete=False)
        if count is None:
            raise _missing(queue)
        await self._outbox.failed_log.emptied(queue)
        return count

    async def delete(self, queue: str) -> int:
        """See palermo.contract.broker.Broker.delete."""
        # RabbitMQ would remove the line breaks from the name, and answer for another queue.
        counted = await self._outbox.declarer.count(queue) if _LINE_BREAKS.isdisjoint(queue) else None
        if counted is None and has_controls(queue):
            # NotFound would reveal whether such a name is registered.
            await self._facts.remove(QUEUE, queue)
            return 0
        if counted is None:
            # The name may outlive a queue that another program has deleted.
            if queue in (await self._facts.read(self._connections.publishing)).queues:
                await self._facts.remove(QUEUE, queue)
            raise _missing(queue)
        _, consumers = counted
        version = self._connections.publishing.version
        if consumers and versions.loses_consumers(version) and await self._outbox.declarer.kind(queue) == QUORUM:
            raise BrokerRefused(
                f"queue {queue!r} cannot be deleted while it has consumers ({consumers}): RabbitMQ before 4.0 may lose"
                f" the consumers of a deleted quorum queue. First run `palermo pause {queue}`, or stop its workers."
            )
        count = await self._empty(queue, delete=True)
        self.forget(queue)
        await self._facts.remove(QUEUE, queue)
        await self._outbox.failed_log.emptied(queue)
        return count or 0

    async def _empty(self, queue: str, *, delete: bool) -> int | None:
        """Purge or delete the queue; return the number of its jobs, None if it doesn't exist."""
        connection, removed = self._connections.publishing, 0
        if not is_failed(queue) and await self._has_more_than_jobs(queue):
            await self._workflows.next_due()  # after this the jobs of all runnable steps are in the queue
            removed = await self._tenants.remove(queue)
            if not delete:
                return removed
        empty = connection.delete if delete else connection.purge
        count = await empty(amqp_queue(self._exchange, queue))
        return None if count is None else count + removed

    async def _has_more_than_jobs(self, queue: str) -> bool:
        """Whether jobs of this queue may have keys or steps, or its tenants their own queues."""
        return await self._keys.exist() or await self._workflows.exist() or bool(await self._tenants.names(queue))

    def _gate(self, queue: str) -> sweeping.Gate:
        async def gate(jobs: list[tuple[Message, Message | None]]) -> Sequence[bool | Message]:
            return await self._workflows.gate(queue, jobs, await self._keys.gate(queue, jobs))

        return gate

    async def restore(self, ids: Iterable[str]) -> None:
        """See palermo.contract.broker.Broker.restore."""
        await self._cancels.restore(ids, await self._cancels.read(await self._connections.to_consume()))

    async def _kind(self, connection: Connection, queue: str) -> str:
        """The type of a queue. Raises BrokerRefused, and NotBrowsable for a job queue."""
        declarer = self._declarer_on(connection)
        if is_failed(queue):
            return await declarer.kind(queue)
        try:
            return await declarer.ensure(queue)
        except BrokerRefused as error:
            raise NotBrowsable(f"only the counts of queue {queue!r} are shown: {error}") from error

    def _declarer_on(self, connection: Connection) -> Declarer:
        self._declarer = self._declarer or self._registration.declarer(connection)
        return self._declarer


def _missing(queue: str) -> NotFound:
    return NotFound(f"no queue {queue!r}; `palermo queues` lists them.")
