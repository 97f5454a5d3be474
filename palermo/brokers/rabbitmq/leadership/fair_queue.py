"""The fair queue of one job queue: the leader gives its tenants their turns, and moves their jobs into the job queue.

The leader keeps only a few jobs more in the job queue than there are slots, so that it decides late which tenant is
next. It publishes a job to the job queue, waits for the confirm, and only then acknowledges it in its tenant's queue
(handover.py). A job that the job queue refuses goes back to its place in its tenant's queue, and is tried again after
a pause.

At its turn, a tenant that has jobs is asked for one (basic.get). All turns for which there is room are asked in one
write: a tenant that had more than one job left is taken to have another. The leader subscribes to the queue of a tenant
that has none left, with a prefetch of one: the tenant's next job is in hand at once, and the leader need not ask ten
thousand empty queues.
"""

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.brokers.rabbitmq.amqp.many_queues import probe_all
from palermo.brokers.rabbitmq.amqp.messages import Got, Properties
from palermo.brokers.rabbitmq.amqp.publisher import GONE
from palermo.brokers.rabbitmq.publishing.handover import Refusals, outcomes, traces
from palermo.brokers.rabbitmq.publishing.job_destinations import (
    JobDestinations,
    TenantQueue,
    browsing_lock,
    tenant_queue_name,
)
from palermo.core.fair_scheduling import StrideScheduler
from palermo.core.topology import amqp_queue
from palermo.errors import BrokerUnavailable, NotFound, PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Jobs that are to wait in the job queue for each of its consumers; so many also if it has none.
_AHEAD = 3

#: The most jobs that are moved before the job queue is counted again.
_AT_ONCE = 100

#: Seconds until a job that the job queue refused is tried again: doubled up to the last while the queue takes none.
_REFUSED, _STILL_REFUSED = 0.05, 5.0

#: Seconds between two looks at a job queue that is full: doubled from the first to the last while it stays so.
_FIRST_PAUSE, _LAST_PAUSE = 0.001, 0.02

#: Seconds between two looks whether a session that reads the tenants' queues has finished.
_STOPPED = 0.2

#: Seconds until the next attempt after something went wrong.
_AGAIN = 1.0

#: Jobs that come by one subscription before the tenant is asked by basic.get instead: that costs less.
_BUSY = 4

#: Bytes of bodies that are in hand at once; beyond that a job that comes goes back until its tenant's turn.
_IN_HAND = 32 * 1024 * 1024


@dataclass(slots=True)
class TenantState:
    """What the leader knows of one tenant."""

    name: str
    queue: str
    share: float = 1.0
    #: Whether its queue may hold jobs, so that it is to be asked.
    asked: bool = True
    #: The tag of the subscription to its queue; "" for none.
    tag: str = ""
    #: A job that has come by the subscription and is not moved yet.
    in_hand: Got | None = None
    #: Jobs that have come by the subscription.
    sent: int = 0
    #: How many of its next jobs, if they are redelivered, may have been moved by a leader that died.
    unsure: int = _AT_ONCE
    #: When the leader last heard of it, on the loop's clock.
    heard: float = field(default_factory=lambda: asyncio.get_running_loop().time())


class FairQueue:
    """The fair queue of one job queue; see the module's first lines."""

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
        #: Whether a session may be reading the tenants' queues, so that nothing may be moved now.
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
        #: Tags of jobs in hand that may have been moved before.
        self._unsure: set[int] = set()
        self._refusals = Refusals(f"jobs of tenants for queue {queue!r}", first=_REFUSED, last=_STILL_REFUSED)
        self._news = asyncio.Event()

    def know(self, tenant: str) -> None:
        """Note that this tenant has a queue, in which there may be jobs soon."""
        state = self.states.get(tenant)
        if state is None:
            state = self.states[tenant] = TenantState(
                tenant, tenant_queue_name(self._exchange, TenantQueue(self.queue, tenant))
            )
        state.heard = self._loop.time()
        if not state.tag:
            self._rouse(state)

    def forget(self, state: TenantState) -> None:
        """Forget a tenant whose queue is gone."""
        self._drop_hand(state)
        self._order.leave(state.name)
        self._tags.pop(state.tag, None)
        if self.states.get(state.name) is state:
            del self.states[state.name]

    def __contains__(self, tenant: str) -> bool:
        """Whether the tenant may have jobs waiting, so that its turn is to come."""
        return tenant in self._order

    def is_idle(self, state: TenantState) -> bool:
        """Whether the tenant has no waiting job, as far as is known."""
        return bool(state.tag) and state.in_hand is None and state.name not in self._order

    async def run(self) -> None:
        """Move jobs until the connection is lost, which is raised, or the call is cancelled."""
        pause = _FIRST_PAUSE
        while True:
            try:
                # If the channel has ended, its jobs and subscriptions are gone, and all tenants have to be asked anew.
                if not len(self._order) and (self._channel is None or self._channel.is_open):
                    self._news.clear()
                    await self._news.wait()
                refused = 0.0
                async with self.turn:
                    self.stopped = self.stopped and (await self._connection.probe(browsing_lock(self._exchange))).locked
                    room = 0 if self.stopped else await self._room()
                    if room > 0:
                        refused = await self._move_jobs(min(room, _AT_ONCE))
            except PalermoError as error:
                if self._connection.error is not None:
                    raise
                # If the queue of one tenant is gone, that tenant is forgotten, and the others go on.
                if not isinstance(error, NotFound):
                    log.warning("cannot deal jobs of tenants queue=%s error=%r", self.queue, str(error))
                    await asyncio.sleep(_AGAIN)
                continue
            # If workers take the jobs as fast as they are moved, they must not wait for the leader.
            pause = _FIRST_PAUSE if room > 0 else min(2 * pause, _LAST_PAUSE)
            await asyncio.sleep(refused or (0 if room > 0 else _STOPPED if self.stopped else pause))

    async def _room(self) -> int:
        """How many more jobs may be put into the job queue."""
        probe = await self._connection.probe(amqp_queue(self._exchange, self.queue))
        if not probe.exists:
            self._destinations.forget(self.queue)
        await self._destinations.ensure(self.queue)
        return _AHEAD * max(1, probe.consumers) - probe.messages if probe.exists else _AHEAD

    # -- moving jobs

    async def _move_jobs(self, most: int) -> float:
        """Put at most `most` jobs whose turn it is into the job queue. Returns seconds to wait if some were refused."""
        channel = await self._open()
        try:
            jobs = await self._take(channel, self._turns(most))
            return await self._hand_on(channel, jobs) if jobs else 0.0
        except BaseException as error:
            # Jobs that are not known to be stored go back, and are searched for before they are moved again.
            channel.abandon()
            if isinstance(error, NotFound):
                await self._forget_missing()
            raise

    async def _forget_missing(self) -> None:
        """Forget the tenants whose queues are gone.

        The error does not say whose: a subscription that was sent before the question may have ended the channel.
        """
        states = list(self.states.values())
        probes = await probe_all(self._connection, [state.queue for state in states])
        for state in states:
            if not probes[state.queue].exists:
                self.forget(state)

    def _turns(self, most: int) -> list[TenantState]:
        """The tenants that have the next turns, if each has a job at each of its turns, and its share is as known."""
        turns: list[TenantState] = []
        while len(turns) < most and (name := self._order.next()) is not None:
            state = self.states[name]
            turns.append(state)
            self._order.served(name, state.share)
            if not state.asked:
                self._order.leave(name)
        return turns

    async def _take(self, channel: Channel, turns: Sequence[TenantState]) -> list[Got]:
        """The jobs of these turns; some turns may have none."""
        taken = [self._drop_hand(state) for state in turns]
        asked = [place for place, got in enumerate(taken) if got is None]
        answers = await channel.get_each([turns[place].queue for place in asked])
        for place, got in zip(asked, answers, strict=True):
            state, taken[place] = turns[place], got
            state.heard = self._loop.time()
            state.asked = got is not None and got.left > 0
        jobs: list[Got] = []
        for state, got in zip(turns, taken, strict=True):
            if got is not None:
                jobs.append(got)
                state.share = _share(got.properties, state.share)
                if state.unsure:
                    state.unsure = state.unsure - 1 if got.redelivered else 0
                    if got.redelivered:
                        self._unsure.add(got.tag)
        for state in {state.name: state for state in turns}.values():
            if state.asked:
                self._rouse(state)
            else:
                self._order.leave(state.name)
                if not state.tag:
                    self._listen(channel, state)
        return jobs

    async def _hand_on(self, channel: Channel, jobs: Sequence[Got]) -> float:
        known = await self._known(jobs)
        new = [got for got in jobs if got.tag not in known]
        publisher, route = await self._destinations.publisher(), self._destinations.route(self.queue)
        sending = [publisher.send(*route, got.properties, got.body) for got in new]
        errors = await outcomes(self._connection, sending)
        if not channel.is_open:
            raise channel.error or BrokerUnavailable("the channel of tenants' jobs was closed.")
        for tag in known:
            channel.ack(tag)
        refused: PalermoError | None = None
        for got, error in zip(new, errors, strict=True):
            if error is None:
                self._connection.raw.ack(channel.raw, got.tag)
            else:
                channel.requeue(got.tag)
                refused = error
        if refused is None:
            self._refusals.taken()
            return 0.0
        if isinstance(refused, GONE):
            self._destinations.forget(self.queue)
        return self._refusals.refused(refused, some=None in errors)

    async def _known(self, jobs: Sequence[Got]) -> set[int]:
        """The tags of the jobs that a leader which died has moved already."""
        unsure, self._unsure = self._unsure, set()
        # A job without an id cannot be told from others: better to double it than to take it for another.
        ids = {str(id): got.tag for got in jobs if got.tag in unsure and (id := got.properties.message_id)}
        if not ids:
            return set()
        queues = dict.fromkeys(ids, self.queue)
        there = await traces(self._connection, self._exchange, queues, self._destinations.ensure)
        return {tag for id, tag in ids.items() if id in there}

    # -- listening

    def _listen(self, channel: Channel, state: TenantState) -> None:
        """Subscribe to the tenant's queue without waiting. If it is gone, the channel ends and all are asked anew."""
        self._numbers += 1
        state.tag, state.sent = f"tenant-{self._numbers}", 0
        self._tags[state.tag] = state
        channel.send(channel.raw.basic_consume, state.queue, self._on_sent, consumer_tag=state.tag)

    def _on_sent(self, raw: Any, method: Any, properties: Properties, body: bytes) -> None:
        if not raw.is_open:
            return  # RabbitMQ takes back what it delivered on a channel that is being closed.
        state = self._tags.get(method.consumer_tag)
        if state is None:
            raw.basic_nack(method.delivery_tag)
            return
        state.sent += 1
        state.heard = self._loop.time()
        if self._bytes + len(body) > _IN_HAND:
            # The job is asked for at the tenant's turn.
            self._unlisten(raw, state)
            raw.basic_nack(method.delivery_tag)
        else:
            state.in_hand = Got(method.delivery_tag, method.redelivered, properties, body)
            self._bytes += len(body)
            if state.sent >= _BUSY:
                self._unlisten(raw, state)
        self._rouse(state)

    def _unlisten(self, raw: Any, state: TenantState) -> None:
        """Unsubscribe from the tenant's queue, and ask it at its turn instead."""
        tag, state.tag, state.asked = state.tag, "", True
        self._tags.pop(tag, None)
        raw.basic_cancel(tag, callback=lambda _: None)

    def _rouse(self, state: TenantState) -> None:
        # One that was forgotten meanwhile has no turn.
        if self.states.get(state.name) is state:
            self._order.join(state.name, state.share)
            self._news.set()

    def _drop_hand(self, state: TenantState) -> Got | None:
        got, state.in_hand = state.in_hand, None
        if got is not None:
            self._bytes -= len(got.body)
        return got

    async def give_back(self, states: Sequence[TenantState]) -> bool:
        """Give back the jobs of these tenants and unsubscribe from their queues. To be called while `turn` is held.

        Returns whether the jobs are back in their queues.
        """
        channel = self._channel
        if channel is None or not channel.is_open:
            return False
        for state in states:
            if state.tag:
                self._unlisten(channel.raw, state)
        # Answered after all that was asked until now: no delivery is on its way any more.
        await channel.prefetch(1)
        for state in states:
            if (got := self._drop_hand(state)) is not None:
                channel.requeue(got.tag)
            self._rouse(state)
        # Answered once all these jobs have gone back.
        await channel.prefetch(1)
        return True

    async def _open(self) -> Channel:
        """The channel on which all jobs of tenants are taken."""
        if self._channel is not None and self._channel.is_open:
            return self._channel
        # RabbitMQ has taken back what was held on the last channel.
        self._tags.clear()
        self._unsure.clear()
        for state in self.states.values():
            self._drop_hand(state)
            state.tag, state.asked, state.unsure = "", True, _AT_ONCE
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
