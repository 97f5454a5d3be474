"""Takes jobs from several queues in strict order, or by their shares, at most one per slot.

Prefetch counts per consumer, so a subscription to each of eight queues would hold eight jobs.
While there is work, a slot asks one queue after another by basic.get (polling_slot.py). Queues that were found empty
are left out (queue_order.py). The worker counts their messages together, for all slots at once, and takes none
(queue_counts.py).
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

from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.brokers.rabbitmq.amqp.messages import Got, read
from palermo.brokers.rabbitmq.consuming.idle_subscriptions import IdleSubscriptions
from palermo.brokers.rabbitmq.consuming.polling_slot import PollingSlot, give_back
from palermo.brokers.rabbitmq.consuming.queue_counts import QueueCounts
from palermo.brokers.rabbitmq.consuming.queue_order import QueueOrder
from palermo.brokers.rabbitmq.publishing.declarer import Declarer
from palermo.contract.broker import Delivery
from palermo.core.queue_selection import QueueRank, QueueSelection, draw_order
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
        self._paused: set[str] = set()
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
        chosen: dict[str, str] = {}
        places = self._selection.places(known)
        for queue in places:
            chosen[queue] = await self._declarer.ensure(queue)
        if self._known is not known:
            return  # a later call has learnt more meanwhile, and serves it
        if list(chosen) != list(self._queues):
            self._queues, self._places = chosen, places
            self._rank()

    def pause(self, queues: set[str]) -> None:
        """Take nothing from these queues, and from all others again."""
        if queues != self._paused:
            for queue in self._paused & set(self._queues) - queues:
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
