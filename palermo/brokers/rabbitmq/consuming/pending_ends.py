"""Sends the ends of jobs with keys to the log of keys, and acknowledges each job once its end is stored there.

Only a job that needs the same key waits for that. A slot goes on with its next jobs meanwhile, until a few of its
ends are on their way.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from palermo.brokers.rabbitmq.leadership.key_client import RabbitmqKeys
from palermo.contract.admission import KeyReport
from palermo.contract.broker import Delivery
from palermo.core.unique_keys import lock_of
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Ends of one slot that may be on their way at once.
_MOST = 4

#: Seconds that a consumer waits for its last ends when it is closed.
_LAST_WORDS = 5.0


class PendingEnds:
    """The ends that one worker's consumer has under way."""

    def __init__(self, keys: RabbitmqKeys, acknowledge: Callable[[Delivery], None]) -> None:
        """`acknowledge` is called for a delivery whose end is stored; it may raise DeliveryLost."""
        self._keys = keys
        self._acknowledge = acknowledge
        self._tasks: dict[asyncio.Task[None], tuple[int, str]] = {}

    async def begin(self, delivery: Delivery, told: KeyReport) -> None:
        """Send the end of this job. Its delivery is acknowledged once the end is stored. Raises BrokerUnavailable."""
        while len(before := self._of(lambda slot, _: slot == delivery.slot)) >= _MOST:
            await asyncio.wait(before, return_when=asyncio.FIRST_COMPLETED)
        stored = await self._keys.send_end(delivery.message, told)
        lock = lock_of(delivery.message)
        task = asyncio.ensure_future(self._see_to(delivery, stored))
        self._tasks[task] = delivery.slot, "" if lock is None else lock.key
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def over(self, delivery: Delivery) -> None:
        """Wait until no end of a job with the same key is on its way."""
        lock = lock_of(delivery.message)
        if self._tasks and lock is not None and (before := self._of(lambda _, key: key == lock.key)):
            await asyncio.wait(before)

    async def close(self) -> None:
        """Wait for the ends that are on their way; give up those that take too long."""
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=_LAST_WORDS)
            for task in late:
                task.cancel()

    def _of(self, wanted: Callable[[int, str], bool]) -> "list[asyncio.Task[None]]":
        return [task for task, (slot, key) in self._tasks.items() if wanted(slot, key)]

    async def _see_to(self, delivery: Delivery, stored: Awaitable[None]) -> None:
        message = delivery.message
        try:
            await stored
            self._acknowledge(delivery)
        except PalermoError as error:
            log.warning(
                "the end of a job was not stored, the broker gives it back and it may run again id=%s job=%s error=%r",
                message.id,
                message.job,
                str(error),
            )
