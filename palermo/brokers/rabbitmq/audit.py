"""Going through a quorum queue of failed jobs, and putting the log of them right by what is met there.

Log and queue differ after a kill between two writes, while the log could not be written, by another
program's doing, and by jobs that were there before the log. Whoever goes through the whole queue meets
all of it: what the log does not know is written into it, and what it knows and is not there is gone.

That holds only while nobody else holds messages of the queue; so those who go through it take turns,
by the exclusive queue `~failed-log.turn`, which ends with the connection of whoever has it.
"""

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from palermo.broker import Swept, Verdict
from palermo.brokers.rabbitmq.failed_log import FailedLog, key_of
from palermo.brokers.rabbitmq.sweep import Gate, Reader, sweep
from palermo.brokers.rabbitmq.turn import Turn
from palermo.core.message import Message
from palermo.core.topology import internal

log = logging.getLogger("palermo.rabbitmq")

#: A job that failed less than so many seconds ago may be in the queue and on its way into the log.
_YOUNG = 60.0

#: New entries of the log that are read before a sweep, and for each message of the queue: more would take longer
#: than the sweep itself, and what was known of the log stays as it is.
_ENTRIES, _PER_MESSAGE = 5_000, 2


class Audits:
    """The sweeps of one session through queues of failed jobs of which there is a log."""

    def __init__(self, exchange: str, failed_log: FailedLog) -> None:
        self._log = failed_log
        self._turn = Turn(internal(exchange, "failed-log.turn"), "another requeue, discard or trim of failed jobs")
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
        async with self._turn.taken(reader.link) as alone:
            known = None
            if alone and self.wanted:
                most = _ENTRIES + _PER_MESSAGE * await reader.count()
                known = await self._log.known(reader.link, queue, most=most)
            audit = _Audit(self._log, queue, known)
            swept = await sweep(reader, queue, decide, publish, progress, audit.witness, gate)
            await audit.end(swept)
            return swept


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
