"""The fair queue of one job queue: the leader gives its tenants their turns, and moves their jobs into the job queue.

The leader keeps the job queue short, so that it chooses the next tenant late. It publishes a job to the job queue, and
acknowledges it in its tenant's queue once that is confirmed (handover.py). So a killed leader duplicates at most the
jobs that were being confirmed. A job that the job queue refuses is requeued at its old position, and retried after a
pause. A job that can never be published goes to `failed`.

In one round trip the leader counts the job queue, and requests the jobs of the next turns (basic.get). It assumes that
a tenant with several jobs left still has one. Then it moves as many jobs as there is room for, in the order of turns,
and starts again after their confirms. It subscribes to the queue of a tenant without jobs until one arrives. So it need
not poll ten thousand empty queues, and the tenant's next job is available immediately.
"""

import asyncio
import logging
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec import Struct, field

from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.brokers.rabbitmq.amqp.many_queues import probe_all
from palermo.brokers.rabbitmq.amqp.messages import Got, Properties, to_message
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.publishing.handover import Refusals
from palermo.brokers.rabbitmq.publishing.job_destinations import (
    JobDestinations,
    TenantQueue,
    browsing_lock,
    tenant_queue_name,
)
from palermo.brokers.rabbitmq.seconds import AGAIN, SOON, STILL_REFUSED
from palermo.contract.tasks import spawn
from palermo.core.fair_scheduling import StrideScheduler
from palermo.core.topology import amqp_queue
from palermo.errors import BrokerUnavailable, HeadersTooLarge, NotFound, PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Target number of waiting jobs in the job queue: for each consumer, or in total without a consumer.
_AHEAD = 3

#: Maximum number of jobs requested and moved in one step.
_AT_ONCE = 100

#: Seconds between two checks of a full job queue, doubled from the first to the last value while it stays full.
_FIRST_PAUSE, _LAST_PAUSE = 0.001, 0.02

#: Maximum bytes of held bodies. Beyond that a new job is requeued until its tenant's turn.
_IN_HAND = 32 * 1024 * 1024


class TenantState(Struct):
    """One tenant, as the leader knows it."""

    name: str
    queue: str
    share: float = 1.0
    #: Whether its queue may have jobs and must be polled.
    asked: bool = True
    #: The tag of the subscription to its queue; "" for none.
    tag: str = ""
    #: Its next jobs, which have arrived but are not moved yet.
    in_hand: list[Got] = field(default_factory=list)
    #: When it was last announced, polled or had a job, on the loop's clock.
    active_at: float = field(default_factory=lambda: asyncio.get_running_loop().time())


class JobsUnderWay:
    """The jobs that are published to one job queue and not confirmed yet."""

    def __init__(self, queue: str, connection: Connection, destinations: JobDestinations) -> None:
        self._queue = queue
        self._connection = connection
        self._destinations = destinations
        self._count = 0
        #: Why one of them was refused since the last call of `pause`.
        self.refused: PalermoError | None = None
        self._refusals = Refusals(f"jobs of tenants for queue {queue!r}", first=SOON, last=STILL_REFUSED)
        #: The tasks that store jobs in `failed` which can never be published.
        self._failing: set[asyncio.Task[None]] = set()
        #: Set at each confirm and refusal.
        self._answered = asyncio.Event()

    def pause(self) -> float:
        """Seconds until the next attempt. By then the refused jobs and those behind them are requeued."""
        error, self.refused = self.refused, None
        assert error is not None
        if isinstance(error, NotFound):
            self._destinations.forget(self._queue)
        return self._refusals.refused(error)

    async def all_answered(self) -> None:
        """Wait until all of them are stored or refused."""
        while self._count:
            self._answered.clear()
            await self._answered.wait()

    def forward(self, publisher: Publisher, channel: Channel, got: Got) -> None:
        """Publish a job. Acknowledge it on its channel once it is stored, or requeue it if it is refused."""
        self._count += 1
        publisher.forward(*self._destinations.route(self._queue), got, partial(self._on_answer, channel, got))

    def _on_answer(self, channel: Channel, got: Got, error: PalermoError | None) -> None:
        """Handle the result of a publish to the job queue."""
        if isinstance(error, HeadersTooLarge):
            spawn(self._failing, self._fail(channel, got, error))
        else:
            self._on_end(channel, got.tag, error)

    async def _fail(self, channel: Channel, got: Got, error: PalermoError) -> None:
        """Store a job that can never be published in `failed`."""
        message = to_message(got.properties, got.body, taken_from=None)
        refused: PalermoError | None = None
        try:
            await self._destinations.fail(message, error)
        except PalermoError as not_stored:
            refused = not_stored
        self._on_end(channel, got.tag, refused)

    def _on_end(self, channel: Channel, tag: int, error: PalermoError | None) -> None:
        """Handle a job that is stored or refused."""
        self._count -= 1
        self._answered.set()
        if error is not None:
            self.refused = error
        else:
            self._refusals.taken()
        # a closed channel's jobs have been requeued by RabbitMQ
        if channel.is_open and error is None:
            self._connection.raw.ack(channel.raw, tag)
        elif channel.is_open:
            channel.requeue(tag)


class FairQueue:
    """The fair queue of one job queue; see the module's docstring."""

    def __init__(
        self,
        exchange: str,
        queue: str,
        connection: Connection,
        destinations: JobDestinations,
        *,
        order: str,
    ) -> None:
        self.queue = queue
        self.states: dict[str, TenantState] = {}
        #: Held while jobs are moved, and while the tenants' queues are read or tidied.
        self.turn = asyncio.Lock()
        #: Whether no job may be moved now, because a session may be reading the tenants' queues.
        self.stopped = True
        self._exchange = exchange
        self._connection = connection
        self._destinations = destinations
        self._order = StrideScheduler(order, random.random)
        self._loop = asyncio.get_running_loop()
        self._channel: Channel | None = None
        self._tags: dict[str, TenantState] = {}
        self._numbers = 0
        self._bytes = 0
        #: The target length of the job queue at the last check.
        self._most = _AHEAD
        self.under_way = JobsUnderWay(queue, connection, destinations)
        self._news = asyncio.Event()

    def know(self, tenant: str) -> None:
        """Record that this tenant has a queue, which may soon have jobs."""
        state = self.states.get(tenant)
        if state is None:
            state = self.states[tenant] = TenantState(
                tenant, tenant_queue_name(self._exchange, TenantQueue(self.queue, tenant))
            )
        state.active_at = self._loop.time()
        if not state.tag:
            self._rouse(state)

    def forget(self, state: TenantState) -> None:
        """Drop a tenant whose queue no longer exists."""
        self._drop_hand(state)
        self._order.leave(state.name)
        self._tags.pop(state.tag, None)
        if self.states.get(state.name) is state:
            del self.states[state.name]

    def __contains__(self, tenant: str) -> bool:
        """Whether the tenant gets turns, because it may have waiting jobs."""
        return tenant in self._order

    def is_idle(self, state: TenantState) -> bool:
        """Whether the tenant is not known to have a waiting job."""
        return bool(state.tag) and not state.in_hand and state.name not in self._order

    async def run(self) -> None:
        """Move jobs until cancelled. Raises the connection's error when the connection is lost."""
        pause = _FIRST_PAUSE
        while True:
            try:
                # The jobs and subscriptions of a closed channel are lost, so all tenants must be polled again.
                if not len(self._order) and (self._channel is None or self._channel.is_open):
                    self._news.clear()
                    await self._news.wait()
                room, refused = 0, 0.0
                async with self.turn:
                    self.stopped = self.stopped and (await self._connection.probe(browsing_lock(self._exchange))).locked
                    if self.under_way.refused and not self.stopped:
                        await self.requeue([state for state in self.states.values() if state.in_hand])
                        refused = self.under_way.pause()
                    elif not self.stopped:
                        room = await self._step()
            except PalermoError as error:
                if self._connection.error is not None:
                    raise
                # A missing queue concerns only its tenant, which is dropped.
                if not isinstance(error, NotFound):
                    log.warning("cannot dispatch jobs of tenants queue=%s error=%r", self.queue, str(error))
                    await asyncio.sleep(AGAIN)
                continue
            # If workers take the jobs as fast as they are moved, they must not wait for the leader.
            pause = _FIRST_PAUSE if room > 0 else min(2 * pause, _LAST_PAUSE)
            # Only then does RabbitMQ's count include all published messages.
            await self.under_way.all_answered()
            await asyncio.sleep(refused or (0 if room > 0 else SOON if self.stopped else pause))

    async def _step(self) -> int:
        """Request jobs, and move those whose turn it is. Returns the room that is left in the job queue."""
        channel = await self._open()
        try:
            room, _ = await asyncio.gather(self._room(), self._fetch(channel))
            await self._hand_on(channel, self._due(min(room, _AT_ONCE)))
            return room
        except PalermoError as error:
            # Jobs on their way are acknowledged before the others are requeued.
            await self.under_way.all_answered()
            channel.abandon()
            if isinstance(error, NotFound):
                await self._forget_missing()
            raise

    async def _room(self) -> int:
        """Number of jobs that the job queue has room for."""
        name = amqp_queue(self._exchange, self.queue)
        probe = (await probe_all(self._connection, [name]))[name]
        if not probe.exists:
            self._destinations.forget(self.queue)
        self._most = _AHEAD * max(1, probe.consumers) if probe.exists else _AHEAD
        return self._most - (probe.messages if probe.exists else 0)

    # -- moving jobs

    async def _forget_missing(self) -> None:
        """Drop the tenants whose queues no longer exist.

        Queries all of them, because the error doesn't name the queue, and an earlier subscription may have caused it.
        """
        states = list(self.states.values())
        probes = await probe_all(self._connection, [state.queue for state in states])
        for state in states:
            if not probes[state.queue].exists:
                self.forget(state)

    async def _fetch(self, channel: Channel) -> None:
        """Fetch the jobs for the next turns."""
        asked, in_hand = list[TenantState](), dict[str, int]()
        for name in self._order.coming(min(self._most, _AT_ONCE), lambda name: self.states[name].share):
            state = self.states[name]
            in_hand[name] = in_hand.get(name, len(state.in_hand)) - 1
            if in_hand[name] < 0 and state.asked:
                asked.append(state)
        if self._bytes > _IN_HAND:
            asked = [state for state in asked[:1] if state.name == self._order.next()]
        for state, got in zip(asked, await channel.get_each([state.queue for state in asked]), strict=True):
            state.active_at = self._loop.time()
            state.asked = got is not None and got.left > 0
            if self.states.get(state.name) is not state:
                # the tenant may have been dropped while it was polled
                if got is not None:
                    channel.requeue(got.tag)
                continue
            if got is not None:
                self._into_hand(state, got)
            if not state.asked and not state.tag:
                self._listen(channel, state)

    def _into_hand(self, state: TenantState, got: Got) -> None:
        state.active_at = self._loop.time()
        state.in_hand.append(got)
        self._bytes += len(got.body)
        if b"share" in got.encoded:
            state.share = _share(got.properties, state.share)

    def _due(self, most: int) -> list[Got]:
        """The fetched jobs whose turn it is, at most `most`. A tenant whose job hasn't arrived keeps its turn."""
        jobs = list[Got]()
        while len(jobs) < most and (name := self._order.next()) is not None:
            state = self.states[name]
            if state.in_hand:
                jobs.append(state.in_hand.pop(0))
                self._bytes -= len(jobs[-1].body)
                self._order.served(name, state.share)
            elif state.asked:
                break
            if not state.in_hand and not state.asked:
                self._order.leave(name)
        return jobs

    async def _hand_on(self, channel: Channel, jobs: Sequence[Got]) -> None:
        if jobs:  # otherwise a queue that was just deleted with all its jobs would be recreated
            await self._destinations.ensure(self.queue)
        publisher = await self._destinations.publisher()
        if not channel.is_open:
            raise channel.error or BrokerUnavailable("the channel of tenants' jobs was closed.")
        for got in jobs:
            self.under_way.forward(publisher, channel, got)
        self._connection.raw.flush()

    # -- subscriptions

    def _listen(self, channel: Channel, state: TenantState) -> None:
        """Subscribe to the tenant's queue without waiting.

        If it is missing, the channel closes, and all tenants must be polled.
        """
        self._numbers += 1
        state.tag = f"tenant-{self._numbers}"
        self._tags[state.tag] = state
        channel.send(channel.raw.basic_consume, state.queue, self._on_sent, consumer_tag=state.tag)

    def _on_sent(self, raw: Any, method: Any, properties: Properties, body: bytes) -> None:
        if not raw.is_open:
            return  # RabbitMQ requeues the deliveries of a closing channel
        state = self._tags.get(method.consumer_tag)
        if state is None:
            raw.basic_nack(method.delivery_tag)
            return
        # With a prefetch of one, RabbitMQ would deliver the next job only after this one is stored. So the tenant is
        # polled until it has no more jobs.
        self._unlisten(raw, state)
        if self._bytes + len(body) > _IN_HAND:
            raw.basic_nack(method.delivery_tag)
        else:
            self._into_hand(state, Got(method.delivery_tag, method.redelivered, properties, body))
        self._rouse(state)

    def _unlisten(self, raw: Any, state: TenantState) -> None:
        """Unsubscribe from the tenant's queue, and poll it at the tenant's turn."""
        tag, state.tag, state.asked = state.tag, "", True
        self._tags.pop(tag, None)
        raw.basic_cancel(tag, callback=lambda _: None)

    def _rouse(self, state: TenantState) -> None:
        # a dropped tenant has no turn
        if self.states.get(state.name) is state:
            self._order.join(state.name, state.share)
            self._news.set()

    def _drop_hand(self, state: TenantState) -> list[Got]:
        dropped = list(state.in_hand)
        state.in_hand.clear()
        self._bytes -= sum(len(got.body) for got in dropped)
        return dropped

    async def requeue(self, states: Sequence[TenantState]) -> bool:
        """Requeue the held jobs of these tenants, and unsubscribe from their queues. Call it while holding `turn`.

        Returns whether all of them are back in their queues, or moved to the job queue.
        """
        await self.under_way.all_answered()
        channel = self._channel
        if channel is None or not channel.is_open:
            return False
        for state in states:
            if state.tag:
                self._unlisten(channel.raw, state)
        # The answer to this comes after those to all earlier requests, and all deliveries.
        await channel.prefetch(1)
        for state in states:
            for got in self._drop_hand(state):
                channel.requeue(got.tag)
                state.asked = True
            self._rouse(state)
        # The answer to this comes after all these jobs are requeued.
        await channel.prefetch(1)
        return True

    async def _open(self) -> Channel:
        """The channel for the jobs of all tenants; opens it if it is closed."""
        if self._channel is not None and self._channel.is_open:
            return self._channel
        # RabbitMQ has requeued the last channel's deliveries.
        self._tags.clear()
        for state in self.states.values():
            self._drop_hand(state)
            state.tag, state.asked = "", True
            self._order.join(state.name, state.share)
        channel = await self._connection.channel()
        raw = channel.raw
        raw.add_on_cancel_callback(self._on_cancelled_by_broker)
        channel.on_close(self._news.set)
        await channel.prefetch(1)
        self._channel = channel
        return channel

    def _on_cancelled_by_broker(self, frame: Any) -> None:
        state = self._tags.pop(frame.method.consumer_tag, None)
        if state is not None:
            self.forget(state)


def _share(properties: Properties, known: float) -> float:
    found = (properties.headers or {}).get("share")
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) and found > 0 else known
