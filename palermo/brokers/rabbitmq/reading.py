"""Taking up the jobs of a stretch that comes near: to be held until their instants, or spread over shorter ones."""

import asyncio
import logging
from collections import deque
from typing import Any

from pika import spec

from palermo.brokers.rabbitmq.held import Due
from palermo.brokers.rabbitmq.later import Later, queue_of
from palermo.brokers.rabbitmq.link import Channel, Got, Link
from palermo.brokers.rabbitmq.publisher import Publisher, Unroutable
from palermo.brokers.rabbitmq.sweep import restored, waits
from palermo.brokers.rabbitmq.wire import to_message
from palermo.core.delay import Stretch
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Deliveries held on one channel: an acknowledgement searches all that its channel holds.
_PREFETCH = 1_000

#: How near to that it may come before another channel is opened.
_ROOM = 200

#: Channels for one stretch: so many thousand jobs are held of it, and no more.
_CHANNELS = 100

#: Hundredths of a second that a stretch gets to hand out all that lies in it.
_PATIENCE = 1_000

#: Jobs of a far stretch that are moved at a time; what is due has its turn in between.
_BATCH = 100


class Reader:
    """Takes the jobs of one stretch."""

    def __init__(self, exchange: str, link: Link, stretch: Stretch) -> None:
        self.stretch = stretch
        #: How many of its jobs are held.
        self.held = 0
        self._link = link
        self._name = queue_of(exchange, stretch)
        self._channels: list[Channel] = []
        #: Whether it takes none any more: its queue was deleted, the broker closed a channel, or we did.
        self.closed = False

    async def open(self) -> None:
        """Begin to take its jobs, or to take more at a time; a queue that is not there has none."""
        channel = await self._link.channel()
        channel.on_close(self._on_end)
        channel.raw.add_on_cancel_callback(lambda _: self._on_end())
        self._channels.append(channel)

        def on_message(_: Any, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
            self.held += 1
            self.taken(Got(method.delivery_tag, method.redelivered, properties, body), channel)

        try:
            await channel.call(channel.raw.basic_qos, prefetch_count=_PREFETCH)
            await channel.call(channel.raw.basic_consume, self._name, on_message)
        except PalermoError:
            if not channel.missing:
                raise
            self.closed = True

    async def leave(self) -> None:
        """Take no more of them, and give back what is held; returns when it is there again."""
        self.closed = True
        held = self.held
        for channel in self._channels:
            if channel.is_open:
                channel.raw.basic_nack(0, multiple=True, requeue=True)
            await channel.close()
        if held:
            await restored(self._link, self._name)

    async def caught_up(self) -> None:
        """Wait until all that lay in the queue when this was called has come."""
        for channel in list(self._channels):
            for _ in range(_PATIENCE):
                if not channel.is_open or not await waits(channel, self._name):
                    break
                await asyncio.sleep(0.01)

    def taken(self, got: Got, channel: Channel) -> None:
        """A job has come."""
        raise NotImplementedError

    def settled(self) -> None:
        """One of its jobs is not held any more."""
        self.held -= 1

    def _on_end(self) -> None:
        self.closed = True


class Holding(Reader):
    """The jobs of a near stretch, each held until its instant."""

    def __init__(self, exchange: str, link: Link, stretch: Stretch, due: Due) -> None:
        super().__init__(exchange, link, stretch)
        self._due = due
        self._widening: asyncio.Task[None] | None = None

    def taken(self, got: Got, channel: Channel) -> None:
        message = to_message(got.properties, got.body, taken_from=None)
        self._due.add(message, channel, got.tag, self.settled)
        full = self.held > _PREFETCH * len(self._channels) - _ROOM
        if full and len(self._channels) < _CHANNELS and (self._widening is None or self._widening.done()):
            self._widening = asyncio.ensure_future(self._widen())

    async def _widen(self) -> None:
        try:
            await self.open()
        except PalermoError:
            self.closed = True


class Spreading(Reader):
    """The jobs of a far stretch, each moved to the shorter stretch within."""

    def __init__(self, exchange: str, link: Link, stretch: Stretch, later: Later, publisher: Publisher) -> None:
        super().__init__(exchange, link, stretch)
        self._exchange = exchange
        self._later = later
        self._publisher = publisher
        self._waiting: deque[tuple[Got, Channel]] = deque()
        self._working: asyncio.Task[None] | None = None

    def taken(self, got: Got, channel: Channel) -> None:
        self._waiting.append((got, channel))
        if self._working is None or self._working.done():
            self._working = asyncio.ensure_future(self._work())

    async def leave(self) -> None:
        """Take no more of them; returns when none is on its way to another stretch."""
        self.closed = True
        if self._working is not None:
            await asyncio.wait({self._working})
        await super().leave()

    async def _work(self) -> None:
        try:
            while self._waiting and not self.closed:
                batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
                for got, channel in await self._moved(batch):
                    if channel.is_open:
                        channel.raw.basic_ack(got.tag)
                    self.settled()
        except PalermoError as error:
            if self._link.error is None:
                log.warning("cannot spread delayed jobs stretch=%s error=%r", self.stretch, str(error))
            self.closed = True
            await super().leave()

    async def _moved(self, batch: list[tuple[Got, Channel]]) -> list[tuple[Got, Channel]]:
        """Publish these to the stretches within; those that are stored."""
        sent: list[tuple[asyncio.Future[None], Stretch, tuple[Got, Channel]]] = []
        for got, channel in batch:
            inner = self.stretch.within(self._instant(got))
            if not self._later.has(inner):
                await self._later.ensure(inner)
            future = self._publisher.send("", queue_of(self._exchange, inner), got.properties, got.body)
            sent.append((future, inner, (got, channel)))
        await asyncio.wait([future for future, _, _ in sent])
        stored: list[tuple[Got, Channel]] = []
        for future, inner, one in sent:
            error = future.exception()
            if error is None:
                stored.append(one)
            elif isinstance(error, Unroutable):
                self._later.forget(inner)
                self._waiting.append(one)
            else:
                raise error
        return stored

    def _instant(self, got: Got) -> float:
        due = to_message(got.properties, b"", taken_from=None).run_at or 0.0
        return min(max(due, self.stretch.begins), self.stretch.ends - 0.001)
