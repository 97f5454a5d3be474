"""Sweeps through quorum queues of failed jobs, which also correct the log of failed jobs.

Log and queue differ after a kill between two writes, after a time when the log could not be written, after another
program changed the queue, and where jobs are older than the log. A sweep through the whole queue meets every job: it
writes the jobs that the log does not know into the log, and removes the entries whose jobs are not there.

That holds only while no other session holds messages of the queue. So sessions take turns, by the exclusive queue
`~failed-log.turn`, which ends with the connection that holds it.
"""

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from palermo.brokers.rabbitmq.amqp.mutex import Mutex
from palermo.brokers.rabbitmq.browsing.failed_log import FailedLog, key_of
from palermo.brokers.rabbitmq.browsing.sweep import Gate, Reader, sweep
from palermo.contract.sweep import SweepDecision, SweepProgress
from palermo.core.message import Message
from palermo.core.topology import internal

log = logging.getLogger("palermo.rabbitmq")

#: A job that failed less than this many seconds ago may be in the queue while its entry is on its way into the log.
_YOUNG = 60.0

#: The most new entries of the log that are read before a sweep: so many, and so many more for each message of the
#: queue. Reading more would take longer than the sweep itself, so the log is not corrected then.
_ENTRIES, _PER_MESSAGE = 5_000, 2


class FailedSweeps:
    """The sweeps of one session through queues of failed jobs that have a log."""

    def __init__(self, exchange: str, failed_log: FailedLog) -> None:
        self._log = failed_log
        self._mutex = Mutex(internal(exchange, "failed-log.turn"), "another requeue, discard or trim of failed jobs")
        #: Whether sweeps correct the log. For that the session remembers all that is in the log.
        self.wanted = True

    async def sweep(
        self,
        reader: Reader,
        queue: str,
        decide: Callable[[Message], SweepDecision],
        publish: Callable[[list[Message]], Awaitable[object]],
        progress: Callable[[SweepProgress], None],
        gate: Gate | None = None,
    ) -> SweepProgress:
        """See palermo.contract.broker.Broker.sweep. The log is corrected where that does not take too long."""
        async with self._mutex.held(reader.connection, optional=True) as alone:
            known = None
            if alone and self.wanted:
                most = _ENTRIES + _PER_MESSAGE * await reader.count()
                known = await self._log.known(reader.connection, queue, most=most)
            comparison = _FailedSweep(self._log, queue, known)
            swept = await sweep(reader, queue, decide, publish, progress, comparison.witness, gate)
            await comparison.end(swept)
            return swept


class _FailedSweep:
    """The comparison of one sweep with the log."""

    def __init__(self, failed_log: FailedLog, queue: str, known: Counter[str] | None) -> None:
        """`known` counts the log's entries before the sweep, by key; None if they were not read: none is corrected."""
        self._log = failed_log
        self._queue = queue
        self._unmet = known
        self._old = time.time() - _YOUNG
        self._added = 0

    async def witness(self, kept: Sequence[Message], gone: Sequence[Message]) -> None:
        """Compare these jobs with the log: those in `kept` stay in the queue, those in `gone` have left it."""
        if self._unmet is None:
            await self._log.taken(self._queue, gone)
            return
        strange = [one for one in kept if not self._meet(one) and self._is_old(one)]
        await self._log.taken(self._queue, [one for one in gone if self._meet(one) or not self._is_old(one)])
        await self._log.stored(self._queue, strange)
        self._added += len(strange)

    async def end(self, swept: SweepProgress) -> None:
        """Remove the entries whose jobs were not met, if the sweep went through the whole queue."""
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
        """Whether the log has an entry for this copy, which is then used up."""
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
