"""A worker's claim on jobs: where they come from, how they are settled, and who it says it is."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from palermo.admission import admitted, how_ended, must_ask, runs_alone
from palermo.broker import Delivery
from palermo.brokers.rabbitmq.asking_slot import give_back
from palermo.brokers.rabbitmq.endings import Endings
from palermo.brokers.rabbitmq.express import RabbitmqExpress
from palermo.brokers.rabbitmq.keys import RabbitmqKeys
from palermo.brokers.rabbitmq.limiting import RabbitmqLimits
from palermo.brokers.rabbitmq.link import Channel
from palermo.brokers.rabbitmq.past import Past
from palermo.brokers.rabbitmq.poll import PollSource
from palermo.brokers.rabbitmq.presence import Presence
from palermo.brokers.rabbitmq.push import PushSource, quietly
from palermo.brokers.rabbitmq.registry import Names
from palermo.brokers.rabbitmq.scout import Scout
from palermo.brokers.rabbitmq.starts import Starts
from palermo.brokers.rabbitmq.steering import Steering
from palermo.brokers.rabbitmq.wire import to_message
from palermo.core.delay import adopted, is_early
from palermo.core.lifecycle import Ack, Fail, Release, Retry, Settlement
from palermo.core.message import Message
from palermo.core.permits import Aside, demand_of, put_aside
from palermo.core.topology import amqp_queue
from palermo.errors import BrokerError, BrokerUnavailable, DeliveryLost, NotFound, PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Seconds that a start may take to be written down before the job is run all the same.
_WRITTEN_WITHIN = 3.0

#: Seconds between two looks whether there is another job for a batch.
_ASK_EVERY = 0.005


class RabbitmqConsumer:
    """See palermo.broker.Consumer. Made by RabbitmqBroker.consume."""

    def __init__(
        self,
        source: PushSource | PollSource,
        presence: Presence,
        names: Names | None,
        exchange: str,
        steering: Steering,
        publish: Callable[[Message, str], Awaitable[None]],
        *,
        starts: Starts,
        past: Past,
        count: Callable[[str], Awaitable[tuple[int, int] | None]],
        is_foreign: Callable[[str], bool],
        keys: RabbitmqKeys,
        limits: RabbitmqLimits,
    ) -> None:
        self._source = source
        self._steering = steering
        self._presence = presence
        self._worker = presence.worker
        self._names = names
        self._exchange = exchange
        self._publish = publish
        self._starts = starts
        self._past = past
        self._count = count
        self._scout = Scout(source.link, exchange, ended=lambda _: None)
        self._is_foreign = is_foreign
        self._keys = keys
        self._limits = limits
        self._endings = Endings(keys, self._acknowledge)
        #: By job, the key of the permit that it runs with.
        self._permits: dict[str, str] = {}
        self._closed = False
        self._unsettled: dict[int, Delivery] = {}
        self._parked: dict[int, Delivery] = {}
        #: Those among them that a slot runs together with its own delivery, and the channels they come on, by slot.
        self._together: set[int] = set()
        self._beside: dict[int, Channel] = {}
        self._settled = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None
        self.express = RabbitmqExpress(
            source, steering, starts, self._unsettled, check=self._check_ours, forget=self._forget
        )
        if names is not None:
            names.on_close(self._on_names_lost)
        source.ended = self._on_end
        starts.resume()

    async def receive(self, slot: int) -> Delivery:
        while True:
            while slot in self._unsettled:
                self._settled.clear()
                await self._settled.wait()
            delivery = self._steering.checked(await self._source.receive(slot))
            self._unsettled[slot] = delivery
            if is_early(delivery.message, time.time()) and not delivery.cancelled:
                await self._put_off(delivery)
                continue
            self._starts.watch()
            if not delivery.redelivered or delivery.cancelled:
                return delivery
            looked = await self._look_into(delivery)
            if looked is not None:
                return looked

    def held(self) -> Iterable[Delivery]:
        """What was handed out and is not settled."""
        return [*self._unsettled.values(), *(self._parked[key] for key in self._together)]

    async def admit(self, delivery: Delivery) -> Delivery | None:
        if not must_ask(delivery):
            return delivery
        self._ours(delivery)
        await self._endings.over(delivery)
        grant = await self._keys.start(delivery, worker=self._worker)
        found = admitted(delivery, grant)
        if found is None:
            log.warning("copy of a job dropped id=%s job=%s", delivery.message.id, delivery.message.job)
            await self.settle(delivery, Ack(done=False))
            return None
        self._ours(delivery)
        self._check(delivery)
        self._unsettled[delivery.slot] = found
        return found

    async def permit(self, delivery: Delivery) -> float | None:
        demand = demand_of(delivery.message)
        if demand is None or delivery.cancelled or delivery.duplicate_of:
            return 0.0
        self._ours(delivery)
        id = delivery.message.id
        verdict = await self._limits.ask(demand, id=id, worker=self._worker)
        if isinstance(verdict, Aside):
            await self.settle(delivery, Retry(put_aside(delivery.message, verdict)))
            return None
        self._permits[id] = demand.key
        self._ours(delivery)
        return verdict.wait

    def _ours(self, delivery: Delivery) -> None:
        if self._unsettled.get(delivery.slot) is not delivery:
            raise DeliveryLost(f"job {delivery.message.id} is not, or no longer, this worker's to settle.")

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        parked = id(delivery) in self._parked
        if not parked:
            self._ours(delivery)
        channel, tag = delivery.token
        told = how_ended(delivery, settlement, parked=parked)
        match settlement:
            case Ack():
                self._check(delivery)
                if told is not None and not parked:
                    await self._endings.begin(delivery, told)
                    self._source.ending(delivery)
                else:
                    if told is not None:
                        await self._keys.tell(delivery.message, told)
                        self._check(delivery)
                    # At once: the next job comes only after it.
                    channel.link.raw.ack(channel.raw, tag)
            case Release():
                self._check(delivery)
                if not parked:
                    await self._starts.leave(delivery.slot, delivery.message.id)
                    self._check(delivery)
                channel.raw.basic_nack(tag, requeue=True)
                self._starts.ended(delivery.slot, delivery.message.id, forget=False)
            case Fail(message, queue):
                # Publish before ack. Dying in between runs the job twice; the other order loses it.
                await self._publish(message, queue)
                if told is not None:
                    await self._keys.tell(delivery.message, told)
                self._check(delivery)
                channel.raw.basic_ack(tag)
            case Retry(message):
                if told is not None:
                    # First, so that whoever is asked to start the copy knows that this run is over.
                    await self._keys.tell(delivery.message, told)
                await self._publish(message, message.queue)
                self._check(delivery)
                channel.raw.basic_ack(tag)
        if not isinstance(settlement, Release | Retry):
            self._steering.gone(delivery)
        self._forget(delivery)
        if delivery.redelivered and not parked:
            self._starts.ended(delivery.slot, delivery.message.id, forget=True)

    async def park(self, delivery: Delivery) -> None:
        self._check(delivery)
        await self._source.park(delivery)
        self._ours(delivery)
        self._parked[id(delivery)] = self._unsettled.pop(delivery.slot)
        self._settled.set()

    async def another(self, delivery: Delivery, *, wait: float) -> Delivery | None:
        queue, until = delivery.message.queue, time.monotonic() + wait
        name = amqp_queue(self._exchange, queue)
        while queue in self._source.queues:
            self._check(delivery)
            channel = self._beside.get(delivery.slot)
            if channel is None or not channel.is_open:
                channel = self._beside[delivery.slot] = await delivery.token[0].link.channel()
            try:
                got = await channel.get(name)
            except PalermoError:
                if channel.missing:
                    return None
                raise
            if got is None:
                left = until - time.monotonic()
                if left <= 0:
                    return None
                await asyncio.sleep(min(left, _ASK_EVERY))
                continue
            found = Delivery(
                message=to_message(got.properties, got.body, taken_from=queue),
                slot=delivery.slot,
                token=(channel, got.tag),
                redelivered=got.redelivered,
            )
            other = found.message.job != delivery.message.job or found.redelivered or runs_alone(found.message)
            if other or self._steering.checked(found).cancelled or is_early(found.message, time.time()):
                channel.raw.basic_nack(got.tag, requeue=True)
                # Back in its place before anything else of this slot is settled, and the next is sent to it.
                await channel.call(channel.raw.basic_qos, prefetch_count=0)
                return None
            self._parked[id(found)] = found
            self._together.add(id(found))
            return found
        return None

    async def waiting(self) -> set[str]:
        # On the connection that consumes: under an alarm the other is not read, and a deaf one does not answer.
        queues = [queue for queue in self._source.queues if not self._is_foreign(queue)]
        with suppress(NotFound):
            return await self._scout.full(queues)
        return {queue for queue in queues if (counted := await self._count(queue)) and counted[0]}

    async def rest(self, slot: int) -> None:
        await self._source.rest(slot)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._endings.close()
        await quietly(self._source.close())
        for delivery in [*self._unsettled.values(), *self._parked.values()]:
            give_back(delivery)
            self._forget(delivery)
        await quietly(self._steering.close())
        if self._names is not None:
            await quietly(self._names.close())
        await quietly(self._starts.close())
        await quietly(self._presence.end())

    async def _put_off(self, delivery: Delivery) -> None:
        """Another program's job that is not due yet: to where it waits, and only when it is stored out of here."""
        work = asyncio.ensure_future(self._publish(adopted(delivery.message), delivery.message.queue))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait({work})
            if work.exception() is None:
                delivery.token[0].raw.basic_ack(delivery.token[1])
                self._forget(delivery)
            else:
                await self._decline(delivery)
            raise
        except BrokerError:
            await self._decline(delivery)
            raise
        self._check(delivery)
        channel, tag = delivery.token
        channel.raw.basic_ack(tag)
        self._forget(delivery)

    async def _look_into(self, delivery: Delivery) -> Delivery | None:
        """What is known of a job that was handed out before; None if it went back meanwhile."""
        slot, job = delivery.slot, delivery.message.id
        try:
            story = await self._past.of(job)
            looked = replace(delivery, deaths=tuple(sorted(story.dead.values())), running_at=story.running_at)
            if not story.running_at:
                await self._written_down(slot, job, story.dead)
        except asyncio.CancelledError:
            await asyncio.shield(self._decline(delivery))
            raise
        except PalermoError:
            self._forget(delivery)
            raise
        if self._unsettled.get(slot) is not delivery:
            raise BrokerUnavailable("this worker's claim on jobs has been given up.")
        if not delivery.token[0].is_open:
            self._forget(delivery)
            self._starts.ended(slot, job, forget=False)
            return None
        self._unsettled[slot] = looked
        return looked

    async def _written_down(self, slot: int, job: str, dead: dict[str, str]) -> None:
        try:
            async with asyncio.timeout(_WRITTEN_WITHIN):
                await self._starts.begin(slot, job, dead)
        except (PalermoError, TimeoutError) as error:
            if self._starts.link.error is not None:
                raise self._starts.link.error from error
            log.warning(
                "start cannot be written down, running the job all the same id=%s error=%r",
                job,
                str(error) or "no answer in time",
            )

    async def _decline(self, delivery: Delivery) -> None:
        """Give back a job that nobody waits for any more."""
        await self._starts.leave(delivery.slot, delivery.message.id)
        if self._unsettled.get(delivery.slot) is delivery:
            give_back(delivery)
            self._starts.ended(delivery.slot, delivery.message.id, forget=False)
            self._forget(delivery)

    def _on_names_lost(self) -> None:
        """Without news of queues this claim would grow deaf: whoever receives hears of it, and opens another."""
        if not self._closed and self._ending is None:
            self._ending = asyncio.ensure_future(self._source.close())

    def _check_ours(self, delivery: Delivery) -> None:
        if self._unsettled.get(delivery.slot) is not delivery or not delivery.token[0].is_open:
            self._ours(delivery)
            self._check(delivery)

    def _acknowledge(self, delivery: Delivery) -> None:
        """Its end is stored."""
        if not delivery.token[0].is_open:
            raise DeliveryLost(f"its channel was closed meanwhile: {delivery.token[0].error}")
        self._source.acknowledge(delivery)

    def _check(self, delivery: Delivery) -> None:
        """Never ack on another channel than the one that delivered: its tags mean other messages."""
        channel, _ = delivery.token
        if not channel.is_open:
            if id(delivery) not in self._parked:
                self._starts.ended(delivery.slot, delivery.message.id, forget=False)
            self._forget(delivery)
            raise DeliveryLost(
                f"job {delivery.message.id} went back to queue {delivery.message.queue!r}: {channel.error}"
            ) from channel.error

    def _forget(self, delivery: Delivery) -> None:
        parked = bool(self._parked) and self._parked.pop(id(delivery), None) is not None
        if parked and id(delivery) in self._together:
            self._together.discard(id(delivery))
            return
        if not parked:
            job = delivery.message.id
            if self._permits and (key := self._permits.pop(job, None)) is not None:
                self._limits.ended(key, id=job, worker=self._worker)
            self._unsettled.pop(delivery.slot, None)
            self._settled.set()
        self._source.settled(delivery, parked=parked)

    def _on_end(self, channel: Channel) -> None:
        """Say which job the broker has taken back, when it ended a channel and not the whole session."""
        if channel.link.error is not None or not channel.code:
            return
        late = "timed out" in str(channel.error)
        advice = "it runs longer than consumer_timeout: raise that" if late else "the log of RabbitMQ may say more"
        for delivery in [*self._unsettled.values(), *self._parked.values()]:
            if delivery.token[0] is channel:
                log.warning(
                    "the broker took a job back that goes on here id=%s job=%s queue=%s error=%r advice=%r",
                    delivery.message.id,
                    delivery.message.job,
                    delivery.message.queue,
                    str(channel.error),
                    advice,
                )
