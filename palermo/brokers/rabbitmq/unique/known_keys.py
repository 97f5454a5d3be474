"""All keys in the leader's memory, and the changes made by one batch of requests."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from typing import TypeVar

from palermo.core import unique_rules
from palermo.core.instants import Instants
from palermo.core.message import Message
from palermo.core.unique_keys import Key
from palermo.core.unique_rules import KeyUpdate

T = TypeVar("T")

#: Number of keys checked in one turn of the loop, and of keys read or written.
AT_ONCE, CODED_AT_ONCE = 1_000, 200


async def in_turns(items: Sequence[T], *, at_once: int = AT_ONCE) -> AsyncIterator[Sequence[T]]:
    """The items in batches, each in its own turn of the loop, so that other tasks can run in between."""
    for start in range(0, len(items), at_once):
        yield items[start : start + at_once]
        await asyncio.sleep(0)


class KnownKeys:
    """All keys that are not free, by name."""

    def __init__(self, serial: int = 0) -> None:
        """No dropped key has had a serial above `serial`."""
        self.keys: dict[str, Key] = {}
        self._alarms = Instants()
        self._ends = Instants()
        #: The serial that a new key starts with. No dropped key has had a higher one, so a late report about a dropped
        #: key's holder is never confused with one about a new key's.
        self._serial = serial

    def get(self, name: str) -> Key:
        """The key with this name; a free one if it is unknown."""
        return self.keys.get(name) or Key(name=name, serial=self._serial)

    def remember(self, key: Key) -> None:
        """Store a key; a free key is dropped instead."""
        self._serial = max(self._serial, key.serial)
        self._alarms.put(key.name, key.alarm)
        self._ends.put(key.name, key.over)
        if key.is_free:
            self.keys.pop(key.name, None)
        else:
            self.keys[key.name] = key

    def due(self, now: float) -> list[Key]:
        """The keys whose state changes by now."""
        return [self.keys[name] for name in self._alarms.until(now)]

    @property
    def next_alarm(self) -> float | None:
        """The Unix time at which a key's state first changes by itself; None for never."""
        return self._alarms.first

    def over(self, now: float) -> list[Key]:
        """The keys that have become free by themselves."""
        return [self.keys[name] for name in self._ends.until(now)]


class KeyChanges:
    """The keys that one batch changes, and the jobs that it publishes."""

    def __init__(self, known: KnownKeys, now: float) -> None:
        self._known = known
        self.now = now
        self.changed: dict[str, Key] = {}
        self.jobs: list[Message] = []

    def get(self, name: str) -> Key:
        """The key with this name; a free one if it is unknown."""
        return self._known.get(name)

    def held_by(self, ids: Collection[str]) -> list[tuple[Key, str]]:
        """The keys that these jobs hold, each with the job's id."""
        holders = ((key, key.holder.id) for key in self._known.keys.values() if key.holder is not None)
        return [(key, id) for key, id in holders if id in ids]

    def forget(self) -> None:
        """Drop the keys that have become free by themselves. This need not be recorded."""
        for key in self._known.over(self.now):
            self._known.remember(Key(name=key.name))

    def publish_due(self) -> None:
        """Publish the jobs that are due."""
        for key in self._known.due(self.now):
            self.put(unique_rules.publish_due(key, self.now))

    def put(self, step: KeyUpdate) -> None:
        """Apply an update: store its key, and add its jobs to those that will be published."""
        key, old = step.key, self.get(step.key.name)
        self.jobs += step.jobs
        if key == old and not step.jobs:
            return
        self.changed[key.name] = key
        self._known.remember(key)
