"""The clock: the one among all workers that publishes delayed jobs when they come due.

It leads as long as it holds the exclusive queue `~leader`, which the broker frees the moment its
connection ends. It consumes and publishes on that same connection, so that a leader which is
cut off can do nothing at all: what it held has gone back to the stretches' queues.

The jobs of the near stretches are held (held.py); those of farther ones are spread over shorter
stretches when these come near. Each is published and confirmed before it is acknowledged, so a kill
at any instant loses none, and doubles at most what was being confirmed.
"""

import asyncio
import logging
import time
from collections import deque
from typing import Any

from pika import spec

from palermo.brokers.rabbitmq.held import Due
from palermo.brokers.rabbitmq.later import Later, Stretches, queue_of
from palermo.brokers.rabbitmq.link import Channel, Got, Link
from palermo.brokers.rabbitmq.publisher import Publisher, Unroutable
from palermo.brokers.rabbitmq.wire import to_message
from palermo.core.delay import Stretch
from palermo.errors import BrokerError, PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Deliveries held on one channel: an acknowledgement searches all that its channel holds.
_PREFETCH = 1_000

#: Jobs of a far stretch that are moved at a time.
_BATCH = 200

#: Seconds after the end of a stretch for which its queue is kept, for publishers whose clocks are slow.
_KEPT = 60.0

#: Seconds between two looks at which stretches come near or are over.
_LOOK_EVERY = 0.5


class Clock:
    """One that leads, from its election to the end of its link."""

    def __init__(self, exchange: str, link: Link, later: Later, due: Due, spreader: Publisher) -> None:
        self._exchange = exchange
        self._link = link
        self._later = later
        self._due = due
        self._spreader = spreader
        self._stretches: Stretches
        self._readers: dict[Stretch, Reader] = {}

    async def run(self) -> None:
        """Lead until the link is lost, which is raised, or the call is cancelled."""
        self._stretches = await self._later.follow(self._link, lambda _: None)
        try:
            while self._link.error is None:
                await self._look(time.time())
                await asyncio.sleep(_LOOK_EVERY)
            raise self._link.error
        finally:
            self._due.close()
            for reader in self._readers.values():
                reader.close()

    async def _look(self, now: float) -> None:
        for stretch in sorted(self._stretches.known):
            reader = self._readers.get(stretch)
            if reader is not None and not reader.is_open:
                del self._readers[stretch]
                reader = None
            if reader is None and stretch.opens <= now:
                make = Holding if stretch.shortest else Spreading
                self._readers[stretch] = reader = make(self, stretch)
                await reader.open()
            if reader is not None and now > stretch.ends + _KEPT and not reader.held:
                await self._end(stretch, reader)

    async def _end(self, stretch: Stretch, reader: "Reader") -> None:
        """Delete the queue of a stretch that is over, unless something came into it at last."""
        await reader.leave()
        del self._readers[stretch]
        channel = await self._link.channel()
        try:
            await channel.call(
                channel.raw.queue_delete, queue_of(self._exchange, stretch), if_empty=True, if_unused=True
            )
        except PalermoError:
            if self._link.error is not None:
                raise
            return  # it is not empty: it is opened again
        await channel.close()
        await self._later.remove(stretch)
        self._stretches.known.discard(stretch)


class Reader:
    """Takes the jobs of one stretch."""

    def __init__(self, clock: Clock, stretch: Stretch) -> None:
        self.stretch = stretch
        #: How many of its jobs are held.
        self.held = 0
        self._clock = clock
        self._name = queue_of(clock._exchange, stretch)
        self._channels: list[tuple[Channel, str]] = []
        self._closed = False

    @property
    def is_open(self) -> bool:
        return not self._closed

    async def open(self) -> None:
        """Begin to take its jobs; those whose queue is not there, or not any more, are none."""
        channel = await self._clock._link.channel()
        channel.on_close(self._on_end)
        channel.raw.add_on_cancel_callback(lambda _: self._on_end())
        tag = f"clock-{self.stretch}-{len(self._channels)}"
        self._channels.append((channel, tag))
        try:
            await channel.call(channel.raw.basic_qos, prefetch_count=_PREFETCH)
            await channel.call(channel.raw.basic_consume, self._name, self._on_message, consumer_tag=tag)
        except PalermoError:
            if not channel.missing:
                raise
            self._closed = True

    async def leave(self) -> None:
        """Take no more of them."""
        self._closed = True
        for channel, _ in self._channels:
            await channel.close()

    def close(self) -> None:
        """The same, of a link that may be gone."""
        self._closed = True

    def taken(self, got: Got, channel: Channel) -> None:
        """A job has come."""
        raise NotImplementedError

    def settled(self) -> None:
        """One of its jobs is not held any more."""
        self.held -= 1

    def _on_message(self, raw: Any, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
        self.held += 1
        channel = next(channel for channel, _ in self._channels if channel.raw is raw)
        self.taken(Got(method.delivery_tag, method.redelivered, properties, body), channel)

    def _on_end(self) -> None:
        # Deleted by someone, or closed by the broker: what was held has gone back, and is taken again.
        self._closed = True


class Holding(Reader):
    """The jobs of a near stretch, each held until its instant."""

    def __init__(self, clock: Clock, stretch: Stretch) -> None:
        super().__init__(clock, stretch)
        self._widening: asyncio.Task[None] | None = None

    def taken(self, got: Got, channel: Channel) -> None:
        message = to_message(got.properties, got.body, taken_from=None)
        self._clock._due.add(message, got.properties, channel, got.tag, self.settled)
        if self.held > _PREFETCH * len(self._channels) - _BATCH and (self._widening is None or self._widening.done()):
            self._widening = asyncio.ensure_future(self._widen())

    async def _widen(self) -> None:
        try:
            await self.open()
        except BrokerError:
            self._closed = True


class Spreading(Reader):
    """The jobs of a far stretch, each moved to the shorter stretch within."""

    def __init__(self, clock: Clock, stretch: Stretch) -> None:
        super().__init__(clock, stretch)
        self._waiting: deque[tuple[Got, Channel]] = deque()
        self._working: asyncio.Task[None] | None = None

    def taken(self, got: Got, channel: Channel) -> None:
        self._waiting.append((got, channel))
        if self._working is None or self._working.done():
            self._working = asyncio.ensure_future(self._work())

    async def _work(self) -> None:
        try:
            while self._waiting and not self._closed:
                batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
                for got, channel in await self._moved(batch):
                    if channel.is_open:
                        channel.raw.basic_ack(got.tag)
                    self.settled()
        except PalermoError as error:
            log.warning("cannot spread delayed jobs stretch=%s error=%r", self.stretch, str(error))
            await self.leave()

    async def _moved(self, batch: list[tuple[Got, Channel]]) -> list[tuple[Got, Channel]]:
        """Publish these to the stretches within; those that are stored."""
        later, link, publisher = self._clock._later, self._clock._link, self._clock._spreader
        sent: list[tuple[asyncio.Future[None], Stretch, tuple[Got, Channel]]] = []
        for got, channel in batch:
            message = to_message(got.properties, got.body, taken_from=None)
            inner = self.stretch.within(max(message.run_at or 0.0, self.stretch.begins))
            await later.ensure(inner, link)
            future = publisher.send("", queue_of(self._clock._exchange, inner), got.properties, got.body)
            sent.append((future, inner, (got, channel)))
        await asyncio.wait([future for future, _, _ in sent])
        stored: list[tuple[Got, Channel]] = []
        for future, inner, one in sent:
            error = future.exception()
            if error is None:
                stored.append(one)
            elif isinstance(error, Unroutable):
                later.forget(inner)
                self._waiting.append(one)
            else:
                raise error
        return stored
