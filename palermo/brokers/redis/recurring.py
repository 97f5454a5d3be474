"""Recurring jobs: an entry changes in one step with the jobs that it publishes, and so each tick fires once."""

import json

from palermo.brokers.redis.store import Step, Store, puts
from palermo.contract import clock
from palermo.contract.recurring_entries import REMOVE, EntryChange, RecurringEntry
from palermo.core.message import Message

#: So many jobs, and no other entry is fired in the same turn.
_BATCH_SIZE = 200

#: Seconds until a recurring job that cannot be read here is tried again.
_RETRY_AFTER = 60.0


class Recurring:
    """The recurring jobs of one exchange. See palermo.contract.recurring_entries.RecurringEntries."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def all(self) -> list[RecurringEntry]:
        """All entries, by name; those that cannot be read here are left out."""
        states = await self._store.fields("recurring")
        found = (RecurringEntry.from_stored(name, states[name]) for name in sorted(states))
        return [entry for entry in found if entry is not None]

    async def change(self, change: EntryChange) -> None:
        """Change an entry. Raises NotFound."""

        async def attempt() -> None:
            state = await self._store.call("HGET", self._store.key("recurring"), change.name)
            old = None if state is None else RecurringEntry.from_stored(change.name, state)
            # An entry that cannot be read can be removed, or replaced by a new one.
            unreadable = state is not None and old is None
            removes = unreadable and change.action == REMOVE
            entry, jobs = (None, []) if removes else change.made_to(old, clock.now())
            steps = puts(jobs)
            if entry is None:
                steps.append(("entry", change.name, False, False))
            elif entry is not old:
                steps.append(_written(entry))
            if steps:
                await self._store.change([("field", "recurring", change.name, state or False)], steps)

        await self._store.retried(attempt)

    async def fire(self, now: float) -> list[Message]:
        """Publish the jobs that are due and return them; if they are very many, the rest follows next time."""
        names = await self._store.call("ZRANGEBYSCORE", self._store.key("recurring-due"), "-inf", now)
        jobs: list[Message] = []
        for name in names:
            if len(jobs) >= _BATCH_SIZE:
                break
            jobs += await self._fire(name, now)
        return jobs

    async def mend(self, now: float) -> None:
        """Have entries that a clock far ahead has fired fire again at their times."""
        states = await self._store.fields("recurring")
        for name, state in states.items():
            entry = RecurringEntry.from_stored(name, state)
            if entry is not None and entry.is_ahead(now):
                condition = [("field", "recurring", name, state)]
                await self._store.try_change(condition, [_written(entry.renewed(now))])

    async def _fire(self, name: bytes, now: float) -> list[Message]:
        async def attempt() -> list[Message]:
            state = await self._store.call("HGET", self._store.key("recurring"), name)
            entry = None if state is None else RecurringEntry.from_stored(name, state)
            condition = [("field", "recurring", name, state or False)]
            if entry is None:
                kept = state or False
                await self._store.change(condition, [("entry", name, kept, now + _RETRY_AFTER if kept else False)])
                return []
            jobs, after = entry.fired(now)
            await self._store.change(condition, [*puts(jobs), _written(after)])
            return jobs

        return await self._store.retried(attempt)


def _written(entry: RecurringEntry) -> Step:
    due = entry.next
    return ("entry", entry.name, json.dumps(entry.to_plain()), False if due is None else due)
