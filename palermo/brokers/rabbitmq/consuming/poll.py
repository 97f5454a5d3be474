"""Takes jobs from several queues in strict order, or by their shares, at most one per slot.

Prefetch counts per consumer, so a subscription to each of eight queues would hold eight jobs.
While there is work, a slot asks one queue after another by basic.get (polling_slot.py). Queues that were found empty
are left out (queue_order.py). The worker counts their messages together, for all slots at once, and takes none
(QueueCounts).
When all queues are empty, the worker listens: it subscribes to all of them, takes the first delivery and unsubscribes
at once (pika rejects what races in, back to its old place). Idling costs nothing and a job starts in about 1 ms.

A quorum queue counts every requeue towards its delivery limit, so a worker that serves one
never subscribes: it asks again every few milliseconds.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.brokers.rabbitmq.amqp.messages import Got, delivered, read
from palermo.brokers.rabbitmq.consuming.polling_slot import PollingSlot, give_back
from palermo.brokers.rabbitmq.consuming.queue_order import QueueCounts, QueueOrder
from palermo.brokers.rabbitmq.publishing.declarer import Declarer
from palermo.contract.broker import Delivery
from palermo.core.queue_selection import NONE_PAUSED, PausedQueues, QueueRank, QueueSelection, draw_order
from palermo.core.topology import CLASSIC, amqp_queue
from palermo.errors import BrokerUnavailable, NotFound, PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Seconds between two looks if listening would harm a quorum queue: doubled from the first to the last while nothing
#: comes.
_FIRST_PAUSE = 0.005
_LAST_PAUSE = 0.04


class PollSource:
    """All slots of a worker on several queues, or on a pattern of queues."""

    def __init__(
        self,
        connection: Connection,
        declarer: Declarer,
        exchange: str,
        selection: QueueSelection,
        *,
        slots: int,
        tag: Callable[[int], str],
    ) -> None:
        self.connection = connection
        self._declarer = declarer
        self._exchange = exchange
        self._selection = selection
        self._queues: dict[str, str] = {}
        self._places: dict[str, QueueRank] = {}
        self._known: set[str] = set()
        self._paused = NONE_PAUSED
        self._ranking = QueueOrder(random.random)
        self.slots = [PollingSlot(self, number) for number in range(1, slots + 1)]
        self._loop = asyncio.get_running_loop()
        #: The slots that wait for a job to come, and the slots that wait for a look at the empty queues.
        self._waiting: deque[PollingSlot] = deque()
        self._looking: list[PollingSlot] = []
        self._look: asyncio.Task[None] | None = None
        #: Whether there was a look and no job has come since.
        self._looked = False
        self._pause = _FIRST_PAUSE
        #: Called with every channel that has ended.
        self.ended: Callable[[Channel], None] = lambda _: None
        self._queue_counts = QueueCounts(connection, exchange, ended=lambda channel: self.ended(channel))
        self._idle_subscriptions = IdleSubscriptions(
            connection,
            exchange,
            tag=tag(1),
            on_message=self._on_delivery,
            on_deleted=self._on_deleted,
            on_end=lambda channel: self.ended(channel),
        )
        #: Deliveries that are not acknowledged yet though their jobs have ended.
        self._ending: set[tuple[Channel, int]] = set()
        self._attending: asyncio.Task[None] | None = None
        self.closed = False

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues served now, in order of priority; queues that share a place are drawn anew each time."""
        order = draw_order(self._places, random.random) if self._selection.shared else tuple(self._queues)
        return tuple(queue for queue in order if self.takes_from(queue))

    async def know(self, names: set[str]) -> None:
        """Serve these queues from now on, as far as the selection wants them."""
        known = self._known = set(names)
        places = self._selection.places(known)
        kinds = await self._declarer.ensure_registered(queue for queue in places if queue in known)
        chosen = {queue: kinds.get(queue) or await self._declarer.ensure(queue) for queue in places}
        if self._known is not known:
            return  # a later call has learnt more meanwhile, and serves it
        if list(chosen) != list(self._queues):
            self._queues, self._places = chosen, places
            self._rank()

    def pause(self, queues: PausedQueues) -> None:
        """Take nothing from these queues, and from all others again."""
        if queues != self._paused:
            for queue in list(self._queues):
                if queue in self._paused and queue not in queues:
                    # The queue may have been migrated meanwhile.
                    self._unlearn(queue)
            self._paused = queues
            self._rank()

    def ending(self, delivery: Delivery) -> None:
        """Note that the job has ended. It is acknowledged once that is stored; its slot asks for another at once."""
        self._ending.add(delivery.token)

    def acknowledge(self, delivery: Delivery) -> None:
        """Acknowledge the delivery: the end of its job is stored."""
        channel, tag = delivery.token
        channel.connection.raw.ack(channel.raw, tag)
        self._ending.discard(delivery.token)
        self._idle_subscriptions.settled(channel)

    def settled(self, delivery: Delivery, *, parked: bool) -> None:
        """Note that a delivery has been settled; the channel of a parked one is not needed any more."""
        channel, _ = delivery.token
        if not parked:
            self.slots[delivery.slot - 1].settled(delivery)
        if delivery.token in self._ending:
            return
        if not self._idle_subscriptions.settled(channel) and parked and channel.is_open:
            channel.abandon()

    async def close(self) -> None:
        self.closed = True
        for slot in self.slots:
            slot.wake()
        tasks = {task for task in (self._attending, self._look) if task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- what the slots ask

    def turn(self, slot: PollingSlot) -> str:
        """The queue that a slot is to ask now; "" if it is to wait until it is told to look again, or given a job."""
        # If other slots wait, they get a job that comes into an empty queue.
        if not self._waiting and self._ranking.stale(self._loop.time()):
            self._looking.append(slot)
            self._begin_look()
            return ""
        queue = self._ranking.first()
        if queue is None:
            self._waiting.append(slot)
            if self._attending is None or self._attending.done():
                self._attending = asyncio.ensure_future(self._attend())
            return ""
        return queue

    def amqp_name(self, queue: str) -> str:
        """The queue's name in RabbitMQ."""
        return amqp_queue(self._exchange, queue)

    def takes_from(self, queue: str) -> bool:
        """Whether jobs of this queue are to be taken now."""
        return queue not in self._paused and queue in self._queues

    def leave(self, slot: PollingSlot) -> None:
        """Note that the slot does not wait any more."""
        for waiting in (self._waiting, self._looking):
            if slot in waiting:
                waiting.remove(slot)
        self._listen_for_nobody_no_more()

    def found_empty(self, queue: str) -> None:
        """Note that a slot has asked the queue and it was empty."""
        self._ranking.found_empty(queue, self._loop.time())

    def began(self) -> None:
        """Note that a slot has got a job: there may be another one for the next slot."""
        self._pause = _FIRST_PAUSE
        self._looked = False
        if self._waiting:
            self._wake_one()
        elif self._ranking.due(self._loop.time()):
            self._begin_look()

    def returned(self, delivery: Delivery) -> None:
        """Give back a job that came for a slot which does not ask any more."""
        give_back(delivery)
        self._idle_subscriptions.settled(delivery.token[0])

    async def missing(self, queue: str) -> None:
        """Handle a deleted queue: make it again if the worker was told to serve it by name, else leave it out."""
        self._declarer.forget(queue)
        if queue in self._selection.patterns:
            self._queues[queue] = await self._declarer.ensure(queue)
            log.warning("queue was deleted and is declared again queue=%s", queue)
        else:
            self._queues.pop(queue, None)
            self._rank()

    def _rank(self) -> None:
        """Look at the served queues, which have changed, and listen to them."""
        self._ranking.serve({queue: place for queue, place in self._places.items() if self.takes_from(queue)})
        self._looked = False
        self._idle_subscriptions.end_round()

    # -- looking at all that are empty

    def _begin_look(self) -> "asyncio.Task[None]":
        if self._look is None:
            self._look = asyncio.ensure_future(self._look_at_empty())
        return self._look

    async def _look_at_empty(self) -> None:
        """Find out which of the empty queues have jobs by now, for all slots that wait for that."""
        began, queues = self._loop.time(), self._ranking.empty
        full = set(queues)
        try:
            full = await self._queue_counts.full(queues)
        except PalermoError as error:
            # A slot that asks each of them finds out what is wrong, and handles it.
            log.debug("queues cannot be counted, asking each error=%r", str(error))
        finally:
            self._ranking.looked(full, began=began, ended=self._loop.time())
            self._looked, self._look = True, None
            looking, self._looking = self._looking, []
            for slot in looking:
                slot.look()

    async def _attend(self) -> None:
        """Wait on behalf of all idle slots: by subscriptions, or, where those would harm, by looks at intervals."""
        error: PalermoError = BrokerUnavailable("this worker's claim on jobs has been given up.")
        try:
            while self._waiting:
                for queue in [queue for queue in self.queues if not self._queues[queue]]:
                    self._queues[queue] = await self._declarer.ensure(queue)
                if not self._looked:
                    await asyncio.wait({self._begin_look()})
                    if self._ranking.first() is not None:
                        self._wake_one()
                elif all(self._queues.get(queue) == CLASSIC for queue in self.queues):
                    await self._listen()
                else:
                    await asyncio.sleep(self._pause)
                    self._pause = min(2 * self._pause, _LAST_PAUSE)
                    self._looked = False
        except PalermoError as raised:
            error = raised
        finally:
            # However it ended, no slot goes on waiting for a job that nothing will bring.
            while self._waiting:
                self._waiting.popleft().fail(error)

    async def _listen(self) -> None:
        try:
            await self._idle_subscriptions.listen(self.queues)
        except NotFound:
            # A queue has just been deleted. A slot that asks each of them finds out which, and handles it.
            self._ranking.forget()
            self._wake_one()
            await asyncio.sleep(_FIRST_PAUSE)

    def _on_delivery(self, queue: str, channel: Channel, got: Got) -> bool:
        """Hand the delivery to an idle slot; False if there is none, or the queue is paused."""
        if queue in self._paused:
            return False
        self._ranking.found_full((queue,))
        if not self._waiting:
            return False
        slot = self._waiting.popleft()
        slot.take(
            Delivery(message=read(got, queue), slot=slot.number, token=(channel, got.tag), redelivered=got.redelivered)
        )
        return True

    def _on_deleted(self, queue: str) -> None:
        self._unlearn(queue)
        self._ranking.found_full((queue,))
        self._wake_one()

    def _unlearn(self, queue: str) -> None:
        """Forget the queue's type."""
        self._declarer.forget(queue)
        if queue in self._queues:
            self._queues[queue] = ""

    def _wake_one(self) -> None:
        """Let one idle slot look; if it finds a job, it wakes the next."""
        if self._waiting:
            self._waiting.popleft().look()
            self._listen_for_nobody_no_more()

    def _listen_for_nobody_no_more(self) -> None:
        """Stop listening if no slot waits: a job that came would only be given back, and count as redelivered."""
        if not self._waiting:
            self._idle_subscriptions.end_round()


#: Queues that are subscribed to in one go, before the worker checks whether one of them has a job already.
_AT_ONCE = 32


class IdleSubscriptions:
    """Subscribes an idle worker to all its queues. One call of `listen` is one round, which the first delivery ends.

    That delivery is settled on the channel of the subscriptions. While it is unsettled, the next round uses another
    channel: subscribing to a queue that was just deleted closes the channel, and would give a running job back.
    """

    def __init__(
        self,
        connection: Connection,
        exchange: str,
        *,
        tag: str,
        on_message: Callable[[str, Channel, Got], bool],
        on_deleted: Callable[[str], None],
        on_end: Callable[[Channel], None],
    ) -> None:
        """`on_message` says whether an idle slot took the delivery; `on_deleted` is called with a queue that is gone.

        `on_end` is called with a channel that has closed.
        """
        self._connection = connection
        self._exchange = exchange
        self._tag = tag
        self._on_message = on_message
        self._on_deleted = on_deleted
        self._on_end = on_end
        self._channel: Channel | None = None
        self._unsettled: dict[Channel, int] = {}
        self._subscribed: dict[str, str] = {}
        self._arrived: list[tuple[str, Got]] = []
        self._round_over = asyncio.Event()

    async def listen(self, queues: tuple[str, ...]) -> None:
        """Subscribe, wait for the first delivery, unsubscribe, and hand on all that came, first queue first."""
        channel = await self._open()
        self._round_over.clear()
        self._arrived.clear()
        try:
            for start in range(0, len(queues), _AT_ONCE):
                await self._subscribe(channel, queues[start : start + _AT_ONCE])
                if self._round_over.is_set():
                    break
            await self._round_over.wait()
        finally:
            await self._unsubscribe(channel)
        if self._connection.error is not None:
            raise self._connection.error
        self._hand_on(channel, queues)
        if channel is not self._channel and channel not in self._unsettled:
            channel.abandon()

    def end_round(self) -> None:
        """End the round, if one is under way, although nothing came: the worker serves other queues, or is not idle."""
        self._round_over.set()

    def settled(self, channel: Channel) -> bool:
        """Note that a delivery on this channel was settled. False if it did not come by these subscriptions."""
        if channel not in self._unsettled:
            return False
        self._unsettled[channel] -= 1
        if not self._unsettled[channel]:
            del self._unsettled[channel]
            if channel is not self._channel and channel.is_open:
                channel.abandon()
        return True

    async def _open(self) -> Channel:
        channel = self._channel
        if channel is None or not channel.is_open or channel in self._unsettled:
            channel = self._channel = await self._connection.channel()
            channel.on_close(self._round_over.set)
            channel.on_close(lambda: self._on_end(channel))
            channel.raw.add_on_cancel_callback(partial(self._on_cancelled_by_broker, channel))
            await _answered(channel)  # this also sets a prefetch of one for each consumer
        return channel

    async def _subscribe(self, channel: Channel, queues: tuple[str, ...]) -> None:
        # One tag for each queue: they share a channel, and a tag is unique on its channel.
        tags = {f"{self._tag}:{queue}": queue for queue in queues}
        names = {tag: amqp_queue(self._exchange, queue) for tag, queue in tags.items()}
        self._subscribed.update(tags)
        self._connection.raw.listen(channel.raw, names, self._on_delivery)
        await _answered(channel)

    async def _unsubscribe(self, channel: Channel) -> None:
        tags, self._subscribed = list(self._subscribed), {}
        try:
            if channel.is_open:
                self._connection.raw.listen_no_more(channel.raw, tags)
                await _answered(channel)
                self._connection.raw.forget_listening(channel.raw, tags)
        except PalermoError:
            return

    def _hand_on(self, channel: Channel, queues: tuple[str, ...]) -> None:
        arrived, self._arrived = self._arrived, []
        if not channel.is_open:
            return
        for queue, got in sorted(arrived, key=lambda item: queues.index(item[0])):
            if self._on_message(queue, channel, got):
                self._unsettled[channel] = self._unsettled.get(channel, 0) + 1
            else:
                channel.requeue(got.tag)

    def _on_delivery(self, raw: Any, method: Any, properties: Any, body: bytes) -> None:
        queue = method.consumer_tag.removeprefix(f"{self._tag}:")
        # Kept until all subscriptions have ended: a delivery that is given back at once would only come again.
        self._arrived.append((queue, delivered(method, properties, body)))
        self._round_over.set()

    def _on_cancelled_by_broker(self, channel: Channel, frame: Any) -> None:
        if channel is self._channel:
            # A second consumer on it may not get what RabbitMQ delivers to it: see docs/internals/rabbitmq-versions.md.
            self._channel = None
        queue = self._subscribed.pop(frame.method.consumer_tag, None)
        if queue is not None:
            self._on_deleted(queue)
        self._round_over.set()


async def _answered(channel: Channel) -> None:
    """Wait until RabbitMQ has done all that was sent on this channel before, and set a prefetch of one."""
    await channel.prefetch(1)
