"""Declares the exchanges, queues and bindings that must exist before a job or an event is published or consumed.

Declaring costs half the publishing rate, so each session declares a queue only once. An existing queue with other
arguments, or another type, is used unchanged.
"""

import asyncio
import hashlib
import logging
import random
from collections.abc import Iterable
from contextlib import suppress

from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.brokers.rabbitmq.amqp.many_queues import declare_all, probe_all
from palermo.brokers.rabbitmq.amqp.mutex import Mutex
from palermo.brokers.rabbitmq.amqp.replies import Difference
from palermo.brokers.rabbitmq.amqp.stream import REPLACED_WITHIN
from palermo.brokers.rabbitmq.cluster.facts import QUEUE, Facts, fact
from palermo.brokers.rabbitmq.connections import Connections
from palermo.brokers.rabbitmq.seconds import LAST_WORDS, RARELY
from palermo.contract.broker import SessionParameters
from palermo.contract.tasks import wait_for_any
from palermo.core.topics import distributor, gateway
from palermo.core.topology import CLASSIC, LITERAL, PRIORITY, QUORUM, amqp_queue, check_queue_name, internal, is_failed
from palermo.errors import BrokerRefused, BrokerUnavailable, NotFound, PalermoError


class EventTopology:
    """The exchanges of one events prefix, and the patterns by which this session binds its groups' queues.

    Everything is durable and without arguments, because other programs declare the same (docs/internals/wire.md,
    "Events"), and RabbitMQ refuses a declaration with different arguments (406).
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.gateway = gateway(prefix)
        self.distributor = distributor(prefix)
        #: By queue: the patterns to bind it by whenever it is declared.
        self.topics: dict[str, tuple[str, ...]] = {}

    def is_group(self, queue: str) -> bool:
        """Whether this is the name of a group's queue."""
        return queue.removeprefix(LITERAL).startswith(f"{self.prefix}_")

    async def make(self, channel: Channel) -> None:
        """Declare the exchanges and their binding. Raises BrokerRefused if different exchanges have these names."""
        for name, kind in ((self.gateway, "fanout"), (self.distributor, "topic")):
            if difference := await channel.declare_exchange(name, kind):
                raise BrokerRefused(
                    f"exchange {name!r} exists, but is not a durable {kind} exchange ({difference.text}). Choose"
                    " another prefix with the events_prefix setting."
                )
        await channel.call(channel.raw.exchange_bind, self.distributor, self.gateway)

    async def bind(self, channel: Channel, amqp_name: str, queue: str) -> None:
        """Bind a group's queue, `amqp_name` on RabbitMQ, by the patterns known to this session."""
        topics = self.topics.get(queue, ())
        if topics:
            await self.make(channel)
        for topic in topics:
            await channel.bind(amqp_name, self.distributor, routing_key=topic)


#: Seconds, at least and at most, until a found queue is registered; sooner if a caller waits in `done`. Jobs come
#: first. Of many sessions that find a queue at the same time, the first registers it, and most others see that.
_SOON = (0.3, 3.0)


class QueueRegistration:
    """The queues whose names one session must store.

    The name of a queue that Palermo creates is stored before its creation. The name of any other queue is stored when a
    session finds it.
    """

    def __init__(self, session: SessionParameters, facts: Facts, connections: Connections) -> None:
        self._session = session
        #: The exchanges and bindings of groups' queues.
        self.wiring = EventTopology(session.prefix)
        self._facts = facts
        self._connections = connections
        self._connection = connections.publishing
        self._working: asyncio.Task[None] | None = None
        self._found: set[str] = set()
        #: Set while a caller waits in `done`.
        self._hurry = asyncio.Event()

    def declarer(self, connection: Connection) -> "Declarer":
        """The declarer for this connection."""
        return Declarer(self._session, connection, self)

    async def register(self, queue: str) -> None:
        """Store the name of a queue that is about to be created; returns once that is done, or postponed."""
        try:
            await self._facts.stream.write(fact(QUEUE, queue, True))
        except BrokerUnavailable as error:
            if self._connection.error is not None:
                raise
            # A stream that is down must not prevent storing a job: its queue is registered later.
            log.warning("cannot register a queue queue=%s error=%r", queue, str(error))
            self.register_found(queue)

    def register_found(self, queue: str) -> None:
        """Store the name of an existing queue in the background, unless it is registered already."""
        self._found.add(queue)
        if self._working is None or self._working.done():
            self._hurry.clear()
            self._working = asyncio.ensure_future(self._register_all_found())

    async def done(self) -> None:
        """Wait briefly until the found queues are registered, except during an alarm."""
        if self._working is not None and not self._connection.blocked:
            self._hurry.set()
            await asyncio.wait({self._working}, timeout=LAST_WORDS)
            if self._facts.stream.is_down:
                await asyncio.wait({self._working}, timeout=REPLACED_WITHIN)

    async def _register_all_found(self) -> None:
        await wait_for_any(self._hurry, timeout=random.uniform(*_SOON))
        with suppress(PalermoError):  # the session is lost, and the next one finds the queue again
            while self._found:
                found, self._found = self._found, set()
                # During an alarm RabbitMQ doesn't read from a connection that publishes.
                connection = self._connections.consuming or self._connection
                for queue in sorted(found - (await self._facts.read(connection)).queues):
                    # It may have been deleted since.
                    if (await connection.probe(amqp_queue(self._session.exchange, queue))).exists:
                        await self._facts.put(QUEUE, queue)


log = logging.getLogger("palermo.rabbitmq")


class Declarer:
    """Declares queues on one connection, each once."""

    def __init__(self, session: SessionParameters, connection: Connection, registration: QueueRegistration) -> None:
        """`registration` stores the names of the queues."""
        self._connection = connection
        self._exchange = session.exchange
        #: The type of new queues.
        self._kind = session.queue_type
        self._registration = registration
        self._wiring = registration.wiring
        #: The queues that this connection has created or found, with their types.
        self.kinds: dict[str, str] = {}
        #: The queues that get priorities if they are created.
        self._prioritized = set(session.prioritized)
        #: Queues known to have priorities, and those that `warn_of_priority` has checked.
        self._with_priorities: set[str] = set()
        self._without: set[str] = set()
        self._foreign: set[str] = set()
        self._asked: dict[str, float] = {}
        self._said: set[tuple[str, str]] = set()
        self._exchange_made = False
        self._lock = asyncio.Lock()

    def forget(self, queue: str) -> None:
        """Declare the queue again next time. It or the exchange may be missing."""
        self.kinds.pop(queue, None)
        self._foreign.discard(queue)
        self._with_priorities.discard(queue)
        self._exchange_made = False

    def is_foreign(self, queue: str) -> bool:
        """Whether the queue has arguments other than ours. It may then keep jobs from an idle consumer."""
        return queue in self._foreign

    async def kind(self, queue: str) -> str:
        """Like `ensure`, but queries the type again after a while, because the queue may have been migrated."""
        now = asyncio.get_running_loop().time()
        async with self._lock:
            if queue in self.kinds and now - self._asked.get(queue, now) > RARELY:
                self._asked[queue] = now
                try:
                    self.kinds[queue] = await self._declare(queue)
                except NotFound:
                    self.forget(queue)
        return await self.ensure(queue)

    def warn_of_priority(self, queue: str) -> None:
        """Log once if a job's priority has little or no effect in this existing queue."""
        kind = self.kinds.get(queue)
        if kind is None or queue in self._with_priorities or queue in self._without:
            return
        self._without.add(queue)
        if why := versions.without_priorities(queue, kind, self._connection.version):
            log.warning("priorities have little or no effect queue=%s reason=%r", queue, why)

    async def ensure(self, queue: str, *, priority: int = 0) -> str:
        """Declare and bind the queue if necessary; returns its type, which may differ from ours for an existing queue.

        A queue created for a job with a `priority` gets priorities. Raises BrokerRefused without the permission,
        BrokerUnavailable if the connection is lost, or QueueNameInvalid.
        """
        known = self.kinds.get(queue)
        if known is not None:
            return known
        check_queue_name(queue)
        if priority:
            self._prioritized.add(queue)
        async with self._lock:
            if queue not in self.kinds:
                await self._make_exchange()
                is_new = await self.count(queue) is None
                if is_new:
                    kind = await self._make(queue)
                    await self._connection.persist_queues()
                else:
                    self._registration.register_found(queue)
                    kind = await self._make_again(queue)
                log.debug("queue declared queue=%s type=%s new=%s", queue, kind, "yes" if is_new else "no")
                self.kinds[queue] = kind
                self._asked[queue] = asyncio.get_running_loop().time()
                if queue in self._prioritized and not is_failed(queue) and not self._wiring.is_group(queue):
                    self.warn_of_priority(queue)
            return self.kinds[queue]

    async def _make(self, queue: str) -> str:
        """Register a queue and create it. If several sessions do this at the same time, only one registers it."""
        digest = hashlib.sha256(queue.encode(errors="surrogatepass")).hexdigest()[:32]
        making = Mutex(internal(self._exchange, f"making.{digest}"))
        async with making.held(self._connection, patience=0, optional=True) as ours:
            if ours:
                await self._registration.register(queue)
            else:
                self._registration.register_found(queue)  # the other session may die before it has stored the name
            return await self._make_again(queue)

    async def _make_again(self, queue: str) -> str:
        """Create the queue, the exchange and the bindings that are missing. Returns the queue's type."""
        try:
            return await self._declare(queue)
        except NotFound:
            # The exchange, or the queue, was deleted since its declaration.
            self._exchange_made = False
            await self._make_exchange()
            return await self._declare(queue)

    async def ensure_registered(self, queues: Iterable[str]) -> dict[str, str]:
        """The types of the queues among these that are registered and exist with our arguments. The others need
        `ensure`.

        The queries are pipelined, because 3,000 queries one after another took a minute.
        """
        wanted = list(queues)
        async with self._lock:
            plain = [one for one in wanted if one not in self.kinds and self._is_plain(one)]
            if len(plain) > 1:
                await self._make_exchange()
                # A queue or the exchange was deleted, or isn't accessible; `ensure` finds out which.
                with suppress(NotFound, BrokerRefused):
                    self.kinds |= dict.fromkeys(await self._declare_existing(plain), self._kind)
        return {queue: self.kinds[queue] for queue in wanted if queue in self.kinds}

    def _is_plain(self, queue: str) -> bool:
        """Whether the queue is declared with the most common arguments."""
        return queue not in self._prioritized and not self._wiring.is_group(queue)

    async def _declare_existing(self, queues: Iterable[str]) -> list[str]:
        """Declare and bind the existing queues among these. Returns those with our arguments."""
        named = {amqp_queue(self._exchange, queue): queue for queue in queues}
        probes = await probe_all(self._connection, named)
        there = {name: queue for name, queue in named.items() if probes[name].exists and not probes[name].locked}
        arguments = versions.arguments(self._kind, self._connection.version)
        made = await declare_all(self._connection, there, self._exchange, arguments)
        now = asyncio.get_running_loop().time()
        found = [queue for name, queue in there.items() if made[name].error is None]
        self._asked |= dict.fromkeys(found, now)
        return found

    async def count(self, queue: str) -> tuple[int, int] | None:
        """The queue's number of waiting messages and number of consumers; None if it doesn't exist."""
        probe = await self._connection.probe(amqp_queue(self._exchange, queue))
        return (probe.messages, probe.consumers) if probe.exists else None

    async def _make_exchange(self) -> None:
        if self._exchange_made:
            return
        if difference := await self._connection.declare_exchange(self._exchange, "direct"):
            raise BrokerRefused(
                f"exchange {self._exchange!r} exists, but is not a durable direct exchange ({difference.text}). Choose"
                " another name with --exchange."
            )
        self._exchange_made = True

    async def _declare(self, queue: str) -> str:
        name = amqp_queue(self._exchange, queue)
        kind = self._kind
        prioritized = kind == CLASSIC and queue in self._prioritized and not self._wiring.is_group(queue)
        arguments = versions.arguments(PRIORITY if prioritized else kind, self._connection.version)
        if self._wiring.is_group(queue):
            kind, arguments = CLASSIC, {"x-queue-type": CLASSIC}
            # Without arguments, as other programs do. If the queue has some, the next declaration finds out.
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
            # It differs only in its priorities, so it is ours.
            if theirs != "none":
                self._with_priorities.add(queue)
            return CLASSIC
        again = (queue, difference.text) in self._said
        self._said.add((queue, difference.text))
        log.log(
            logging.DEBUG if again else logging.WARNING,
            "queue exists with other arguments, using it unchanged queue=%s argument=%s there=%s ours=%s",
            queue,
            name or "its arguments",
            theirs,
            difference.ours or "none",
        )
        if name != "x-queue-type":
            self._foreign.add(queue)
            return self._kind
        return next((kind for kind in (CLASSIC, QUORUM, "stream") if kind in theirs), "unknown")
