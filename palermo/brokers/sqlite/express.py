"""Plain jobs of one consumer, handed over without waking a task.

See palermo.broker.Express. What has been acknowledged in a turn of the loop is taken out of the file in the next one,
and in the same transaction each slot that it made free gets its next job: one write to the disk for both, and for all
slots that end in one turn. The transaction runs in the loop, as all of them do (see store.py).
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from palermo.admission import is_plain
from palermo.broker import Delivery, Take
from palermo.brokers.sqlite.store import Busy
from palermo.errors import PalermoError


class Claims(Protocol):
    """What the consumer holds, as its quick way sees it."""

    def finish(self, delivery: Delivery) -> None:
        """It has ended, and is to be taken out of the file with the next transaction. Raises what `settle` raises."""

    def free(self) -> list[int]:
        """The slots in which a call of `receive` waits for the slot to be free, and it is."""

    def claim_at_once(self, slots: Sequence[int]) -> list[Delivery]:
        """Take what has ended out of the file, and the next jobs for these slots. Raises Busy, or as `settle` does."""

    def go_on(self, slot: int, delivery: Delivery | None) -> None:
        """Have the call that waits in this slot return this delivery, or look for one itself."""

    def flush_soon(self) -> None:
        """Take what has ended out of the file by a task."""


class SqliteExpress:
    """The quick way of one consumer's jobs, beside its ordinary one."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._takes: dict[int, Take] = {}
        self._loop = asyncio.get_running_loop()
        self._due = False

    def offer_to(self, slot: int, take: Take) -> None:
        self._takes[slot] = take

    def acknowledge(self, delivery: Delivery) -> None:
        self._claims.finish(delivery)
        if not self._due:
            self._due = True
            self._loop.call_soon(self._turn)

    def next(self, slot: int) -> None:
        """Nothing: no slot holds a second job."""

    def offered(self, delivery: Delivery) -> bool:
        """Whether the slot has taken this delivery, which the consumer holds for it."""
        take = self._takes.get(delivery.slot)
        if take is None or delivery.redelivered or delivery.cancelled or not is_plain(delivery.message):
            return False
        return take(delivery)

    def _turn(self) -> None:
        self._due = False
        slots = self._claims.free()
        try:
            found = self._claims.claim_at_once(slots)
        except (Busy, PalermoError):
            # The ordinary way waits, and says what is wrong.
            found = []
            self._claims.flush_soon()
        for delivery in found:
            slots.remove(delivery.slot)
            if not self.offered(delivery):
                self._claims.go_on(delivery.slot, delivery)
        for slot in slots:
            self._claims.go_on(slot, None)
