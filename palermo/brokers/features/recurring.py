"""Recurring jobs: an entry and the jobs that it publishes change in one step, so each tick fires once."""

import json

from palermo.brokers.features.steps import Step, StepStore, puts, unchanged
from palermo.contract import clock
from palermo.contract.recurring_entries import REMOVE, EntryChange, RecurringEntry
from palermo.core.message import Message

#: Maximum number of entries that one step fires, and of jobs after which it stops.
_BATCH_SIZE = 200

#: Seconds until the next attempt at an entry that this version can't read.
_RETRY_AFTER = 60.0


class Recurring:
    """The recurring jobs of one exchange. See palermo.contract.recurring_entries.RecurringEntries."""

    def __init__(self, store: StepStore) -> None:
        self._store = store

    async def all(self) -> list[RecurringEntry]:
        """All readable entries by name."""
        states = await self._store.fields("recurring")
        found = (RecurringEntry.from_stored(name, state) for name, state in states.items())
        return [entry for entry in found if entry is not None]

    async def change(self, change: EntryChange) -> None:
        """Change an entry. Raises NotFound."""

        async def attempt() -> None:
            (state,) = await self._store.states("recurring", [change.name])
            old = None if state is None else RecurringEntry.from_stored(change.name, state)
            # An unreadable entry can be removed, or replaced by a new one.
            unreadable = state is not None and old is None
            removes = unreadable and change.action == REMOVE
            entry, jobs = (None, []) if removes else change.made_to(old, clock.now())
            steps = puts(jobs)
            if entry is None:
                steps.append(("unset", "recurring", change.name))
            elif entry is not old:
                steps.append(_written(entry))
            if steps:
                await self._store.change([unchanged("recurring", change.name, state)], steps)

        await self._store.retried(attempt)

    async def fire(self, now: float) -> list[Message]:
        """Publish and return the due jobs; if there are too many, the next call continues."""

        async def attempt() -> list[Message]:
            jobs, conditions, steps = list[Message](), list[Step](), list[Step]()
            names = await self._store.due("recurring", now, _BATCH_SIZE)
            for name, state in zip(names, await self._store.states("recurring", names), strict=True):
                if len(jobs) >= _BATCH_SIZE:
                    break
                conditions.append(unchanged("recurring", name, state))
                entry = None if state is None else RecurringEntry.from_stored(name, state)
                if state is None:
                    steps.append(("unset", "recurring", name))
                    continue
                if entry is None:
                    steps.append(("set", "recurring", name, state, now + _RETRY_AFTER))
                    continue
                fired, after = entry.fired(now)
                jobs += fired
                steps += [*puts(fired), _written(after)]
            if steps:
                await self._store.change(conditions, steps)
            return jobs

        return await self._store.retried(attempt)

    async def mend(self, now: float) -> None:
        """Repair entries that a process with a fast clock has fired, so that they fire at their times again."""
        for name, state in (await self._store.fields("recurring")).items():
            entry = RecurringEntry.from_stored(name, state)
            if entry is not None and entry.is_ahead(now):
                await self._store.try_change([unchanged("recurring", name, state)], [_written(entry.mended(now))])


def _written(entry: RecurringEntry) -> Step:
    return ("set", "recurring", entry.name, json.dumps(entry.to_plain()), False if entry.next is None else entry.next)
