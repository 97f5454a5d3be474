"""One worker's consumer: it takes jobs, settles them, and makes the worker visible to other sessions."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from palermo.brokers.rabbitmq.amqp.connection import Channel
from palermo.brokers.rabbitmq.amqp.messages import Got, read
from palermo.brokers.rabbitmq.cluster.worker_control import WorkerControl
from palermo.brokers.rabbitmq.consuming.poll import PollSource
from palermo.brokers.rabbitmq.consuming.push import PushSource, requeue
from palermo.brokers.rabbitmq.consuming.queue_order import FullQueues
from palermo.brokers.rabbitmq.consuming.run_log import CrashHistory, RunLog
from palermo.brokers.rabbitmq.consuming.steering import Steering
from palermo.brokers.rabbitmq.leadership.key_client import PendingEnds, RabbitmqKeys
from palermo.brokers.rabbitmq.leadership.leader_client import Permits
from palermo.brokers.rabbitmq.leadership.workflow_client import RabbitmqWorkflows
from palermo.brokers.rabbitmq.publishing.handover import Refusals, unpublishable
from palermo.brokers.rabbitmq.seconds import AGAIN, LOOK_EVERY, POLL_EVERY, RETRY_EVERY, STORED_WITHIN
from palermo.contract.admission import admitted, is_plain, key_report, needs_key, runs_alone
from palermo.contract.broker import Delivery, TakeDelivery
from palermo.contract.clock import wall_clock
from palermo.contract.tasks import finish, quietly
from palermo.core.due_times import is_early, with_foreign_time, without_foreign_time
from palermo.core.lifecycle import Ack, Fail, Release, Reschedule, Settlement
from palermo.core.limits import RunLater, demand_of, postponed
from palermo.core.message import PUBLISHED_AGAIN, Message
from palermo.core.topology import amqp_queue
from palermo.core.unique_keys import lock_of
from palermo.core.unique_rules import StartReason
from palermo.core.workflow import step_of
from palermo.core.workflow_rules import How
from palermo.errors import BrokerUnavailable, DeliveryLost, HeadersTooLarge, PalermoError

log = logging.getLogger("palermo.rabbitmq")


class RabbitmqConsumer:
    """See palermo.contract.broker.Consumer. Created by RabbitmqBroker.consume."""

    def __init__(
        self,
        source: PushSource | PollSource,
        worker_control: WorkerControl,
        exchange: str,
        steering: Steering,
        publish: Callable[[Message, str], Awaitable[None]],
        failed_place: Callable[[str], str],
        *,
        run_log: RunLog,
        crash_history: CrashHistory,
        full_queues: FullQueues,
        keys: RabbitmqKeys,
        permits: Permits,
        workflows: RabbitmqWorkflows,
    ) -> None:
        self._source = source
        self._steering = steering
        self._worker_control = worker_control
        self._exchange = exchange
        self._publish = publish
        self._failed_place = failed_place
        self._run_log = run_log
        self._crash_history = crash_history
        self._full_queues = full_queues
        self._keys = keys
        self._permits = permits
        self._workflows = workflows
        self._endings = PendingEnds(self._acknowledge, source.requeue)
        self._closed = False
        #: By slot, the delivery that occupies it.
        self._unsettled: dict[int, Delivery] = {}
        #: By `id`: unsettled deliveries without a slot, which are companions and adopted jobs (run by another worker).
        self._detached: dict[int, Delivery] = {}
        #: By `id`: the companions, which a slot runs in one batch with its own delivery.
        self._companions: set[int] = set()
        #: By slot, the channel for its companions.
        self._batch_channels: dict[int, Channel] = {}
        self._refusals = Refusals("jobs that are not due yet", first=RETRY_EVERY, last=LOOK_EVERY)
        self._settled = asyncio.Event()
        source.ended = self._on_end
        run_log.resume()

    async def receive(self, slot: int, take: TakeDelivery | None = None) -> Delivery:
        offer = None if take is None else partial(self._offer, take)
        while True:
            while slot in self._unsettled:
                self._settled.clear()
                await self._settled.wait()
            delivery = self._steering.checked(_marked(await self._source.slots[slot - 1].receive(offer)))
            self._unsettled[slot] = delivery
            if _is_early(delivery):
                await self._schedule_early(delivery)
                continue
            self._run_log.watch()
            if not delivery.redelivered or delivery.cancelled:
                return delivery
            looked = await self._with_history(delivery)
            if looked is not None:
                return looked

    def _offer(self, take: TakeDelivery, delivery: Delivery) -> bool:
        """Whether the job is plain and `take` accepts it."""
        slot, message = delivery.slot, delivery.message
        if delivery.redelivered or slot in self._unsettled:
            return False
        # Fast path: nearly all jobs have neither custom headers nor a due time, and need no checks.
        if (message.extra or message.run_at is not None) and not self._needs_no_check(delivery):
            return False
        if self._steering.has_cancels and self._steering.checked(delivery).cancelled:
            return False
        self._unsettled[slot] = delivery
        if not take(delivery):
            del self._unsettled[slot]
            return False
        if self._run_log.ticking is None:
            self._run_log.watch()
        return True

    def _needs_no_check(self, delivery: Delivery) -> bool:
        message = delivery.message
        return PUBLISHED_AGAIN not in message.extra and is_plain(message) and self._endings.has_room(delivery)

    def acknowledge(self, delivery: Delivery) -> None:
        if self._unsettled.get(delivery.slot) is not delivery or not delivery.token[0].raw.is_open:
            self._check_held(delivery)
            self._check(delivery)
        if _is_step(delivery):
            self._endings.add(delivery, self._workflows.send_end(delivery.message, How.DONE))
            self._source.settled(delivery, detached=False, pending=True)
        else:
            self._source.slots[delivery.slot - 1].ack(delivery)
        if self._steering.has_cancels:
            self._steering.left_queue(delivery)
        del self._unsettled[delivery.slot]
        self._settled.set()

    def held(self) -> Iterable[Delivery]:
        """The unsettled deliveries that run here."""
        return [*self._unsettled.values(), *(self._detached[key] for key in self._companions)]

    async def admit(self, delivery: Delivery, *, copy: bool = False) -> Delivery | None:
        if not needs_key(delivery):
            return delivery
        self._check_held(delivery)
        await self._endings.over(delivery)
        again = delivery.redelivered and not copy
        grant = await self._keys.start(delivery, worker=self._worker_control.worker, again=again)
        if grant.why is StartReason.LATER:
            await asyncio.sleep(AGAIN)
            await self.settle(delivery, Release())
            return None
        found = admitted(delivery, grant)
        if found is None:
            log.warning("copy of a job dropped id=%s job=%s", delivery.message.id, delivery.message.job)
            await self.settle(delivery, Ack(done=False))
            return None
        self._check_held(delivery)
        self._check(delivery)
        self._unsettled[delivery.slot] = found
        return found

    async def save(self, delivery: Delivery, saved: str) -> None:
        if self._unsettled.get(delivery.slot) is delivery:
            self._run_log.save(delivery.message, saved)

    async def permit(self, delivery: Delivery) -> float | None:
        demand = demand_of(delivery.message)
        if demand is None or delivery.cancelled or delivery.duplicate_of:
            return 0.0
        self._check_held(delivery)
        verdict = await self._permits.ask(delivery, demand)
        if isinstance(verdict, RunLater):
            self._full_queues.moved.add(delivery.message.queue)
            await self.settle(delivery, Reschedule(postponed(delivery.message, verdict)))
            return None
        self._check_held(delivery)
        return verdict.wait

    def _check_held(self, delivery: Delivery) -> None:
        if self._unsettled.get(delivery.slot) is not delivery:
            raise DeliveryLost(f"job {delivery.message.id} is not held by this worker.")

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        detached = id(delivery) in self._detached
        if not detached:
            self._check_held(delivery)
        channel, tag = delivery.token
        pending = False
        match settlement:
            case Ack(adds=adds) if adds:
                self._check(delivery)
                await self._workflows.record_added(delivery.message, adds)
                self._check(delivery)
                channel.ack(tag)
            case Ack(done, cancelled, output):
                self._check(delivery)
                if not detached:
                    await self._endings.room(delivery)
                stored: Awaitable[None] | None = None
                report = key_report(delivery, settlement, adopted=detached)
                if _is_step(delivery):
                    how = How.DONE if done else How.CANCELLED if cancelled else How.DISCARDED
                    stored = self._workflows.send_end(delivery.message, how, output)
                elif report is not None:
                    stored = await self._keys.send_end(delivery.message, report)
                if stored is not None and not detached:
                    self._endings.add(delivery, stored)
                    pending = True
                else:
                    if stored is not None:
                        await stored
                        self._check(delivery)
                    # Written immediately, because the next job comes only after this ack.
                    channel.connection.raw.ack(channel.raw, tag)
            case Release():
                self._check(delivery)
                # This frees the key sooner if the job is purged.
                with suppress(BrokerUnavailable, TimeoutError):
                    async with asyncio.timeout(STORED_WITHIN):
                        await self._record_end(delivery, settlement, adopted=detached)
                if not detached:
                    await self._run_log.leave(delivery.slot, delivery.message.id)
                self._check(delivery)
                channel.requeue(tag)
                self._run_log.ended(delivery.slot, delivery.message.id, forget=False)
            case Fail(message, queue):
                # Published before the ack: a kill in between runs the job twice, instead of losing it.
                await self._publish(message, queue)
                await self._record_end(delivery, settlement, adopted=detached)
                self._check(delivery)
                channel.ack(tag)
            case Reschedule(message):
                # First, so that the leader knows this run's end when a worker asks to start the copy.
                await self._record_end(delivery, settlement, adopted=detached)
                failed = await self._store(message)
                if message.saved is not None and not detached:
                    # The worker may stop next, and its last record must not look as if it died with the job.
                    await self._run_log.leave(delivery.slot, delivery.message.id)
                if failed is not None:
                    await self._record_end(delivery, failed, adopted=detached)
                self._check(delivery)
                channel.ack(tag)
        if not isinstance(settlement, Release | Reschedule):
            self._steering.left_queue(delivery)
        self._forget(delivery, pending=pending)
        if delivery.redelivered:
            self._run_log.ended(delivery.slot, delivery.message.id, forget=True)

    async def _record_end(self, delivery: Delivery, settlement: Settlement, *, adopted: bool) -> None:
        """Store the end of a run with a key, and of a step that has failed."""
        report = key_report(delivery, settlement, adopted=adopted)
        if report is not None:
            await self._keys.record_end(delivery.message, report)
        if isinstance(settlement, Fail) and _is_step(delivery):
            await self._workflows.send_end(delivery.message, How.FAILED)

    async def _store(self, message: Message) -> Fail | None:
        """Store a job in its queue, or as a delayed one.

        If it can never be published, fails it and returns that settlement.
        """
        try:
            await self._publish(message, message.queue)
        except HeadersTooLarge as error:
            failed = Fail(unpublishable(message, error, now=wall_clock()), self._failed_place(message.queue))
            await self._publish(failed.message, failed.queue)
            log.error(
                "job failed, cannot store its next run id=%s job=%s error=%r", message.id, message.job, str(error)
            )
            return failed
        return None

    async def free_slot(self, delivery: Delivery) -> None:
        self._check(delivery)
        await self._source.slots[delivery.slot - 1].detach(delivery)
        self._check_held(delivery)
        self._detached[id(delivery)] = self._unsettled.pop(delivery.slot)
        self._settled.set()
        self._permits.end(delivery)

    async def next_for_batch(self, delivery: Delivery, *, wait: float) -> Delivery | None:
        queue, until = delivery.message.queue, time.monotonic() + wait
        name = amqp_queue(self._exchange, queue)
        while queue in self._source.queues:
            self._check(delivery)
            channel = await self._batch_channel(delivery.slot)
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
                await asyncio.sleep(min(left, POLL_EVERY))
                continue
            found = _delivery(channel, got, queue, delivery.slot)
            other = found.message.job != delivery.message.job or found.redelivered or runs_alone(found.message)
            if other or self._steering.checked(found).cancelled or is_early(found.message, wall_clock()):
                channel.requeue(got.tag)
                # The job must be back in its place before the slot's next one is settled, and another delivered.
                await channel.prefetch(0)
                return None
            self._detached[id(found)] = found
            self._companions.add(id(found))
            return found
        return None

    async def queues_with_jobs(self) -> set[str]:
        return await self._full_queues.find(self._source.queues)

    async def pause_slot(self, slot: int) -> None:
        await self._source.slots[slot - 1].rest()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._endings.close()
        await quietly(self._source.close())
        for delivery in [*self._unsettled.values(), *self._detached.values()]:
            requeue(delivery)
            self._forget(delivery)
        await quietly(self._steering.close())
        await quietly(self._run_log.close())
        await quietly(self._worker_control.end())

    async def _schedule_early(self, delivery: Delivery) -> None:
        """Store another program's early job as a delayed one. A cancelled call finishes storing the job first."""
        work = asyncio.ensure_future(self._move_early(delivery))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait({work})
            raise

    async def _move_early(self, delivery: Delivery) -> None:
        message = delivery.message
        self._full_queues.moved.add(message.queue)
        try:
            await self.settle(delivery, Reschedule(without_foreign_time(message)))
            self._refusals.taken()
        except DeliveryLost:
            return  # RabbitMQ delivers it again
        except PalermoError as error:
            if isinstance(error, BrokerUnavailable):
                raise
            # A requeued job would be delivered again immediately, and block those behind it.
            await asyncio.sleep(self._refusals.refused(error))
            with suppress(PalermoError):
                await self.settle(delivery, Reschedule(with_foreign_time(message)))
        finally:
            if self._unsettled.get(delivery.slot) is delivery:
                requeue(delivery)
                self._forget(delivery)

    async def _batch_channel(self, slot: int) -> Channel:
        """The channel for this slot's companions, opened if necessary."""
        channel = self._batch_channels.get(slot)
        if channel is None or not channel.is_open:
            channel = self._batch_channels[slot] = await self._source.connection.channel()
        return channel

    async def _with_history(self, delivery: Delivery) -> Delivery | None:
        """The delivery with the known crashes and saved data of its job; None if it need not run here.

        The job may have been requeued in the meantime. If it is a step that has already ended, this acknowledges it,
        because its worker died before acknowledging the job.
        """
        slot, job = delivery.slot, delivery.message.id
        try:
            ended = await self._workflows.has_ended(delivery.message)
            record = await self._crash_history.of(delivery.message, now=lock_of(delivery.message) is not None)
            looked = replace(delivery, deaths=tuple(sorted(record.dead.values())), running_at=record.running_at)
            if record.saved is not None:
                looked = replace(looked, message=replace(delivery.message, saved=record.saved))
                self._run_log.save(looked.message, record.saved)
            if not record.running_at and not ended:
                await self._written_down(slot, job, record.dead)
        except asyncio.CancelledError:
            await finish(self._decline(delivery))
            raise
        except PalermoError:
            self._forget(delivery)
            raise
        if self._unsettled.get(slot) is not delivery:
            raise BrokerUnavailable("this worker has stopped taking jobs.")
        if not delivery.token[0].is_open:
            self._forget(delivery)
            self._run_log.ended(slot, job, forget=False)
            return None
        if ended:
            self._source.acknowledge(delivery)
            self._forget(delivery)
            return None
        self._unsettled[slot] = looked
        return looked

    async def _written_down(self, slot: int, job: str, dead: dict[str, str]) -> None:
        try:
            async with asyncio.timeout(STORED_WITHIN):
                await self._run_log.begin(slot, job, dead)
        except (PalermoError, TimeoutError) as error:
            if self._run_log.connection.error is not None:
                raise self._run_log.connection.error from error
            log.warning(
                "cannot record the start, running the job anyway id=%s error=%r",
                job,
                str(error) or "no answer in time",
            )

    async def _decline(self, delivery: Delivery) -> None:
        """Requeue a job that arrived for a cancelled `receive`."""
        await self._run_log.leave(delivery.slot, delivery.message.id)
        if self._unsettled.get(delivery.slot) is delivery:
            requeue(delivery)
            self._run_log.ended(delivery.slot, delivery.message.id, forget=False)
            self._forget(delivery)

    def _acknowledge(self, delivery: Delivery) -> None:
        """Acknowledge a delivery whose end is stored. Raises DeliveryLost if its channel is closed."""
        if not delivery.token[0].is_open:
            raise DeliveryLost(f"the channel of job {delivery.message.id} was closed: {delivery.token[0].error}")
        self._source.acknowledge(delivery)

    def _check(self, delivery: Delivery) -> None:
        """Raise DeliveryLost if the delivery's channel is closed, since its tag is invalid on any other."""
        channel, _ = delivery.token
        if not channel.is_open:
            if id(delivery) not in self._detached:
                self._run_log.ended(delivery.slot, delivery.message.id, forget=False)
            self._forget(delivery)
            raise DeliveryLost(
                f"job {delivery.message.id} was returned to queue {delivery.message.queue!r}: {channel.error}"
            ) from channel.error

    def _forget(self, delivery: Delivery, *, pending: bool = False) -> None:
        detached = bool(self._detached) and self._detached.pop(id(delivery), None) is not None
        if detached and id(delivery) in self._companions:
            self._companions.discard(id(delivery))
            return
        if not detached:
            self._permits.end(delivery)
            self._unsettled.pop(delivery.slot, None)
            self._settled.set()
        self._source.settled(delivery, detached=detached, pending=pending)

    def _on_end(self, channel: Channel) -> None:
        """Log the jobs that RabbitMQ has requeued by closing a channel."""
        if channel.connection.error is not None or not channel.is_taken_back:
            return
        late = "timed out" in str(channel.error)
        advice = "raise consumer_timeout: the job ran longer" if late else "check the log of RabbitMQ"
        for delivery in [*self._unsettled.values(), *self._detached.values()]:
            if delivery.token[0] is channel:
                log.warning(
                    "broker requeued a job that still runs here id=%s job=%s queue=%s error=%r advice=%r",
                    delivery.message.id,
                    delivery.message.job,
                    delivery.message.queue,
                    str(channel.error),
                    advice,
                )


def _delivery(channel: Channel, got: Got, queue: str, slot: int) -> Delivery:
    return Delivery(message=read(got, queue), slot=slot, token=(channel, got.tag), redelivered=got.redelivered)


def _marked(delivery: Delivery) -> Delivery:
    """The delivery, as a redelivered one if the leader has published its job again."""
    extra = dict(delivery.message.extra)
    if not extra.pop(PUBLISHED_AGAIN, False):
        return delivery
    return replace(delivery, message=replace(delivery.message, extra=extra), redelivered=True)


def _is_step(delivery: Delivery) -> bool:
    return bool(delivery.message.extra) and step_of(delivery.message.extra) is not None


def _is_early(delivery: Delivery) -> bool:
    return is_early(delivery.message, wall_clock()) and not delivery.cancelled
