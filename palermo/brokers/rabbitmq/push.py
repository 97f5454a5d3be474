"""Taking jobs from one queue: a subscription per slot, each with a prefetch of one, or of some more that wait."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from palermo.broker import Delivery, Take
from palermo.brokers.rabbitmq.declarer import Declarer
from palermo.brokers.rabbitmq.link import Channel, Link
from palermo.brokers.rabbitmq.slot import Slot
from palermo.brokers.rabbitmq.together import together
from palermo.core.prefetch import ONE, Prefetch
from palermo.core.topology import CLASSIC, amqp_queue
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")


class PushSource:
    """All slots of a worker on one queue."""

    def __init__(
        self,
        link: Link,
        declarer: Declarer,
        exchange: str,
        queue: str,
        *,
        slots: int,
        tag: Callable[[int], str],
        prefetch: Prefetch = ONE,
    ) -> None:
        self.link = link
        self.declarer = declarer
        self.queue = queue
        self.amqp_name = amqp_queue(exchange, queue)
        self.tag = tag
        self.prefetch = prefetch
        #: Told of every channel that has ended.
        self.ended: Callable[[Channel], None] = lambda _: None
        #: Whether the queue is to be left alone.
        self.paused = False
        self._told = False
        self._resting: set[asyncio.Task[None]] = set()
        self._slots = [Slot(self, number) for number in range(1, slots + 1)]

    @property
    def queues(self) -> tuple[str, ...]:
        """The one that it serves, unless that is paused."""
        return () if self.paused else (self.queue,)

    async def prepare(self) -> None:
        """Make the queue, and ready what its jobs will come by."""
        await together(*(slot.prepare() for slot in self._slots))

    async def receive(self, slot: int) -> Delivery:
        return await self._slots[slot - 1].receive()

    def offer_to(self, slot: int, take: Take) -> None:
        """Show deliveries first to this, which come while the slot waits for one."""
        self._slots[slot - 1].offer_to(take)

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge one that was taken so, at once: the next job comes only after it."""
        channel, tag = delivery.token
        channel.link.raw.ack(channel.raw, tag)

    def next(self, slot: int) -> None:
        """What was taken as it came is settled, and whoever took it can take another."""
        self._slots[slot - 1].next()

    def allowed(self, kind: str, count: int) -> int:
        """So many a slot may hold of a queue of this type: a quorum queue counts what is given back as failures."""
        if kind == CLASSIC or self.prefetch.most == 1:
            return count
        if not self._told:
            self._told = True
            log.info("prefetch is 1, since the queue counts what is given back queue=%s type=%s", self.queue, kind)
        return 1

    def pause(self, queues: set[str]) -> None:
        """Take nothing from these queues; from all others again."""
        before, self.paused = self.paused, self.queue in queues
        if self.paused == before:
            return
        # It may be deleted, or migrated, before it is served again.
        self.declarer.forget(self.queue)
        for slot in self._slots:
            slot.wake()
            if self.paused:
                self.see_to(self._put_to_rest(slot))

    def see_to(self, work: Awaitable[None]) -> None:
        """Have this done, without waiting for it."""
        task = asyncio.ensure_future(quietly(work))
        self._resting.add(task)
        task.add_done_callback(self._resting.discard)

    async def _put_to_rest(self, slot: Slot) -> None:
        await slot.rest()
        # The pause may have ended meanwhile.
        slot.wake()

    async def rest(self, slot: int) -> None:
        await self._slots[slot - 1].rest()

    async def park(self, delivery: Delivery) -> None:
        """Let the slot go on without this delivery, which stays unsettled."""
        await self._slots[delivery.slot - 1].park()

    def ending(self, delivery: Delivery) -> None:
        """Its job has ended, and it is acknowledged once that is stored."""
        self._slots[delivery.slot - 1].ending(delivery.token)

    def acknowledge(self, delivery: Delivery) -> None:
        """The end of this job is stored."""
        self._slots[delivery.slot - 1].acknowledge(delivery.token)

    def settled(self, delivery: Delivery, *, parked: bool) -> None:
        """A delivery has been settled; the channel of one that was parked has served."""
        channel, _ = delivery.token
        if not parked:
            self._slots[delivery.slot - 1].settled(delivery.token)
        elif channel.is_open:
            channel.raw.close()

    async def close(self) -> None:
        for slot in self._slots:
            await quietly(slot.close())


async def quietly(closing: Awaitable[None]) -> None:
    """Await the end of something whose session may be gone already."""
    try:
        await closing
    except PalermoError:
        return
