"""What must exist before a job can be published or consumed: the exchange, the queue, the binding.

Declaring costs half the publishing rate, so it is done once per session and queue. A queue
that is there already with other arguments, or of another type, is used as it is.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable

from palermo.broker import Session
from palermo.brokers.rabbitmq import versions
from palermo.brokers.rabbitmq.link import Channel, Link
from palermo.brokers.rabbitmq.translate import PRECONDITION_FAILED
from palermo.brokers.rabbitmq.wiring import Wiring
from palermo.core.topology import CLASSIC, PRIORITY, QUORUM, amqp_queue
from palermo.errors import BrokerRefused, NotFound, PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Seconds after which the type of a queue of failed jobs is asked again.
_ASK_AGAIN = 60.0

#: Compiled when first used.
_INEQUIVALENT = r"inequivalent arg '(?P<name>[^']+)'.*received (?P<ours>.+) but current is (?P<theirs>.+)$"


class Declarer:
    """Makes queues on one link, each once."""

    def __init__(
        self,
        link: Link,
        exchange: str,
        *,
        kind: str,
        register: Callable[[str], Awaitable[None]],
        adopt: Callable[[str], None],
        wiring: Wiring | None = None,
    ) -> None:
        """`kind` is the type of the queues that it makes.

        `register` is awaited with a queue's name before the queue is made, so that no queue of ours is unknown;
        `adopt` is told of one that was there already, and may be another program's. `wiring` says which queues
        are those of groups that subscribe to events.
        """
        self._link = link
        self._exchange = exchange
        self._kind = kind
        self._register = register
        self._adopt = adopt
        self._wiring = wiring or Wiring(exchange)
        self._kinds: dict[str, str] = {}
        #: The queues that get priorities when they are made.
        self._prioritized: set[str] = set()
        #: The queues that are known to have priorities, and those of which it was said that they have not.
        self._with_priorities: set[str] = set()
        self._without: set[str] = set()
        self._foreign: set[str] = set()
        self._asked: dict[str, float] = {}
        self._said: set[tuple[str, str]] = set()
        self._exchange_made = False
        self._lock = asyncio.Lock()
        self._channel: Channel | None = None

    @classmethod
    def of(
        cls,
        session: Session,
        link: Link,
        *,
        register: Callable[[str], Awaitable[None]],
        adopt: Callable[[str], None],
        wiring: Wiring,
    ) -> "Declarer":
        """One that makes queues as this session has them."""
        made = cls(link, session.exchange, kind=session.queue_type, register=register, adopt=adopt, wiring=wiring)
        made._prioritized |= session.prioritized
        return made

    def forget(self, queue: str) -> None:
        """Declare it anew next time: it was deleted, or the exchange was."""
        self._kinds.pop(queue, None)
        self._foreign.discard(queue)
        self._with_priorities.discard(queue)
        self._exchange_made = False

    def is_foreign(self, queue: str) -> bool:
        """Whether it was made by other rules than ours, by which it may keep its jobs from an idle consumer."""
        return queue in self._foreign

    def has(self, queue: str) -> bool:
        return queue in self._kinds

    async def kind(self, queue: str) -> str:
        """As `ensure`, but what was found long ago is asked again: somebody may have migrated the queue since."""
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
        """A job with a priority goes to this queue, which is there: say once if it will change nothing."""
        kind = self._kinds.get(queue)
        if kind is None or queue in self._with_priorities or queue in self._without:
            return
        self._without.add(queue)
        if why := versions.without_priorities(queue, kind, self._link.version):
            log.warning("priorities change little or nothing in this queue queue=%s reason=%r", queue, why)

    async def ensure(self, queue: str, *, priority: int = 0) -> str:
        """The queue's type, ours unless someone made it otherwise; declares and binds what is missing.

        One that has to be made for a job with a `priority` gets priorities.
        Raises BrokerRefused without the permission, BrokerUnavailable when the link is lost.
        """
        known = self._kinds.get(queue)
        if known is not None:
            return known
        if priority:
            self._prioritized.add(queue)
        async with self._lock:
            if queue not in self._kinds:
                await self._make_exchange()
                if await self.count(queue) is None:
                    await self._register(queue)
                else:
                    self._adopt(queue)
                try:
                    kind = await self._declare(queue)
                except NotFound:
                    # The exchange was deleted since we made it, or the queue before it was bound.
                    self._exchange_made = False
                    await self._make_exchange()
                    kind = await self._declare(queue)
                self._kinds[queue] = kind
                self._asked[queue] = asyncio.get_running_loop().time()
            return self._kinds[queue]

    async def count(self, queue: str) -> tuple[int, int] | None:
        """How many messages wait in the queue, and its consumers; None if it does not exist."""
        channel = await self._open()
        try:
            frame = await channel.call(channel.raw.queue_declare, amqp_queue(self._exchange, queue), passive=True)
        except PalermoError:
            if channel.missing:
                return None
            raise
        return int(frame.method.message_count), int(frame.method.consumer_count)

    async def _open(self) -> Channel:
        if self._channel is None or not self._channel.is_open:
            self._channel = await self._link.channel()
        return self._channel

    async def _make_exchange(self) -> None:
        if self._exchange_made:
            return
        channel = await self._open()
        try:
            await channel.call(channel.raw.exchange_declare, self._exchange, "direct", durable=True)
        except PalermoError as error:
            if channel.code == PRECONDITION_FAILED:
                raise BrokerRefused(
                    f"an exchange {self._exchange!r} exists that is not a durable direct one ({error});"
                    " choose another name with --exchange."
                ) from error
            raise
        self._exchange_made = True

    async def _declare(self, queue: str) -> str:
        name = amqp_queue(self._exchange, queue)
        channel = await self._open()
        kind = self._kind
        prioritized = kind == CLASSIC and queue in self._prioritized and not self._wiring.is_group(queue)
        arguments = versions.arguments(PRIORITY if prioritized else kind, self._link.version)
        if self._wiring.is_group(queue):
            kind, arguments = CLASSIC, {"x-queue-type": CLASSIC}
            channel = await self._make_plain(name)
        try:
            await channel.call(channel.raw.queue_declare, name, durable=True, arguments=arguments)
        except PalermoError as error:
            if channel.code != PRECONDITION_FAILED:
                raise
            kind = self._differs(queue, str(error))
            channel = await self._open()
        else:
            if prioritized:
                self._with_priorities.add(queue)
        await channel.call(channel.raw.queue_bind, name, self._exchange, routing_key=queue)
        await self._wiring.bind(channel, name, queue)
        return kind

    async def _make_plain(self, name: str) -> Channel:
        """Make a queue as programs do that know of no arguments. If it has some, whoever declares it next finds out."""
        channel = await self._open()
        try:
            await channel.call(channel.raw.queue_declare, name, durable=True)
        except PalermoError:
            if channel.code != PRECONDITION_FAILED:
                raise
        return await self._open()

    def _differs(self, queue: str, said: str) -> str:
        """The type of a queue that exists with other arguments, from what the broker said of them."""
        found = re.search(_INEQUIVALENT, said)
        name = found["name"] if found else "its arguments"
        theirs = found["theirs"].split(" (code")[0].rstrip(".") if found else said
        if name == "x-max-priority":
            # It was made with priorities, or without; ours all the same.
            if theirs != "none":
                self._with_priorities.add(queue)
            return CLASSIC
        again = (queue, said) in self._said
        self._said.add((queue, said))
        log.log(
            logging.DEBUG if again else logging.WARNING,
            "queue exists with other arguments and is used as it is queue=%s argument=%s there=%s ours=%s",
            queue,
            name,
            theirs,
            found["ours"] if found else "none",
        )
        if name != "x-queue-type":
            self._foreign.add(queue)
            return self._kind
        return next((kind for kind in (CLASSIC, QUORUM, "stream") if kind in theirs), "unknown")
