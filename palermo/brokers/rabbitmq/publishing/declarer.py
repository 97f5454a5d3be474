"""Declares what must exist before a job is published or consumed: the exchange, the queue, the binding.

Declaring costs half the publishing rate, so it is done once per session and queue. A queue that exists already with
other arguments, or with another type, is used as it is.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.replies import Difference
from palermo.brokers.rabbitmq.publishing.event_topology import EventTopology
from palermo.contract.broker import SessionParameters
from palermo.core.topology import CLASSIC, PRIORITY, QUORUM, amqp_queue, check_queue_name
from palermo.errors import BrokerRefused, NotFound

log = logging.getLogger("palermo.rabbitmq")

#: Seconds after which the type of a queue of failed jobs is looked up again.
_ASK_AGAIN = 60.0


class Declarer:
    """Declares queues on one connection, each once."""

    def __init__(
        self,
        connection: Connection,
        exchange: str,
        *,
        kind: str,
        register: Callable[[str], Awaitable[None]],
        register_found: Callable[[str], None],
        wiring: EventTopology | None = None,
    ) -> None:
        """`kind` is the type of the queues that it makes.

        `register` is awaited with a queue's name before the queue is made, so that no queue of ours is unknown.
        `register_found` is called with a queue that existed already, and may be another program's. `wiring` says which
        queues belong to groups that subscribe to events.
        """
        self._connection = connection
        self._exchange = exchange
        self._kind = kind
        self._register = register
        self._register_found = register_found
        self._wiring = wiring or EventTopology(exchange)
        self._kinds: dict[str, str] = {}
        #: The queues that get priorities when they are made.
        self._prioritized: set[str] = set()
        #: The queues that are known to have priorities, and those that `mind` has checked.
        self._with_priorities: set[str] = set()
        self._without: set[str] = set()
        self._foreign: set[str] = set()
        self._asked: dict[str, float] = {}
        self._said: set[tuple[str, str]] = set()
        self._exchange_made = False
        self._lock = asyncio.Lock()

    @classmethod
    def of(
        cls,
        session: SessionParameters,
        connection: Connection,
        *,
        register: Callable[[str], Awaitable[None]],
        register_found: Callable[[str], None],
        wiring: EventTopology,
    ) -> "Declarer":
        """A declarer with the settings of this session."""
        made = cls(
            connection,
            session.exchange,
            kind=session.queue_type,
            register=register,
            register_found=register_found,
            wiring=wiring,
        )
        made._prioritized |= session.prioritized
        return made

    def forget(self, queue: str) -> None:
        """Declare the queue again next time: the queue or the exchange may be gone."""
        self._kinds.pop(queue, None)
        self._foreign.discard(queue)
        self._with_priorities.discard(queue)
        self._exchange_made = False

    def is_foreign(self, queue: str) -> bool:
        """Whether the queue has arguments other than ours, so that it may rightly keep jobs from an idle consumer."""
        return queue in self._foreign

    def has(self, queue: str) -> bool:
        return queue in self._kinds

    async def kind(self, queue: str) -> str:
        """As `ensure`, but a type that was found long ago is looked up again: somebody may have migrated the queue."""
        now = asyncio.get_running_loop().time()
        async with self._lock:
            if queue in self._kinds and now - self._asked.get(queue, now) > _ASK_AGAIN:
                self._asked[queue] = now
                try:
                    self._kinds[queue] = await self._declare(queue)
                except NotFound:
                    self.forget(queue)
        return await self.ensure(queue)

    def mind(self, queue: str) -> None:
        """Log once if a job's priority changes little or nothing in this queue, which exists."""
        kind = self._kinds.get(queue)
        if kind is None or queue in self._with_priorities or queue in self._without:
            return
        self._without.add(queue)
        if why := versions.without_priorities(queue, kind, self._connection.version):
            log.warning("priorities change little or nothing in this queue queue=%s reason=%r", queue, why)

    async def ensure(self, queue: str, *, priority: int = 0) -> str:
        """The queue's type, ours unless someone made it otherwise; declares and binds what is missing.

        A queue that has to be made for a job with a `priority` gets priorities.
        Raises BrokerRefused without the permission, BrokerUnavailable when the connection is lost, or QueueNameInvalid.
        """
        known = self._kinds.get(queue)
        if known is not None:
            return known
        check_queue_name(queue)
        if priority:
            self._prioritized.add(queue)
        async with self._lock:
            if queue not in self._kinds:
                await self._make_exchange()
                is_new = await self.count(queue) is None
                if is_new:
                    await self._register(queue)
                else:
                    self._register_found(queue)
                try:
                    kind = await self._declare(queue)
                except NotFound:
                    # The exchange was deleted since it was declared, or the queue before it was bound.
                    self._exchange_made = False
                    await self._make_exchange()
                    kind = await self._declare(queue)
                if is_new:
                    await self._connection.persist_queues()
                self._kinds[queue] = kind
                self._asked[queue] = asyncio.get_running_loop().time()
            return self._kinds[queue]

    async def count(self, queue: str) -> tuple[int, int] | None:
        """How many messages wait in the queue, and how many consumers it has; None if it does not exist."""
        probe = await self._connection.probe(amqp_queue(self._exchange, queue))
        return (probe.messages, probe.consumers) if probe.exists else None

    async def _make_exchange(self) -> None:
        if self._exchange_made:
            return
        if difference := await self._connection.declare_exchange(self._exchange, "direct"):
            raise BrokerRefused(
                f"an exchange {self._exchange!r} exists that is not a durable direct one ({difference.text});"
                " choose another name with --exchange."
            )
        self._exchange_made = True

    async def _declare(self, queue: str) -> str:
        name = amqp_queue(self._exchange, queue)
        kind = self._kind
        prioritized = kind == CLASSIC and queue in self._prioritized and not self._wiring.is_group(queue)
        arguments = versions.arguments(PRIORITY if prioritized else kind, self._connection.version)
        if self._wiring.is_group(queue):
            kind, arguments = CLASSIC, {"x-queue-type": CLASSIC}
            # Without arguments, as other programs do. If it has some, the next declaration finds out.
            await self._connection.declare(name)
        difference = await self._connection.declare(name, arguments)
        if difference is not None:
            kind = self._differs(queue, difference)
        elif prioritized:
            self._with_priorities.add(queue)
        async with self._connection.spare_channel() as channel:
            await channel.bind(name, self._exchange, routing_key=queue)
            await self._wiring.bind(channel, name, queue)
        return kind

    def _differs(self, queue: str, difference: Difference) -> str:
        """The type of a queue that exists with other arguments."""
        name, theirs = difference.argument, difference.theirs or difference.text
        if name == "x-max-priority":
            # It was made with priorities or without them, and is ours all the same.
            if theirs != "none":
                self._with_priorities.add(queue)
            return CLASSIC
        again = (queue, difference.text) in self._said
        self._said.add((queue, difference.text))
        log.log(
            logging.DEBUG if again else logging.WARNING,
            "queue exists with other arguments and is used as it is queue=%s argument=%s there=%s ours=%s",
            queue,
            name or "its arguments",
            theirs,
            difference.ours or "none",
        )
        if name != "x-queue-type":
            self._foreign.add(queue)
            return self._kind
        return next((kind for kind in (CLASSIC, QUORUM, "stream") if kind in theirs), "unknown")
