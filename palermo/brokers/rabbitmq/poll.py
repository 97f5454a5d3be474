"""Taking jobs from several queues in strict order, or by their shares, at most one per slot.

Prefetch counts per consumer, so a subscription to each of eight queues would hold eight jobs.
While there is work a slot asks the queues in order by basic.get. When all are empty the worker
listens: it subscribes to all of them, takes the first delivery and unsubscribes at once (pika
rejects what races in, back to its old place). Idling costs nothing and a job starts in about 1 ms.

Quorum queues count every give-back towards their delivery limit, so a worker that serves one
is never subscribed: it asks again every few milliseconds.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable

from palermo.broker import Delivery
from palermo.brokers.rabbitmq.bell import Bell
from palermo.brokers.rabbitmq.declarer import Declarer
from palermo.brokers.rabbitmq.link import Channel, Got, Link
from palermo.brokers.rabbitmq.wire import read
from palermo.core.patterns import Place, QueueSelection, drawn
from palermo.core.topology import CLASSIC, amqp_queue
from palermo.errors import BrokerUnavailable, NotFound, PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Seconds between two looks where listening would harm: doubled from the first to the last while nothing comes.
_FIRST_PAUSE = 0.005
_LAST_PAUSE = 0.04


class PollSource:
    """All slots of a worker on several queues, or on a pattern of queues."""

    def __init__(
        self,
        link: Link,
        declarer: Declarer,
        exchange: str,
        selection: QueueSelection,
        *,
        slots: int,
        tag: Callable[[int], str],
    ) -> None:
        self._link = link
        self._declarer = declarer
        self._exchange = exchange
        self._selection = selection
        self._queues: dict[str, str] = {}
        self._places: dict[str, Place] = {}
        self._known: set[str] = set()
        self._paused: set[str] = set()
        self._channels: list[Channel | None] = [None] * slots
        self._waiting: deque[tuple[int, asyncio.Future[Delivery | None]]] = deque()
        self._pause = _FIRST_PAUSE
        #: Told of every channel that has ended.
        self.ended: Callable[[Channel], None] = lambda _: None
        self._bell = Bell(
            link,
            exchange,
            tag=tag(1),
            on_message=self._on_rung,
            on_deleted=self._on_deleted,
            on_end=lambda channel: self.ended(channel),
        )
        #: Those that are not acknowledged yet though their jobs have ended.
        self._ending: set[tuple[Channel, int]] = set()
        self._attending: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues served now, in order of priority; where they share places, as drawn for this once."""
        order = drawn(self._places, random.random) if self._selection.shared else tuple(self._queues)
        return tuple(queue for queue in order if queue not in self._paused and queue in self._queues)

    async def know(self, names: set[str]) -> None:
        """Serve these queues from now on, as far as the selection wants them."""
        known = self._known = set(names)
        chosen: dict[str, str] = {}
        places = self._selection.places(known)
        for queue in places:
            chosen[queue] = await self._declarer.ensure(queue)
        if self._known is not known:
            return  # more was learnt meanwhile, and whoever learnt it sees to it
        if list(chosen) != list(self._queues):
            self._queues, self._places = chosen, places
            self._bell.ring()

    async def receive(self, slot: int) -> Delivery:
        while not self._closed:
            delivery = await self._look(slot)
            if delivery is None:
                delivery = await self._wait(slot)
            if delivery is not None:
                self._pause = _FIRST_PAUSE
                self._wake_one()
                return delivery
        raise BrokerUnavailable("this worker's claim on jobs has been given up.")

    def pause(self, queues: set[str]) -> None:
        """Take nothing from these queues; from all others again."""
        if queues != self._paused:
            for queue in self._paused & set(self._queues) - queues:
                # It may have been migrated meanwhile.
                self._unlearn(queue)
            self._paused = queues
            self._bell.ring()

    async def rest(self, slot: int) -> None:
        """Nothing to do: a slot that does not ask holds nothing."""

    async def park(self, delivery: Delivery) -> None:
        """Let the slot go on without this delivery, which stays unsettled."""
        if self._channels[delivery.slot - 1] is delivery.token[0]:
            self._channels[delivery.slot - 1] = None

    def ending(self, delivery: Delivery) -> None:
        """Its job has ended, and it is acknowledged once that is stored; its slot asks for the next one at once."""
        self._ending.add(delivery.token)

    def acknowledge(self, delivery: Delivery) -> None:
        """The end of this job is stored."""
        channel, tag = delivery.token
        channel.link.raw.ack(channel.raw, tag)
        self._ending.discard(delivery.token)
        self.settled(delivery, parked=False)

    def settled(self, delivery: Delivery, *, parked: bool) -> None:
        """A delivery has been settled; the channel of one that was parked has served."""
        channel, _ = delivery.token
        if delivery.token in self._ending:
            return
        if not self._bell.settled(channel) and parked and channel.is_open:
            channel.raw.close()

    async def close(self) -> None:
        self._closed = True
        if self._attending is not None:
            self._attending.cancel()
            await asyncio.wait({self._attending})

    async def _look(self, slot: int) -> Delivery | None:
        """The first job of the first queue that has one; None if all are empty."""
        for queue in self.queues:
            channel = self._channels[slot - 1]
            if channel is None or not channel.is_open:
                channel = self._channels[slot - 1] = await self._open()
            try:
                got = await channel.get(amqp_queue(self._exchange, queue))
            except PalermoError:
                if not channel.missing:
                    raise
                await self._missing(queue)
                continue
            if got is not None and queue in self._paused:
                channel.raw.basic_nack(got.tag, requeue=True)
            elif got is not None:
                return self._delivery(queue, slot, channel, got)
        return None

    async def _open(self) -> Channel:
        channel = await self._link.channel()
        channel.on_close(lambda: self.ended(channel))
        return channel

    async def _missing(self, queue: str) -> None:
        """A queue was deleted under us: one that we were told to serve is made again, one that we found is left out."""
        self._declarer.forget(queue)
        if queue in self._selection.patterns:
            self._queues[queue] = await self._declarer.ensure(queue)
            log.warning("queue was deleted and is declared again queue=%s", queue)
        else:
            self._queues.pop(queue, None)

    async def _wait(self, slot: int) -> Delivery | None:
        """A delivery that rang the bell, or None: look again."""
        future: asyncio.Future[Delivery | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((slot, future))
        if self._attending is None or self._attending.done():
            self._attending = asyncio.ensure_future(self._attend())
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                delivery = future.result()
                if delivery is not None:
                    give_back(delivery)
            raise
        finally:
            if (slot, future) in self._waiting:
                self._waiting.remove((slot, future))

    async def _attend(self) -> None:
        """Wait on behalf of all idle slots, by the bell or, where that would harm, by the clock."""
        error: PalermoError = BrokerUnavailable("this worker's claim on jobs has been given up.")
        try:
            while self._waiting:
                for queue in [queue for queue in self.queues if not self._queues[queue]]:
                    self._queues[queue] = await self._declarer.ensure(queue)
                if all(self._queues.get(queue) == CLASSIC for queue in self.queues):
                    await self._listen()
                else:
                    await asyncio.sleep(self._pause)
                    self._pause = min(2 * self._pause, _LAST_PAUSE)
                    self._wake_one()
        except PalermoError as raised:
            error = raised
        finally:
            # However it ended, nobody is left waiting for a bell that will not ring.
            while self._waiting:
                _, future = self._waiting.popleft()
                if not future.done():
                    future.set_exception(error)

    async def _listen(self) -> None:
        try:
            await self._bell.listen(self.queues)
        except NotFound:
            # A queue is deleted at this moment. Who looks finds out which, and sees to it.
            self._wake_one()
            await asyncio.sleep(_FIRST_PAUSE)

    def _on_rung(self, queue: str, channel: Channel, got: Got) -> bool:
        """Hand the delivery to an idle slot; False if there is none, or nothing is to be taken from that queue."""
        if queue in self._paused:
            return False
        while self._waiting:
            slot, future = self._waiting.popleft()
            if not future.done():
                future.set_result(self._delivery(queue, slot, channel, got))
                return True
        return False

    def _on_deleted(self, queue: str) -> None:
        self._unlearn(queue)
        self._wake_one()

    def _unlearn(self, queue: str) -> None:
        """Its type is not known any more."""
        self._declarer.forget(queue)
        if queue in self._queues:
            self._queues[queue] = ""

    def _wake_one(self) -> None:
        """Let one idle slot look; if it finds a job it wakes the next."""
        while self._waiting:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return

    def _delivery(self, queue: str, slot: int, channel: Channel, got: Got) -> Delivery:
        return Delivery(
            message=read(got, queue),
            slot=slot,
            token=(channel, got.tag),
            redelivered=got.redelivered,
        )


def give_back(delivery: Delivery) -> None:
    """Back to its queue, unless its channel is gone and the broker has done so."""
    channel, tag = delivery.token
    if channel.is_open:
        channel.raw.basic_nack(tag, requeue=True)
