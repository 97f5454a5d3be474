"""Chooses the queue that a worker polls next: the first one, by order and shares, that is not known to be empty.

A queue that was found empty is polled again only after a check of all such queues has found jobs in it, so forty-nine
empty queues don't slow down the fiftieth. `due` and `stale` define how old the result of a check may be. The limit
depends on the cost of a check. Queues with a subscription need no checks.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import accumulate

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.many_queues import probe_all
from palermo.brokers.rabbitmq.seconds import POLL_EVERY, SOON
from palermo.core.queue_selection import QueueRank
from palermo.core.topology import amqp_queue

#: The pause until the next check of the empty queues, as a multiple of the last check's duration, from POLL_EVERY to
#: SOON. After twice that time, no queue counts as empty.
_TIMES = 10.0


class QueueOrder:
    """The queues that a worker serves now, in their order. Pure: the clock and random numbers are arguments."""

    def __init__(self, chance: Callable[[], float]) -> None:
        """`chance` returns numbers from 0 to below 1."""
        self._chance = chance
        self._places: dict[str, QueueRank] = {}
        self._empty: set[str] = set()
        #: The queues with a subscription, and the empty queues without one, which must be checked.
        self._watched: set[str] = set()
        self._unwatched: set[str] = set()
        #: The queues to draw from, and their running total of weights. They are on the lowest level that has queues not
        #: known to be empty.
        self._front: list[str] = []
        self._weights: list[int] = []
        #: When the oldest of these queues was found empty, and seconds until the next check.
        self._since = 0.0
        self._keeps = POLL_EVERY

    @property
    def empty(self) -> tuple[str, ...]:
        """The queues that were found empty and have no subscription."""
        return tuple(queue for queue in self._places if queue in self._unwatched) if self._unwatched else ()

    def serve(self, places: Mapping[str, QueueRank]) -> None:
        """Use these queues from now on, given in the order of their levels. New ones are checked first."""
        new = places.keys() - self._places.keys()
        self._places = dict(places)
        self._empty = (self._empty & places.keys()) | new
        self._unwatched = self._empty - self._watched
        if new:
            self._since = -math.inf
        self._arrange()

    def first(self) -> str | None:
        """The queue to poll now; None if all are known to be empty. Queues on one level are drawn by weight."""
        if len(self._front) < 2:
            return self._front[0] if self._front else None
        return self._front[bisect_right(self._weights, self._chance() * self._weights[-1])]

    def found_empty(self, queue: str, now: float) -> None:
        """Record that the queue had no job at this time."""
        if queue not in self._places:
            return
        self._empty.add(queue)
        if queue not in self._watched:
            if not self._unwatched:
                self._since = now
            self._unwatched.add(queue)
        self._arrange()

    def watch(self, queues: Collection[str]) -> None:
        """Record that these queues have a subscription now."""
        self._watched.update(queues)
        self._unwatched.difference_update(queues)

    def unwatch(self, queues: Collection[str]) -> None:
        """Record that these subscriptions have ended. One of the queues may just have got a job."""
        self._watched.difference_update(queues)
        if back := self._empty.intersection(queues):
            self._unwatched |= back
            self._since = -math.inf

    def found_full(self, queues: Collection[str]) -> None:
        """Record that these queues may have jobs, so that they are polled."""
        if not self._empty.isdisjoint(queues):
            self._empty.difference_update(queues)
            self._unwatched.difference_update(queues)
            self._arrange()

    def forget(self) -> None:
        """Stop considering queues empty, except those with a subscription."""
        self.found_full(self.empty)

    def looked(self, full: Collection[str], *, began: float, ended: float) -> None:
        """Record the result of a check of all empty queues: `full` has those with jobs."""
        self._since = ended
        self._keeps = min(SOON, max(POLL_EVERY, _TIMES * (ended - began)))
        self.found_full(full)

    def due(self, now: float) -> bool:
        """Whether the empty queues should be checked again while others are polled."""
        return bool(self._unwatched) and now - self._since >= self._keeps

    def stale(self, now: float) -> bool:
        """Whether the last check is too old to rely on, because no slot has made one since."""
        return bool(self._unwatched) and now - self._since >= 2 * self._keeps

    def _arrange(self) -> None:
        level = None
        self._front, weights = [], []
        for queue, place in self._places.items():
            if queue in self._empty:
                continue
            if level is None:
                level = place.level
            elif place.level != level:
                break
            self._front.append(queue)
            weights.append(place.weight)
        self._weights = list(accumulate(weights))


class FullQueues:
    """Finds a worker's queues with jobs that it may run now."""

    def __init__(self, connection: Connection, exchange: str, is_foreign: Callable[[str], bool]) -> None:
        """`is_foreign` returns whether a queue may legitimately keep jobs from an idle consumer."""
        # The consuming connection, because RabbitMQ doesn't read from the other one during an alarm.
        self._connection = connection
        self._exchange = exchange
        self._is_foreign = is_foreign
        #: Queues from which early jobs were removed since the last call of `find`.
        self.moved: set[str] = set()

    async def find(self, served: Iterable[str]) -> set[str]:
        """The queues among these that have jobs, and from which no early job was removed since the last call."""
        moved, self.moved = self.moved, set()
        names = {amqp_queue(self._exchange, queue): queue for queue in served if not self._is_foreign(queue)}
        probes = await probe_all(self._connection, names)
        return {queue for name, queue in names.items() if probes[name].ready} - moved
