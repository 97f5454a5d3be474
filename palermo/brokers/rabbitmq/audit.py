"""Going through a quorum queue of failed jobs, and putting the log of them right by what is met there.

Log and queue differ after a kill between two writes, while the log could not be written, by another
program's doing, and by jobs that were there before the log. Whoever goes through the whole queue meets
all of it: what the log does not know is written into it, and what it knows and is not there is gone.

That holds only while nobody else holds messages of the queue; so those who go through it take turns,
by the exclusive queue `~failed-log.turn`, which ends with the connection of whoever has it.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from palermo.broker import Swept, Verdict
from palermo.brokers.rabbitmq.failed_log import FailedLog, key_of
from palermo.brokers.rabbitmq.link import Channel, Link
from palermo.brokers.rabbitmq.sweep import Gate, Reader, sweep
from palermo.brokers.rabbitmq.translate import RESOURCE_LOCKED
from palermo.core.message import Message
from palermo.core.topology import internal
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Seconds between two attempts to have the turn, and lines about it.
_LOOK, _SAY = 0.1, 10.0

#: A job that failed less than so many seconds ago may be in the queue and on its way into the log.
_YOUNG = 60.0

#: New entries of the log that are read before a sweep, and for each message of the queue: more would take longer
#: than the sweep itself, and what was known of the log stays as it is.
_ENTRIES, _PER_MESSAGE = 5_000, 2


class Audits:
    """The sweeps of one session through queues of failed jobs of which there is a log."""

    def __init__(self, exchange: str, failed_log: FailedLog) -> None:
        self._log = failed_log
        self._name = internal(exchange, "failed-log.turn")
        self._here = asyncio.Lock()
        #: Whether the log is put right, for which its session remembers all that is in it.
        self.wanted = True

    async def sweep(
        self,
        reader: Reader,
        queue: str,
        decide: Callable[[Message], Verdict],
        publish: Callable[[list[Message]], Awaitable[object]],
        progress: Callable[[Swept], None],
        gate: Gate | None = None,
    ) -> Swept:
        """See palermo.broker.Broker.sweep; the log is put right where that takes not too long."""
        async with self._turn(reader.link) as alone:
            known = None
            if alone and self.wanted:
                most = _ENTRIES + _PER_MESSAGE * await reader.count()
                known = await self._log.known(reader.link, queue, most=most)
            audit = _Audit(self._log, queue, known)
            swept = await sweep(reader, queue, decide, publish, progress, audit.witness, gate)
            await audit.end(swept)
            return swept

    @asynccontextmanager
    async def _turn(self, link: Link) -> AsyncIterator[bool]:
        """Wait until nobody else has the turn, and have it; False where the server refuses to say who has it."""
        async with self._here:
            channel = await self._take(link)
            try:
                yield channel is not None
            finally:
                if channel is not None and channel.is_open:
                    channel.raw.queue_delete(self._name, callback=lambda _: None)
                    await channel.close()

    async def _take(self, link: Link) -> Channel | None:
        clock = asyncio.get_running_loop().time
        said = clock()
        while True:
            channel = await link.channel()
            try:
                await channel.call(channel.raw.queue_declare, self._name, exclusive=True)
                return channel
            except asyncio.CancelledError:
                # It may be ours all the same; if it is not, the server closes the channel before it comes to this.
                if channel.is_open:
                    channel.raw.queue_delete(self._name, callback=lambda _: None)
                    channel.raw.close()
                raise
            except PalermoError:
                if link.error is not None:
                    raise
                if channel.code != RESOURCE_LOCKED:
                    return None
            if clock() - said > _SAY:
                said = clock()
                log.warning("waiting for another requeue, discard or trim of failed jobs to end")
            await asyncio.sleep(_LOOK)


class _Audit:
    """What one sweep finds out about the log."""

    def __init__(self, failed_log: FailedLog, queue: str, known: Counter[str] | None) -> None:
        """`known` is what the log knew before the sweep; None if that is not known, and so nothing is put right."""
        self._log = failed_log
        self._queue = queue
        self._unmet = known
        self._old = time.time() - _YOUNG
        self._added = 0

    async def witness(self, kept: Sequence[Message], gone: Sequence[Message]) -> None:
        """These were met: some stay, some have left the queue."""
        if self._unmet is None:
            await self._log.taken(self._queue, gone)
            return
        strange = [one for one in kept if not self._meet(one) and self._is_old(one)]
        await self._log.taken(self._queue, [one for one in gone if self._meet(one) or not self._is_old(one)])
        await self._log.stored(self._queue, strange)
        self._added += len(strange)

    async def end(self, swept: Swept) -> None:
        """The sweep has ended like this."""
        if self._unmet is None:
            return
        vanished = list(self._unmet.elements()) if swept.seen == swept.total else []
        await self._log.gone(self._queue, vanished)
        if vanished or self._added:
            log.info(
                "the log of failed jobs was put right queue=%s added=%d removed=%d",
                self._queue,
                self._added,
                len(vanished),
            )

    def _meet(self, message: Message) -> bool:
        """Whether the log knows of this copy."""
        assert self._unmet is not None
        key = key_of(message)
        left = self._unmet.get(key, 0)
        if left > 1:
            self._unmet[key] = left - 1
        elif left:
            del self._unmet[key]
        return left > 0

    def _is_old(self, message: Message) -> bool:
        return message.failure is None or message.failure.failed_at < self._old
