"""The queues that a worker serves, in the order in which it polls them."""

import random
from collections.abc import Collection

from palermo.core.queue_selection import PausedQueues, QueueRank, QueueSelection, draw_order


class ServedQueues:
    """The queues that a worker serves, as of the last version that was read."""

    def __init__(self, selection: QueueSelection) -> None:
        self._selection = selection
        #: The queues that are not paused, by priority.
        self._places: dict[str, QueueRank] = {}
        #: Changes whenever a queue is created, deleted, paused or resumed.
        self.version: object = None

    @property
    def shared(self) -> bool:
        """Whether queues have weights, so that the order changes with each job."""
        return self._selection.shared

    def order(self) -> tuple[str, ...]:
        """The queues in the order of the next poll."""
        return draw_order(self._places, random.random) if self.shared else tuple(self._places)

    def __contains__(self, queue: str) -> bool:
        return queue in self._places

    def update(self, version: object, names: Collection[str], paused: PausedQueues) -> None:
        """Store the existing and the paused queues of this version."""
        places = self._selection.places(names)
        self._places = {name: place for name, place in places.items() if name in names and name not in paused}
        self.version = version
