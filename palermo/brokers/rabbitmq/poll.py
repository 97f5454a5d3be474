"""Taking jobs from several queues in strict order, or by their shares, at most one per slot.

Prefetch counts per consumer, so a subscription to each of eight queues would hold eight jobs.
While there is work a slot asks one queue after another by basic.get (asking_slot.py). Those that were found empty are
left out (ranking.py) and looked at together, all slots' at once, without taking anything (scout.py). When all are
empty the worker listens: it subscribes to all of them, takes the first delivery and unsubscribes at once (pika
rejects what races in, back to its old place). Idling costs nothing and a job starts in about 1 ms.

Quorum queues count every give-back towards their delivery limit, so a worker that serves one
is never subscribed: it asks again every few milliseconds.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable

from palermo.broker import Delivery, Take
from palermo.brokers.rabbitmq.asking_slot import AskingSlot, give_back
from palermo.brokers.rabbitmq.bell import Bell
from palermo.brokers.rabbitmq.declarer import Declarer
from palermo.brokers.rabbitmq.link import Channel, Got, Link
from palermo.brokers.rabbitmq.ranking import Ranking
from palermo.brokers.rabbitmq.scout import Scout
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
        self.link = link
        self._declarer = declarer
        self._exchange = exchange
        self._selection = selection
        self._queues: dict[str, str] = {}
        self._places: dict[str, Place] = {}
        self._known: set[str] = set()
        self._paused: set[str] = set()
        self._ranking = Ranking(random.random)
        self._slots = [AskingSlot(self, number) for number in range(1, slots + 1)]
        self._loop = asyncio.get_running_loop()
        #: Those that wait for a job to come, and those for a look at the queues that were empty.
        self._waiting: deque[AskingSlot] = deque()
        self._looking: list[AskingSlot] = []
        self._look: asyncio.Task[None] | None = None
        #: Whether that look was the last thing that happened: no job has come since.
        self._looked = False
        self._pause = _FIRST_PAUSE
        #: Told of every channel that has ended.
        self.ended: Callable[[Channel], None] = lambda _: None
        self._scout = Scout(link, exchange, ended=lambda channel: self.ended(channel))
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
        self.closed = False

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues served now, in order of priority; where they share places, as drawn for this once."""
        order = drawn(self._places, random.random) if self._selection.shared else tuple(self._queues)
        return tuple(queue for queue in order if self.takes_from(queue))

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
            self._rank()

    async def receive(self, slot: int) -> Delivery:
        return await self._slots[slot - 1].receive()

    def offer_to(self, slot: int, take: Take) -> None:
        """Show deliveries first to this, which come while the slot waits for one."""
        self._slots[slot - 1].offer_to(take)

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge one that was taken so, at once."""
        self._slots[delivery.slot - 1].ack(delivery)

    def next(self, slot: int) -> None:
        """Nothing: no job waits here, and one that was asked for is still to come."""

    def pause(self, queues: set[str]) -> None:
        """Take nothing from these queues; from all others again."""
        if queues != self._paused:
            for queue in self._paused & set(self._queues) - queues:
                # It may have been migrated meanwhile.
                self._unlearn(queue)
            self._paused = queues
            self._rank()

    async def rest(self, slot: int) -> None:
        """A slot that does not ask holds nothing; one whose job was taken as it came asks for no other after it."""
        self._slots[slot - 1].rest()

    async def park(self, delivery: Delivery) -> None:
        """Let the slot go on without this delivery, which stays unsettled."""
        self._slots[delivery.slot - 1].park(delivery.token[0])

    def ending(self, delivery: Delivery) -> None:
        """Its job has ended, and it is acknowledged once that is stored; its slot asks for the next one at once."""
        self._ending.add(delivery.token)

    def acknowledge(self, delivery: Delivery) -> None:
        """The end of this job is stored."""
        channel, tag = delivery.token
        channel.link.raw.ack(channel.raw, tag)
        self._ending.discard(delivery.token)
        self._bell.settled(channel)

    def settled(self, delivery: Delivery, *, parked: bool) -> None:
        """A delivery has been settled; the channel of one that was parked has served."""
        channel, _ = delivery.token
        if not parked:
            self._slots[delivery.slot - 1].settled(delivery)
        if delivery.token in self._ending:
            return
        if not self._bell.settled(channel) and parked and channel.is_open:
            channel.raw.close()

    async def close(self) -> None:
        self.closed = True
        for slot in self._slots:
            slot.wake()
        tasks = {task for task in (self._attending, self._look) if task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- what the slots ask

    def turn(self, slot: AskingSlot) -> str:
        """The queue that a slot is to ask now; "" where it is told to look again, or given a job."""
        # Where others wait, whatever comes into an empty queue comes to them.
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
        """What RabbitMQ calls the queue."""
        return amqp_queue(self._exchange, queue)

    def takes_from(self, queue: str) -> bool:
        """Whether jobs of this queue are to be taken now."""
        return queue not in self._paused and queue in self._queues

    def leave(self, slot: AskingSlot) -> None:
        """It does not wait any more."""
        for waiting in (self._waiting, self._looking):
            if slot in waiting:
                waiting.remove(slot)
        self._listen_for_nobody_no_more()

    def found_empty(self, queue: str) -> None:
        """A slot has asked, and there was nothing."""
        self._ranking.found_empty(queue, self._loop.time())

    def began(self) -> None:
        """A slot has got a job; where one was, there may be another for the next."""
        self._pause = _FIRST_PAUSE
        self._looked = False
        if self._waiting:
            self._wake_one()
        elif self._ranking.due(self._loop.time()):
            self._begin_look()

    def returned(self, delivery: Delivery) -> None:
        """Give back what came for a slot that does not ask any more."""
        give_back(delivery)
        self._bell.settled(delivery.token[0])

    async def missing(self, queue: str) -> None:
        """A queue was deleted under us: one that we were told to serve is made again, one that we found is left out."""
        self._declarer.forget(queue)
        if queue in self._selection.patterns:
            self._queues[queue] = await self._declarer.ensure(queue)
            log.warning("queue was deleted and is declared again queue=%s", queue)
        else:
            self._queues.pop(queue, None)
            self._rank()

    def _rank(self) -> None:
        """Other queues are served now: look at those, and listen to them."""
        self._ranking.serve({queue: place for queue, place in self._places.items() if self.takes_from(queue)})
        self._looked = False
        self._bell.ring()

    # -- looking at all that are empty

    def _begin_look(self) -> "asyncio.Task[None]":
        if self._look is None:
            self._look = asyncio.ensure_future(self._look_at_empty())
        return self._look

    async def _look_at_empty(self) -> None:
        """Find out which of the queues that were empty have jobs by now, for all who wait for that."""
        began, queues = self._loop.time(), self._ranking.empty
        full = set(queues)
        try:
            full = await self._scout.full(queues)
        except PalermoError as error:
            # Who asks each of them finds out what is wrong, and sees to it.
            log.debug("queues cannot be counted, asking each error=%r", str(error))
        finally:
            self._ranking.looked(full, began=began, ended=self._loop.time())
            self._looked, self._look = True, None
            looking, self._looking = self._looking, []
            for slot in looking:
                slot.look()

    async def _attend(self) -> None:
        """Wait on behalf of all idle slots, by the bell or, where that would harm, by the clock."""
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
            # However it ended, nobody is left waiting for a bell that will not ring.
            while self._waiting:
                self._waiting.popleft().fail(error)

    async def _listen(self) -> None:
        try:
            await self._bell.listen(self.queues)
        except NotFound:
            # A queue is deleted at this moment. Who asks each finds out which, and sees to it.
            self._ranking.forget()
            self._wake_one()
            await asyncio.sleep(_FIRST_PAUSE)

    def _on_rung(self, queue: str, channel: Channel, got: Got) -> bool:
        """Hand the delivery to an idle slot; False if there is none, or nothing is to be taken from that queue."""
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
        """Its type is not known any more."""
        self._declarer.forget(queue)
        if queue in self._queues:
            self._queues[queue] = ""

    def _wake_one(self) -> None:
        """Let one idle slot look; if it finds a job it wakes the next."""
        if self._waiting:
            self._waiting.popleft().look()
            self._listen_for_nobody_no_more()

    def _listen_for_nobody_no_more(self) -> None:
        """What came then would only be given back, and count as handed out before."""
        if not self._waiting:
            self._bell.ring()
