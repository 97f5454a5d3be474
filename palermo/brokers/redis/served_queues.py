"""The queues that a worker serves, in the order in which it asks them for jobs."""

import random

from palermo.brokers.features.pauses_and_cancels import paused_in
from palermo.brokers.features.steps import text_of
from palermo.brokers.redis.store import Store
from palermo.core.queue_selection import QueueRank, QueueSelection, draw_order


class ServedQueues:
    """The queues that a worker serves, as of the version of the queues that was read last."""

    def __init__(self, store: Store, selection: QueueSelection) -> None:
        self._store = store
        self._selection = selection
        #: The queues that are not paused, in order of priority.
        self._places: dict[str, QueueRank] = {}
        #: Changes with every queue that is made, deleted, paused or resumed.
        self.version = b""

    @property
    def shared(self) -> bool:
        """Whether queues share places by weights, so that each job is looked for in another order."""
        return self._selection.shared

    def order(self) -> tuple[str, ...]:
        """The queues in the order of one look."""
        return draw_order(self._places, random.random) if self.shared else tuple(self._places)

    def __contains__(self, queue: str) -> bool:
        return queue in self._places

    async def refresh(self) -> None:
        """Read which queues there are, and which of them are paused."""
        # The version first: if a queue is made meanwhile, all is read once more.
        version = await self._store.call("GET", self._store.key("version"))
        names = {text_of(name) for name in await self._store.call("HKEYS", self._store.key("queues"))}
        paused = paused_in(await self._store.fields("pauses"))
        places = self._selection.places(names)
        self._places = {name: place for name, place in places.items() if name in names and name not in paused}
        self.version = version or b"0"
