"""The queues that a worker can't use now although its session works.

A queue is unusable if another program uses it exclusively, if this user has no permission to read it, or if its node is
down. The worker serves its other queues in the meantime, and retries after a while.
"""

import asyncio
import logging
import math
from collections.abc import Callable

from palermo.brokers.rabbitmq.amqp.connection import Channel
from palermo.brokers.rabbitmq.amqp.replies import ACCESS_REFUSED, NOT_FOUND, RESOURCE_LOCKED
from palermo.brokers.rabbitmq.seconds import SAY_EVERY
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Seconds for which a queue is ignored.
_ALONE = 5.0


class TroubledQueues:
    """The ignored queues, each with the time of the next attempt."""

    def __init__(self, try_again: Callable[[str], None]) -> None:
        """`try_again` is called with a queue when the next attempt is due."""
        self._try_again = try_again
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._said: dict[str, float] = {}

    def __contains__(self, queue: object) -> bool:
        return queue in self._timers

    def put(self, queue: str, error: PalermoError) -> None:
        """Ignore this queue for a while, because of this error."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._said.get(queue, -math.inf) > SAY_EVERY:
            self._said[queue] = loop.time()
            log.warning("cannot use a queue, ignoring it for now queue=%s error=%r", queue, str(error))
        if queue not in self._timers:
            self._timers[queue] = loop.call_later(_ALONE, self._over, queue)

    def close(self) -> None:
        """Stop retrying."""
        for timer in self._timers.values():
            timer.cancel()

    def _over(self, queue: str) -> None:
        del self._timers[queue]
        self._try_again(queue)


def is_of_a_queue(channel: Channel) -> bool:
    """Whether RabbitMQ closed this channel because of the polled queue, rather than the session."""
    return channel.connection.error is None and channel.code in (ACCESS_REFUSED, NOT_FOUND, RESOURCE_LOCKED)
