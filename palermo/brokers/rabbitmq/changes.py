"""The keys as the arbiter has them in memory, and what one batch makes of them."""

from collections.abc import Iterable

from palermo.core import unique
from palermo.core.keys import Key
from palermo.core.message import Message
from palermo.core.unique import Step


class Known:
    """All keys of which something is known."""

    def __init__(self) -> None:
        self.keys: dict[str, Key] = {}
        self._holders: dict[str, set[str]] = {}
        #: A key that is new has had so many holders: what is told of one that was forgotten is not of this one.
        self._serial = 0

    def learn(self, keys: Iterable[Key], serial: int) -> None:
        """These are all; none that was forgotten has had more than so many holders."""
        self.keys, self._holders, self._serial = {}, {}, serial
        for key in keys:
            self.remember(key)

    def get(self, name: str) -> Key:
        """What is known of a key."""
        return self.keys.get(name) or Key(name=name, serial=self._serial)

    def held_by(self, id: str) -> list[Key]:
        """The keys that this job has."""
        return [self.keys[name] for name in sorted(self._holders.get(id, ()))]

    def remember(self, key: Key) -> None:
        """Keep a key, findable by its holder."""
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


class Changes:
    """What one batch changes."""

    def __init__(self, known: Known, now: float) -> None:
        self._known = known
        self.now = now
        self.changed: dict[str, Key] = {}
        self.jobs: list[Message] = []

    def get(self, name: str) -> Key:
        """What is known of a key."""
        return self._known.get(name)

    def held_by(self, id: str) -> list[Key]:
        """The keys that this job has."""
        return self._known.held_by(id)

    def all(self) -> list[Key]:
        """All keys, as they are now, by name."""
        keys = (unique.current(key, self.now) for key in self._known.keys.values())
        return sorted((key for key in keys if not key.is_free), key=lambda key: key.name)

    def forget(self) -> None:
        """Forget what time has made of no account, which needs not be written down."""
        for name in [name for name, key in self._known.keys.items() if unique.current(key, self.now).is_free]:
            self._known.remember(Key(name=name))

    def put(self, step: Step) -> None:
        """A key after something happened to it."""
        key, old = step.key, self.get(step.key.name)
        self.jobs += step.jobs
        if key == old and not step.jobs:
            return
        self.changed[key.name] = key
        self._known.remember(key)
