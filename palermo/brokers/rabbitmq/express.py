"""Plain jobs of a worker on one queue, handed over in the turn of the loop in which they come.

See palermo.broker.Express. Whatever needs a question first, about who ran it before, its key, its limit or its time,
goes the ordinary way, by `receive`.
"""

import time
from collections.abc import Callable

from palermo.broker import Delivery, Take
from palermo.brokers.rabbitmq.push import PushSource
from palermo.brokers.rabbitmq.starts import Starts
from palermo.brokers.rabbitmq.steering import Steering
from palermo.core.delay import is_early
from palermo.core.keys import lock_of
from palermo.core.message import Message
from palermo.core.permits import demand_of


class RabbitmqExpress:
    """The quick way of one consumer's jobs, beside its ordinary one."""

    def __init__(
        self,
        source: PushSource,
        steering: Steering,
        starts: Starts,
        unsettled: dict[int, Delivery],
        *,
        check: Callable[[Delivery], None],
        forget: Callable[[Delivery], None],
    ) -> None:
        """`unsettled`, `check` and `forget` are the consumer's own: it knows what is held, whichever way it came."""
        self._source = source
        self._steering = steering
        self._starts = starts
        self._unsettled = unsettled
        self._check = check
        self._forget = forget

    def offer_to(self, slot: int, take: Take) -> None:
        self._source.offer_to(slot, lambda delivery: self._offered(take, delivery))

    def _offered(self, take: Take, delivery: Delivery) -> bool:
        slot = delivery.slot
        if delivery.redelivered or slot in self._unsettled or not is_plain(delivery.message):
            return False
        if self._steering.checked(delivery).cancelled:
            return False
        self._unsettled[slot] = delivery
        if not take(delivery):
            del self._unsettled[slot]
            return False
        self._starts.watch()
        return True

    def next(self, slot: int) -> None:
        self._source.next(slot)

    def acknowledge(self, delivery: Delivery) -> None:
        self._check(delivery)
        channel, tag = delivery.token
        channel.link.raw.ack(channel.raw, tag)
        self._steering.gone(delivery)
        self._forget(delivery)


def is_plain(message: Message) -> bool:
    """Whether the job may be run without asking anybody, now."""
    if message.extra and (lock_of(message) is not None or demand_of(message) is not None):
        return False
    return message.run_at is None or not is_early(message, time.time())
