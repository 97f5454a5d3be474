"""Takes jobs from several queues in strict order, or by their shares, at most one per slot.

Prefetch counts per consumer, so a subscription to each of eight queues would hold eight jobs.
While there is work, a slot asks one queue after another by basic.get (polling_slot.py). Queues that were found empty
are left out (queue_order.py). The worker counts their messages together, for all slots at once, and takes none
(QueueCounts).
When all queues are empty, the worker subscribes to them, with a prefetch of one. A delivery ends the subscription to
its queue alone, and the queue is subscribed to again when a slot has found it empty. So idling costs nothing, and a job
costs the same with ten queues and with three thousand. See IdleSubscriptions.

A quorum queue counts every requeue towards its delivery limit, so a worker that serves one
never subscribes: it asks again every few milliseconds.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec import Struct, field

from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.brokers.rabbitmq.amqp.many_queues import probe_all
from palermo.brokers.rabbitmq.amqp.messages import Got, delivered, read
from palermo.brokers.rabbitmq.consuming.polling_slot import PollingSlot, give_back
from palermo.brokers.rabbitmq.consuming.queue_order import QueueCounts, QueueOrder
from palermo.brokers.rabbitmq.publishing.declarer import Declarer
from palermo.contract.broker import Delivery
from palermo.core.queue_selection import NONE_PAUSED, PausedQueues, QueueRank, QueueSelection, draw_order
from palermo.core.topology import CLASSIC, amqp_queue
from palermo.errors import BrokerUnavailable, NotFound, PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Seconds between two looks whether a deleted queue is there again. RabbitMQ logs each look that finds it missing.
_FIND_EVERY = 60.0

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
            order=self._ranking,
        )
        #: Deliveries that are not acknowledged yet though their jobs have ended.
        self._ending: set[tuple[Channel, int]] = set()
        self._attending: asyncio.Task[None] | None = None
        #: The queues that were found deleted, and the task that looks whether they are there again.
        self._deleted: set[str] = set()
        self._finding: asyncio.Task[None] | None = None
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
        tasks = {task for task in (self._attending, self._look, self._finding) if task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._idle_subscriptions.close()

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
            self._idle_subscriptions.slot_idles()
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
        if not self._waiting:
            # The worker rests or stops: a job that came would only be given back.
            self._idle_subscriptions.end()

    def found_empty(self, queue: str) -> None:
        """Note that a slot has asked the queue and it was empty."""
        self._ranking.found_empty(queue, self._loop.time())

    def began(self) -> None:
        """Note that a slot has got a job: there may be another one for the next slot."""
        self._pause = _FIRST_PAUSE
        self._looked = False
        if self._waiting:
            self._wake_one()
            return
        self._idle_subscriptions.no_slot_idles()
        if self._ranking.due(self._loop.time()):
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
            self._deleted.add(queue)
            if self._finding is None or self._finding.done():
                self._finding = asyncio.ensure_future(self._find_deleted())

    async def _find_deleted(self) -> None:
        """Serve deleted queues again that another program has made. It writes nothing into the registry."""
        while self._deleted and self.connection.error is None:
            await asyncio.sleep(_FIND_EVERY)
            self._deleted &= self._known - self._queues.keys()
            with suppress(PalermoError):  # the next look may find them
                probes = await probe_all(self.connection, [self.amqp_name(queue) for queue in self._deleted])
                there = [queue for queue in self._deleted if probes[self.amqp_name(queue)].exists]
                kinds = {queue: await self._declarer.ensure(queue) for queue in there}
                if kinds:
                    found = kinds | self._queues
                    self._queues = {queue: found[queue] for queue in self._places if queue in found}
                    self._rank()

    def _rank(self) -> None:
        """Look at the served queues, which have changed, and listen to them."""
        served = {queue: place for queue, place in self._places.items() if self.takes_from(queue)}
        self._ranking.serve(served)
        self._looked = False
        self._idle_subscriptions.end(but=served)

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
                classic = all(self._queues.get(queue) == CLASSIC for queue in self.queues)
                # Queues that a slot has found empty just now need not be counted before they are subscribed to.
                if not self._looked and (self._ranking.due(self._loop.time()) or not classic):
                    await asyncio.wait({self._begin_look()})
                    if self._ranking.first() is not None:
                        self._wake_one()
                elif classic:
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
        """Hand the delivery to an idle slot; False if there is none, or the queue is not served."""
        if self.closed or not self.takes_from(queue):
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
            if not self._waiting:
                self._idle_subscriptions.no_slot_idles()


#: Queues that are subscribed to in one go, before the worker checks whether one of them has a job already.
_AT_ONCE = 32

#: While no slot is idle, a worker keeps its subscriptions as long as they bring fewer jobs than one for each so many of
#: them, and no job runs longer than so many seconds for each. Fewer are cheaper to renew than a job is to give back.
_FOR_EACH_RETURN = 16
_KEPT = 0.001


class SubscriptionChannel(Struct, eq=False):
    """A channel, its subscriptions, and what came by them."""

    channel: Channel
    #: The queues by consumer tag.
    queues: dict[str, str] = field(default_factory=dict)
    #: The tags of subscriptions that have ended, for which a delivery may be on its way.
    ended: list[str] = field(default_factory=list)
    #: How many deliveries are unsettled.
    unsettled: int = 0
    #: Whether no subscription may be added.
    retired: bool = False


class IdleSubscriptions:
    """Subscribes an idle worker to its empty queues. A delivery ends the subscription to its queue, and no other.

    The others stay while the job runs: RabbitMQ needs a tenth of a second to renew a thousand. A job that comes while
    no slot is idle goes back at once, and its queue is asked when a slot is free. When such jobs are many, or a job
    runs long, all subscriptions end. Few subscriptions end as soon as no slot is idle.

    A delivery is settled on the channel of its subscription. While it is unsettled, new subscriptions use another
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
        order: QueueOrder,
    ) -> None:
        """`on_message` says whether an idle slot took the delivery; `on_deleted` is called with a queue that is gone.

        `on_end` is called with a channel that has closed; `order` is told which queues are subscribed to.
        """
        self._connection = connection
        self._exchange = exchange
        self._tag = tag
        self._numbers = 0
        self._on_message = on_message
        self._on_deleted = on_deleted
        self._on_end = on_end
        self._order = order
        self._channels: dict[Channel, SubscriptionChannel] = {}
        self._subscribed: dict[str, tuple[SubscriptionChannel, str]] = {}
        #: What has come while queues are being subscribed to; None at other times.
        self._arrived: list[tuple[str, SubscriptionChannel, Got]] | None = None
        self._news = asyncio.Event()
        #: How many jobs went back since a slot was idle, when the last job began, and the timer of the next check.
        self._returned = 0
        self._job_began = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    async def listen(self, queues: tuple[str, ...]) -> None:
        """Subscribe to those of the queues that are not subscribed to yet, and wait until anything comes or changes.

        What comes while it subscribes is handed on afterwards, first queue first.
        """
        self._news.clear()
        self._returned = 0
        new = [queue for queue in queues if queue not in self._subscribed]
        for start in range(0, len(new), _AT_ONCE):
            await self._subscribe(new[start : start + _AT_ONCE])
            if self._news.is_set():
                break
        await self._news.wait()
        if self._connection.error is not None:
            raise self._connection.error

    def slot_idles(self) -> None:
        """Note that a slot waits for a job."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def no_slot_idles(self) -> None:
        """Note that no slot waits for a job, or that one more job has begun since."""
        if not self._subscribed:
            self._news.set()
            return
        self._job_began = self._loop.time()
        if self._returned >= len(self._subscribed) // _FOR_EACH_RETURN:
            self.end()
        elif self._timer is None:
            self._news.set()
            self._timer = self._loop.call_later(self._keeps, self._on_timer)

    @property
    def _keeps(self) -> float:
        return _KEPT * len(self._subscribed)

    def _on_timer(self) -> None:
        self._timer = None
        left = self._job_began + self._keeps - self._loop.time()
        if left <= 0:
            self.end()
        else:
            self._timer = self._loop.call_later(left, self._on_timer)

    def end(self, *, but: Collection[str] = ()) -> None:
        """End all subscriptions, except those to queues that are named."""
        self._end([queue for queue in self._subscribed if queue not in but])
        self._news.set()

    def settled(self, channel: Channel) -> bool:
        """Note that a delivery on this channel was settled. False if it did not come by these subscriptions."""
        used = self._channels.get(channel)
        if used is None or not used.unsettled:
            return False
        used.unsettled -= 1
        self._tidy(used)
        return True

    async def close(self) -> None:
        """End all subscriptions. Returns once no delivery is on its way any more."""
        self.slot_idles()
        self.end()
        for channel in [channel for channel, used in self._channels.items() if used.ended and channel.is_open]:
            await _answered(channel)

    async def _open(self) -> SubscriptionChannel:
        for used in self._channels.values():
            if used.channel.is_open and not used.unsettled and not used.retired:
                return used
        channel = await self._connection.channel()
        used = self._channels[channel] = SubscriptionChannel(channel)
        channel.on_close(lambda: self._on_closed(used))
        channel.raw.add_on_cancel_callback(partial(self._on_cancelled_by_broker, used))
        await _answered(channel)  # this also sets a prefetch of one for each consumer
        return used

    async def _subscribe(self, queues: list[str]) -> None:
        used = await self._open()
        names = {}
        for queue in queues:
            # A tag is never used again: deliveries for an earlier one may still be on their way.
            self._numbers += 1
            tag = f"{self._tag}:{self._numbers}:{queue}"
            used.queues[tag], self._subscribed[queue] = queue, (used, tag)
            names[tag] = amqp_queue(self._exchange, queue)
        before = len(used.ended)
        self._arrived = []
        try:
            self._connection.raw.listen(used.channel.raw, names, partial(self._on_delivery, used))
            await _answered(used.channel)
            self._connection.raw.forget_listening(used.channel.raw, used.ended[:before])
            del used.ended[:before]
            self._order.watch([queue for queue in queues if queue in self._subscribed])
        finally:
            arrived, self._arrived = self._arrived, None
            for queue, by, got in sorted(arrived, key=lambda item: self._order.place(item[0])):
                self._hand_on(queue, by, got)

    def _end(self, queues: Collection[str]) -> None:
        """End the subscriptions to these queues. pika rejects what is on its way, so that it goes back."""
        ended: dict[SubscriptionChannel, list[str]] = {}
        for queue in queues:
            used, tag = self._subscribed.pop(queue)
            del used.queues[tag]
            ended.setdefault(used, []).append(tag)
        for used, tags in ended.items():
            if used.channel.is_open:
                self._connection.raw.listen_no_more(used.channel.raw, tags)
                used.ended += tags
        self._order.unwatch(queues)

    def _tidy(self, used: SubscriptionChannel) -> None:
        """Close a channel that is not needed any more. One is kept for the next subscriptions."""
        if used.unsettled or used.queues or not (used.retired or len(self._channels) > 1):
            return
        # It may be closed already: RabbitMQ says of each deleted queue that its subscription is cancelled.
        if self._channels.pop(used.channel, None) is not None:
            used.channel.abandon()

    def _on_delivery(self, used: SubscriptionChannel, raw: Any, method: Any, properties: Any, body: bytes) -> None:
        queue = used.queues.get(method.consumer_tag)
        if queue is None:
            raw.basic_nack(method.delivery_tag)
            return
        # Ended first: a delivery that goes back would only come again.
        self._end((queue,))
        got = delivered(method, properties, body)
        if self._arrived is None:
            self._hand_on(queue, used, got)
        else:
            self._arrived.append((queue, used, got))
            self._news.set()

    def _hand_on(self, queue: str, used: SubscriptionChannel, got: Got) -> None:
        self._news.set()
        if not used.channel.is_open:
            return
        used.unsettled += 1
        if self._on_message(queue, used.channel, got):
            return
        self._returned += 1
        used.channel.requeue(got.tag)
        self.settled(used.channel)
        if self._timer is not None and self._returned >= len(self._subscribed) // _FOR_EACH_RETURN:
            self.end()

    def _on_cancelled_by_broker(self, used: SubscriptionChannel, frame: Any) -> None:
        # A second consumer on it may not get what RabbitMQ delivers to it: see docs/internals/rabbitmq-versions.md.
        used.retired = True
        queue = used.queues.pop(frame.method.consumer_tag, None)
        if queue is not None:
            del self._subscribed[queue]
            self._order.unwatch((queue,))
            self._on_deleted(queue)
        self._end(list(used.queues.values()))
        self._news.set()
        self._tidy(used)

    def _on_closed(self, used: SubscriptionChannel) -> None:
        self._channels.pop(used.channel, None)
        self._end(list(used.queues.values()))
        self._news.set()
        self._on_end(used.channel)


async def _answered(channel: Channel) -> None:
    """Wait until RabbitMQ has done all that was sent on this channel before, and set a prefetch of one."""
    await channel.prefetch(1)
