"""The queues of a polling worker (poll.py), which may be created, deleted, paused, or temporarily unusable."""

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import suppress

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.many_queues import probe_all
from palermo.brokers.rabbitmq.amqp.replies import QueueInUse
from palermo.brokers.rabbitmq.amqp.stream import Record
from palermo.brokers.rabbitmq.cluster.facts import QUEUE, Facts, FactState
from palermo.brokers.rabbitmq.consuming.troubled_queues import TroubledQueues
from palermo.brokers.rabbitmq.publishing.declarer import Declarer
from palermo.brokers.rabbitmq.seconds import RARELY
from palermo.contract.tasks import spawn
from palermo.core.queue_selection import NONE_PAUSED, PausedQueues, QueueRank, QueueSelection, draw_order
from palermo.core.topology import CLASSIC, amqp_queue
from palermo.errors import BrokerRefused, BrokerUnavailable, PalermoError

log = logging.getLogger("palermo.rabbitmq")


class ServedQueues:
    """The queues of one worker."""

    def __init__(
        self,
        connection: Connection,
        declarer: Declarer,
        facts: Facts,
        exchange: str,
        selection: QueueSelection,
        changed: Callable[[dict[str, QueueRank]], None],
    ) -> None:
        """`changed` is called with the queues to serve and their ranks, whenever these change."""
        self._connection = connection
        self._declarer = declarer
        self._exchange = exchange
        self._selection = selection
        self._changed = changed
        #: The type of each queue, in the order of their ranks; "" if unknown.
        self._kinds: dict[str, str] = {}
        self._places: dict[str, QueueRank] = {}
        self._known: set[str] = set()
        self._paused = NONE_PAUSED
        self._facts = facts
        self._tasks: set[asyncio.Task[None]] = set()
        self._troubled = TroubledQueues(self._try_again)
        #: The deleted queues, and the task that searches for them.
        self._deleted: set[str] = set()
        self._finding: asyncio.Task[None] | None = None

    def __iter__(self) -> Iterator[str]:
        """The queues to serve now, in order of priority. Queues with weights are drawn again each time."""
        order = draw_order(self._places, random.random) if self._selection.shared else tuple(self._kinds)
        return (queue for queue in order if queue in self)

    def __contains__(self, queue: str) -> bool:
        """Whether jobs of this queue should be taken now."""
        return queue not in self._paused and queue in self._kinds and queue not in self._troubled

    def amqp_name(self, queue: str) -> str:
        """The queue's name in RabbitMQ."""
        return amqp_queue(self._exchange, queue)

    async def begin(self) -> None:
        """Find the queues to serve. If the selection has patterns, also serve new queues, as their names arrive."""
        if self._selection.fixed:
            await self.know(set())
        else:
            await self._facts.watch(self._connection, self._on_fact)
            await self.know(self._facts.state.queues)

    def _on_fact(self, state: FactState, record: Record) -> None:
        # If a session writes a known name, the queue was created again after a deletion without a record. The leader's
        # rewrites don't count.
        if record.get("kind", QUEUE) == QUEUE and not record.get("again"):
            spawn(self._tasks, self._learn(state.queues))

    async def _learn(self, names: set[str]) -> None:
        with suppress(PalermoError):  # the session is lost: receive() raises the error
            await self.know(names)

    async def know(self, names: set[str]) -> None:
        """Serve the queues among these that match the selection."""
        known = self._known = set(names)
        places = self._selection.places(known)
        kinds = await self._declarer.ensure_registered(queue for queue in places if queue in known)
        chosen = {queue: kinds.get(queue) or await self._ensure(queue, among=len(places)) for queue in places}
        if self._known is not known:
            return  # a later call has more queues, and serves them
        if list(chosen) != list(self._kinds):
            self._kinds, self._places = chosen, places
            self._rank()

    async def are_classic(self) -> bool:
        """Whether all are classic queues. Queries unknown types."""
        for queue in [queue for queue in self if not self._kinds[queue]]:
            self._kinds[queue] = await self._ensure(queue, among=len(list(self)))
        return all(self._kinds.get(queue) == CLASSIC for queue in self)

    async def _ensure(self, queue: str, *, among: int) -> str:
        """The type of a queue; "" if it is unusable now. If the worker has no other queue, raises the error instead."""
        try:
            return await self._declarer.ensure(queue)
        except (BrokerRefused, BrokerUnavailable) as error:
            if self._connection.error is not None or among == 1:
                raise
            self._troubled.put(queue, error)
            return ""

    def leave_alone(self, queue: str, error: PalermoError) -> None:
        """Don't serve a queue for a while.

        Raises the error if it is the only one, except if another program is just using it.
        """
        if not any(other != queue for other in self) and not isinstance(error, QueueInUse):
            raise error
        self._troubled.put(queue, error)
        self._rank()

    def _try_again(self, queue: str) -> None:
        self.forget_kind(queue)
        self._rank()

    def pause(self, queues: PausedQueues) -> None:
        """Take nothing from these queues; resume all others."""
        if queues != self._paused:
            for queue in list(self._kinds):
                if queue in self._paused and queue not in queues:
                    # It may have been migrated during the pause.
                    self.forget_kind(queue)
            self._paused = queues
            self._rank()

    def forget_kind(self, queue: str) -> None:
        """Forget the queue's type, so that it is queried again."""
        self._declarer.forget(queue)
        if queue in self._kinds:
            self._kinds[queue] = ""

    async def missing(self, queue: str) -> None:
        """Handle a deleted queue: create it again if the worker serves it by its whole name, otherwise drop it."""
        self._declarer.forget(queue)
        if queue in self._selection.patterns:
            self._kinds[queue] = await self._declarer.ensure(queue)
            log.warning("queue was deleted, declaring it again queue=%s", queue)
        else:
            self._kinds.pop(queue, None)
            self._rank()
            self._deleted.add(queue)
            if self._finding is None or self._finding.done():
                self._finding = asyncio.ensure_future(self._find_deleted())

    async def _find_deleted(self) -> None:
        """Serve deleted queues again if another program has recreated them. Registers nothing."""
        while self._deleted and self._connection.error is None:
            await asyncio.sleep(RARELY)  # because RabbitMQ logs each query of a missing queue
            self._deleted &= self._known - self._kinds.keys()
            with suppress(PalermoError):  # the next search may find them
                probes = await probe_all(self._connection, [self.amqp_name(queue) for queue in self._deleted])
                there = [queue for queue in self._deleted if probes[self.amqp_name(queue)].exists]
                kinds = {queue: await self._declarer.ensure(queue) for queue in there}
                if kinds:
                    found = kinds | self._kinds
                    self._kinds = {queue: found[queue] for queue in self._places if queue in found}
                    self._rank()

    def _rank(self) -> None:
        self._changed({queue: place for queue, place in self._places.items() if queue in self})

    async def close(self) -> None:
        """Stop checking for queues."""
        self._facts.ignore(self._on_fact)
        self._troubled.close()
        if self._finding is not None:
            self._finding.cancel()
            await asyncio.wait({self._finding})
