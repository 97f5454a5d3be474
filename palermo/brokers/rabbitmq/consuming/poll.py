"""Takes jobs from several queues in strict order, or by their shares, at most one per slot.

A prefetch applies to each consumer, so subscriptions to eight queues could hold eight jobs. While there is work, a slot
therefore polls one queue after another with basic.get (PollingSlot). Queues that were found empty are skipped
(queue_order.py); the worker counts their messages for all slots together, without taking any (many_queues.py).

When all queues are empty, the worker subscribes to them with a prefetch of one, so idling costs nothing, and a job
costs the same with ten queues as with three thousand. A delivery ends the subscription to its queue, which is renewed
when the queue is found empty again. See idle_subscriptions.py.

A quorum queue counts every requeue towards its delivery limit, so a worker on one doesn't subscribe, but polls every
few milliseconds.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection, fulfil
from palermo.brokers.rabbitmq.amqp.frames import Delivered
from palermo.brokers.rabbitmq.amqp.many_queues import probe_all
from palermo.brokers.rabbitmq.amqp.messages import Got, Properties, delivered, read, read_delivered
from palermo.brokers.rabbitmq.amqp.replies import queue_in
from palermo.brokers.rabbitmq.cluster.facts import Facts
from palermo.brokers.rabbitmq.consuming.idle_subscriptions import IdleSubscriptions
from palermo.brokers.rabbitmq.consuming.push import requeue
from palermo.brokers.rabbitmq.consuming.queue_order import QueueOrder
from palermo.brokers.rabbitmq.consuming.served_queues import ServedQueues
from palermo.brokers.rabbitmq.consuming.troubled_queues import is_of_a_queue
from palermo.brokers.rabbitmq.publishing.declarer import Declarer
from palermo.brokers.rabbitmq.seconds import POLL_EVERY
from palermo.contract.broker import Delivery, TakeDelivery
from palermo.contract.tasks import finish
from palermo.core.message import Message
from palermo.core.queue_selection import PausedQueues, QueueRank, QueueSelection
from palermo.errors import BrokerRefused, BrokerUnavailable, NotFound, PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Seconds between two polls if subscriptions would harm a quorum queue: from POLL_EVERY on, doubled up to this value
#: while nothing arrives.
_LAST_PAUSE = 0.04


class QueueTrouble(NamedTuple):
    """An unusable queue, and the reason."""

    queue: str
    error: PalermoError


#: An event for the task in `receive`.
News = Delivery | PalermoError | QueueTrouble | Literal["no channel"] | None


class PollSource:
    """All slots of a worker on several queues, or on a pattern of queues."""

    def __init__(
        self,
        connection: Connection,
        declarer: Declarer,
        facts: Facts,
        exchange: str,
        selection: QueueSelection,
        *,
        slots: int,
        tag: Callable[[int], str],
    ) -> None:
        self.connection = connection
        self.served = ServedQueues(connection, declarer, facts, exchange, selection, self._serve)
        self._ranking = QueueOrder(random.random)
        self.slots = [PollingSlot(self, number) for number in range(1, slots + 1)]
        self._loop = asyncio.get_running_loop()
        #: Slots that wait for a job, and slots that wait for a count of the empty queues.
        self._waiting: deque[PollingSlot] = deque()
        self._looking: list[PollingSlot] = []
        self._counting: asyncio.Task[None] | None = None
        #: Whether the queues were counted and no job has arrived since.
        self._counted = False
        self._pause = POLL_EVERY
        #: Called with every closed channel.
        self.ended: Callable[[Channel], None] = lambda _: None
        self._idle_subscriptions = IdleSubscriptions(
            connection,
            exchange,
            tag=tag(1),
            on_message=self._on_delivery,
            on_deleted=self._on_deleted,
            on_end=lambda channel: self.ended(channel),
            order=self._ranking,
        )
        self._attending: asyncio.Task[None] | None = None
        self.closed = False

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues to serve now."""
        return tuple(self.served)

    def waiting(self) -> list[str]:
        """The ids of delivered jobs that wait for a slot: none."""
        return []

    async def prepare(self) -> None:
        """Find the queues to serve."""
        await self.served.begin()

    def pause(self, queues: PausedQueues) -> None:
        """Take nothing from these queues; resume all others."""
        self.served.pause(queues)

    def acknowledge(self, delivery: Delivery) -> None:
        """Acknowledge the delivery, because the end of its job is stored."""
        channel, tag = delivery.token
        channel.connection.raw.ack(channel.raw, tag)
        self._idle_subscriptions.settled(channel)

    def requeue(self, delivery: Delivery) -> None:
        """Requeue the delivery, because its slot no longer polls, or the end of its job was not stored."""
        requeue(delivery)
        self._idle_subscriptions.settled(delivery.token[0])

    def settled(self, delivery: Delivery, *, detached: bool, pending: bool = False) -> None:
        """Record that a delivery was settled. If it was detached, close its channel.

        A `pending` delivery is acknowledged or requeued later. In the meantime the slot polls.
        """
        channel, _ = delivery.token
        if not detached:
            self.slots[delivery.slot - 1].settled(delivery)
        if not pending and not self._idle_subscriptions.settled(channel) and detached and channel.is_open:
            channel.abandon()

    async def close(self) -> None:
        self.closed = True
        for slot in self.slots:
            slot.wake()
        await self.served.close()
        tasks = {task for task in (self._attending, self._counting) if task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._idle_subscriptions.close()

    # -- calls by the slots

    def turn(self, slot: "PollingSlot") -> str:
        """The queue that a slot should poll now; "" if it should wait."""
        # Jobs that arrive in an empty queue go to the waiting slots.
        if not self._waiting and self._ranking.stale(self._loop.time()):
            self._looking.append(slot)
            self._begin_count()
            return ""
        queue = self._ranking.first()
        if queue is None:
            self._waiting.append(slot)
            if self._attending is None or self._attending.done():
                self._attending = asyncio.ensure_future(self._attend())
            return ""
        return queue

    def leave(self, slot: "PollingSlot") -> None:
        """Record that the slot no longer waits."""
        for waiting in (self._waiting, self._looking):
            if slot in waiting:
                waiting.remove(slot)
        if not self._waiting:
            # No slot may take a job now, so a delivery would only be requeued.
            self._idle_subscriptions.end()

    def found_empty(self, queue: str) -> None:
        """Record that a slot found the queue empty."""
        self._ranking.found_empty(queue, self._loop.time())

    def began(self) -> None:
        """Record that a slot has got a job, so there may be another for the next slot."""
        self._pause = POLL_EVERY
        self._counted = False
        if self._waiting:
            self._wake_one()
            return
        self._idle_subscriptions.no_slot_idles()
        if self._ranking.due(self._loop.time()):
            self._begin_count()

    def _serve(self, served: dict[str, QueueRank]) -> None:
        """Poll or subscribe to these queues from now on, instead of the previous ones."""
        self._ranking.serve(served)
        self._counted = False
        self._idle_subscriptions.end(but=served)

    # -- counting the empty queues

    def _begin_count(self) -> "asyncio.Task[None]":
        if self._counting is None:
            self._counting = asyncio.ensure_future(self._count_empty())
        return self._counting

    async def _count_empty(self) -> None:
        """Find the empty queues that have jobs now, for all waiting slots."""
        began, queues = self._loop.time(), self._ranking.empty
        full = set(queues)
        try:
            names = {self.served.amqp_name(queue): queue for queue in queues}
            probes = await probe_all(self.connection, names)
            # A slot that polls a missing queue finds out the cause and handles it.
            full = {queue for name, queue in names.items() if probes[name].ready or probes[name].error}
        except PalermoError as error:
            log.debug("cannot count queues, polling each error=%r", str(error))
        finally:
            self._ranking.looked(full, began=began, ended=self._loop.time())
            self._counted, self._counting = True, None
            looking, self._looking = self._looking, []
            for slot in looking:
                slot.poll()

    async def _attend(self) -> None:
        """Wait for a job for all idle slots, by subscriptions, or by counting if a subscription would do harm."""
        error: PalermoError = BrokerUnavailable("this worker has stopped taking jobs.")
        try:
            while self._waiting:
                classic = await self.served.are_classic()
                # Queues that were just found empty need not be counted before subscribing.
                if not self._counted and (self._ranking.due(self._loop.time()) or not classic):
                    await asyncio.wait({self._begin_count()})
                    if self._ranking.first() is not None:
                        self._wake_one()
                elif classic:
                    await self._listen()
                else:
                    await asyncio.sleep(self._pause)
                    self._pause = min(2 * self._pause, _LAST_PAUSE)
                    self._counted = False
        except PalermoError as raised:
            error = raised
        finally:
            # Whatever happened, no slot may wait for a job that nothing will deliver.
            while self._waiting:
                self._waiting.popleft().fail(error)

    async def _listen(self) -> None:
        try:
            await self._idle_subscriptions.listen(self.queues)
        except NotFound:
            # One of the queues was just deleted. The slots find out which by polling them all.
            self._ranking.forget()
            self._wake_one()
            await asyncio.sleep(POLL_EVERY)
        except (BrokerRefused, BrokerUnavailable) as error:
            queue = next((one for one in self.served if self.served.amqp_name(one) == queue_in(error)), "")
            if self.connection.error is not None or not queue:
                raise
            self.served.leave_alone(queue, error)

    def _on_delivery(self, queue: str, channel: Channel, got: Got) -> bool:
        """Pass the delivery to an idle slot. False if none is idle, or the queue is not served."""
        if self.closed or queue not in self.served:
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
        self.served.forget_kind(queue)
        self._ranking.found_full((queue,))
        self._wake_one()

    def _wake_one(self) -> None:
        """Let one idle slot poll. If it finds a job, it wakes the next."""
        if self._waiting:
            self._waiting.popleft().poll()
            if not self._waiting:
                self._idle_subscriptions.no_slot_idles()


class PollingSlot:
    """One slot, driven by callbacks without a task: it polls one queue after another for its next job.

    At any time the slot has an unsettled delivery or a pending request, or waits for the source. It passes a job to the
    callback of `receive`, or returns it to the caller of `receive`. After an answer without a job the slot polls the
    next queue immediately.
    """

    def __init__(self, source: "PollSource", number: int) -> None:
        self.number = number
        self._source = source
        #: Opened at the first poll, because the many slots of an idle worker need none.
        self._channel: Channel | None = None
        #: The future of the task in `receive`, and what the task has to handle.
        self._asked: asyncio.Future[None] | None = None
        self._news: News = None
        #: The callback of `receive`, to which deliveries are offered, and the delivery that it accepted.
        self._offer: TakeDelivery | None = None
        self._taken: Delivery | None = None
        self._resting = False
        #: The queue being polled; the future of a caller that only waits for the answer; whether the source has this
        #: slot in its list of waiting ones.
        self._queue = ""
        self._answered: asyncio.Future[None] | None = None
        self._waits = False

    async def receive(self, offer: TakeDelivery | None = None) -> Delivery:
        """The next job that the callback doesn't accept."""
        self._offer, self._resting = offer, False
        try:
            while not self._source.closed:
                news, self._news = self._news, None
                match news:
                    case Delivery():
                        return news
                    case PalermoError():
                        raise news
                    case QueueTrouble(queue, NotFound()):
                        await self._source.served.missing(queue)
                    case QueueTrouble(queue, error):
                        self._source.served.leave_alone(queue, error)
                    case "no channel":
                        self._channel = await self._open()
                await self._await_news()
        except asyncio.CancelledError:
            await finish(self._withdraw())
            raise
        raise BrokerUnavailable("this worker has stopped taking jobs.")

    @property
    def _is_free(self) -> bool:
        return self._taken is None and not self._queue and not self._waits

    async def _await_news(self) -> None:
        self._asked = asyncio.get_running_loop().create_future()
        try:
            if self._is_free:
                self.poll()
            await self._asked
        finally:
            self._asked = None

    async def _open(self) -> Channel:
        channel = await self._source.connection.channel()
        channel.on_close(lambda: self._on_end(channel))
        channel.on_get_empty(self._on_get_empty)
        self._source.connection.raw.answers_to(channel.raw, self._on_read)
        return channel

    async def _withdraw(self) -> None:
        """After a cancelled `receive`, requeue the delivery that has arrived or is on its way."""
        if self._waits:
            self._waits = False
            self._source.leave(self)
        channel, news = self._channel, self._news
        if isinstance(news, Delivery):
            self._news, channel = None, news.token[0]
            self._source.requeue(news)
        elif self._queue:
            self._answered = asyncio.get_running_loop().create_future()
            await self._answered
        else:
            return
        if channel is not None and channel.is_open:
            # After the answer, a count of the queue includes the job again.
            with suppress(PalermoError):
                await channel.prefetch(0)

    # -- polling

    def poll(self, acked: int = 0) -> None:
        """Poll the next queue. Before that, in the same write, acknowledge the delivery `acked`, if given."""
        self._waits = False
        if self._source.closed:
            self.wake()
            return
        raw, channel = self._source.connection.raw, self._channel
        queue = self._source.turn(self)
        if not queue:
            self._waits = True
            if acked and channel is not None:
                raw.ack(channel.raw, acked)
        elif channel is None or not channel.is_open:
            self._wake_with("no channel")
        else:
            self._queue = queue
            raw.get(channel.raw, self._source.served.amqp_name(queue), self._on_got, acked=acked)

    def _on_read(self, found: Delivered, data: bytes) -> None:
        if not found.tag:
            self._on_get_empty()
        elif self._queue:
            self._on_job(read_delivered(found, data, self._queue), found.tag, found.redelivered)

    def _on_got(self, _: object, method: Any, properties: Properties, body: bytes) -> None:
        message = read(delivered(method, properties, body), self._queue)
        self._on_job(message, method.delivery_tag, method.redelivered)

    def _on_get_empty(self) -> None:
        queue = self._take_answer()
        if not queue:
            return
        self._source.found_empty(queue)
        if self._is_waited_for:
            self.poll()

    def _on_job(self, message: Message, tag: int, redelivered: bool) -> None:
        queue = self._take_answer()
        delivery = Delivery(message=message, slot=self.number, token=(self._channel, tag), redelivered=redelivered)
        if self._is_waited_for and queue in self._source.served:
            self.take(delivery)
            return
        requeue(delivery)
        if self._is_waited_for:
            self.poll()

    def _take_answer(self) -> str:
        """Record that the answer has arrived. Returns the polled queue."""
        queue, self._queue = self._queue, ""
        if self._answered is not None:
            fulfil(self._answered, None)
        return queue

    @property
    def _is_waited_for(self) -> bool:
        return self._asked is not None and not self._asked.done() and not self._source.closed

    def take(self, delivery: Delivery) -> None:
        """Accept a job that a subscription has delivered to this slot."""
        self._waits = False
        self._taken = delivery
        if self._offer is None or not self._offer(delivery):
            self._taken = None
            self._wake_with(delivery)
        self._source.began()

    def fail(self, error: PalermoError) -> None:
        """Make `receive` raise this error."""
        self._waits = False
        self._wake_with(error)

    def _wake_with(self, news: "News") -> None:
        self._news = news
        self.wake()

    def wake(self) -> None:
        """Wake the task in `receive` to check for changes."""
        if self._asked is not None:
            fulfil(self._asked, None)

    def _on_end(self, channel: Channel) -> None:
        self._source.connection.raw.deliver_no_more(channel.raw)
        if channel is self._channel and (queue := self._take_answer()) and channel.error is not None:
            if is_of_a_queue(channel):
                self._wake_with(QueueTrouble(queue, channel.error))
            elif self._is_waited_for:
                self._wake_with(channel.error)
        self._source.ended(channel)

    # -- deliveries that were taken

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge the delivery that the callback accepted, and poll for the next job in the same write."""
        channel, tag = delivery.token
        self._taken = None
        if self._is_waited_for and not self._resting and channel is self._channel:
            self.poll(acked=tag)
        else:
            channel.connection.raw.ack(channel.raw, tag)
            self._continue()
        self._source.settled(delivery, detached=False)

    def settled(self, delivery: Delivery) -> None:
        """Continue with the next job, if this delivery is the one that the callback accepted."""
        if self._taken is not None and self._taken.token == delivery.token:
            self._taken = None
            self._continue()

    def _continue(self) -> None:
        if self._resting:
            # Left to the task in `receive`, since it may be about to be cancelled.
            self.wake()
        elif self._is_waited_for and self._is_free:
            self.poll()

    async def detach(self, delivery: Delivery) -> None:
        """Leave the channel to this unsettled delivery, and use another channel for the next job."""
        channel = delivery.token[0]
        if self._channel is channel:
            self._channel = None
        if self._taken is not None and self._taken.token[0] is channel:
            self._taken = None
            self._continue()

    async def rest(self) -> None:
        """Take no more jobs until `receive` is called again."""
        self._resting = self._taken is not None
