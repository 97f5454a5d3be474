"""Fires recurring jobs on RabbitMQ: the leader publishes the jobs of each entry at its ticks.

The entries are in a ledger, the durable queue `~recurring` (ledger.py). The leader commits an entry's next state
together with the published jobs, so a tick fires once, whichever process dies. While a queue refuses an entry's job,
the entry does not fire again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.publishing.ledger import Ledger, Table
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.brokers.rabbitmq.publishing.turns import take_turns
from palermo.brokers.rabbitmq.seconds import AGAIN, LOOK_EVERY
from palermo.contract.clock import seconds_until
from palermo.contract.recurring_entries import RECURRING, EntryChange, RecurringEntry
from palermo.contract.scheduled import OnJobs
from palermo.core.instants import Instants
from palermo.core.message import Message
from palermo.core.topology import internal
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: A commit gets no further entry once it has this number of entries and jobs.
_SLICE = 2_000


class RecurringJobs:
    """Holds and fires the recurring jobs of one exchange, for the leader."""

    def __init__(
        self,
        exchange: str,
        connection: Connection,
        outbox: Outbox,
        arguments: Mapping[str, Any],
        *,
        now: Callable[[], float],
        fired: OnJobs,
    ) -> None:
        """`arguments` are those of the ledger's queue; `fired` is called with the published jobs."""
        self._connection = connection
        queue = internal(exchange, "recurring")
        self._ledger = Ledger(
            Table(exchange, queue, arguments, RecurringEntry.from_plain, drops_copies=False), connection, outbox
        )
        self._now = now
        self._fired = fired
        #: Held while the entries are read or changed.
        self._turn = asyncio.Lock()
        self._news = asyncio.Event()
        self._entries: dict[str, RecurringEntry] = {}
        #: The next tick of each entry, by the wall clock.
        self._due = Instants()
        self._closed = False

    async def run(self) -> None:
        """Fire due entries until cancelled. Raises the connection's error when the connection is lost."""
        await take_turns(self._fire_in_turn, self._news, self._connection, "cannot enqueue recurring jobs")

    async def close(self) -> None:
        """Stop firing, and wait for pending commits, so that the next leader need not search for the jobs."""
        self._closed = True
        async with self._turn:
            pass

    async def entries(self) -> list[RecurringEntry]:
        """All entries, by name."""
        async with self._turn:
            await self._read()
            return [self._entries[name] for name in sorted(self._entries)]

    async def change(self, change: EntryChange) -> None:
        """Change an entry. Raises NotFound."""
        async with self._turn:
            await self._read()
            old = self._entries.get(change.name)
            entry, jobs = change.made_to(old, self._now())
            if entry is old:
                return
            if entry is None or not entry.recurring.enabled:
                self._ledger.give_up(id for id, name in self._refused().items() if name == change.name)
            refused = await self._commit({change.name: entry}, jobs)
            if refused:
                self._ledger.give_up(refused)
                await self._commit({change.name: old}, [])
                raise next(iter(refused.values()))
            self._fired(jobs)
            self._news.set()

    async def _fire_in_turn(self) -> float:
        """Fire due entries; return the seconds until the next check."""
        async with self._turn:
            if not self._ledger.is_open:
                await self._read()
                for name, entry in list(self._entries.items()):
                    self._hold(name, entry.mended(self._now()))
            while not self._closed and (names := self._due.until(self._now())):
                await self._fire(names)
            await self._ledger.tidy(self._entries)
        return LOOK_EVERY if self._due.first is None else min(LOOK_EVERY, seconds_until(self._due.first, self._now))

    async def _fire(self, names: Iterable[str]) -> None:
        left, waiting = deque(names), set(self._refused().values())
        while left:
            changes, jobs = dict[str, RecurringEntry | None](), list[Message]()
            while left and len(changes) + len(jobs) < _SLICE:
                name = left.popleft()
                if name in waiting:
                    self._due.put(name, self._now() + AGAIN)
                else:
                    some, changes[name] = self._entries[name].fired(self._now())
                    jobs += some
            if changes:
                await self._commit(changes, jobs)
                self._fired(jobs)

    def _refused(self) -> dict[str, str]:
        """The name of the entry of each refused job, by the job's id."""
        return {id: str(job.extra[RECURRING]) for id, job in self._ledger.refused.items()}

    async def _commit(
        self, changes: Mapping[str, RecurringEntry | None], jobs: list[Message]
    ) -> dict[str, PalermoError]:
        refused = await self._ledger.commit(changes, jobs)
        for name, entry in changes.items():
            self._hold(name, entry)
        return refused

    async def _read(self) -> None:
        if self._ledger.is_open:
            return
        entries, _ = await self._ledger.open()
        self._entries, self._due = {}, Instants()
        for name, entry in entries.items():
            self._hold(name, entry)

    def _hold(self, name: str, entry: RecurringEntry | None) -> None:
        if entry is None:
            self._entries.pop(name, None)
        else:
            self._entries[name] = entry
        self._due.put(name, None if entry is None else entry.next)
