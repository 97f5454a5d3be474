"""The keys that the leader has in memory, and the changes that one batch makes to them."""

from collections.abc import Iterable

from palermo.core import unique_rules
from palermo.core.message import Message
from palermo.core.unique_keys import Key
from palermo.core.unique_rules import KeyUpdate


class KnownKeys:
    """All keys that are not free, by name and by holder."""

    def __init__(self) -> None:
        self.keys: dict[str, Key] = {}
        self._holders: dict[str, set[str]] = {}
        #: The serial of a new key before its first holder. No forgotten key has had a higher one, so a late report
        #: about the holder of a forgotten key is never taken for one about the holder of a new key.
        self._serial = 0

    def learn(self, keys: Iterable[Key], serial: int) -> None:
        """Replace all keys by these. No key that was forgotten has had a serial above `serial`."""
        self.keys, self._holders, self._serial = {}, {}, serial
        for key in keys:
            self.remember(key)

    def get(self, name: str) -> Key:
        """The key of this name; a free one if nothing is known of it."""
        return self.keys.get(name) or Key(name=name, serial=self._serial)

    def held_by(self, id: str) -> list[Key]:
        """The keys that the job with this id holds."""
        return [self.keys[name] for name in sorted(self._holders.get(id, ()))]

    def remember(self, key: Key) -> None:
        """Store a key, to be found by its name and its holder. A free key is forgotten."""
        old = self.keys.get(key.name)
        before = None if old is None or old.holder is None else old.holder.id
        after = None if key.holder is None else key.holder.id
        if before is not None and before != after:
            named = self._holders.get(before, set())
            named.discard(key.name)
            if not named:
                self._holders.pop(before, None)
        self._serial = max(self._serial, key.serial)
        if key.is_free:
            self.keys.pop(key.name, None)
            return
        self.keys[key.name] = key
        if after is not None and before != after:
            self._holders.setdefault(after, set()).add(key.name)


class KeyChanges:
    """The keys that one batch changes, and the jobs that it publishes."""

    def __init__(self, known: KnownKeys, now: float) -> None:
        self._known = known
        self.now = now
        self.changed: dict[str, Key] = {}
        self.jobs: list[Message] = []

    def get(self, name: str) -> Key:
        """The key of this name; a free one if nothing is known of it."""
        return self._known.get(name)

    def held_by(self, id: str) -> list[Key]:
        """The keys that the job with this id holds."""
        return self._known.held_by(id)

    def all(self) -> list[Key]:
        """All keys as they are now, sorted by name."""
        keys = (unique_rules.current(key, self.now) for key in self._known.keys.values())
        return sorted((key for key in keys if not key.is_free), key=lambda key: key.name)

    def forget(self) -> None:
        """Forget the keys that the passing of time has made free. That need not be written down."""
        for name in [name for name, key in self._known.keys.items() if unique_rules.current(key, self.now).is_free]:
            self._known.remember(Key(name=name))

    def put(self, step: KeyUpdate) -> None:
        """Apply a step: store its key, and add its jobs to those to publish."""
        key, old = step.key, self.get(step.key.name)
        self.jobs += step.jobs
        if key == old and not step.jobs:
            return
        self.changed[key.name] = key
        self._known.remember(key)
