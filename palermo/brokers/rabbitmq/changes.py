"""What one batch of the arbiter makes of the keys in memory."""

from palermo.core import unique
from palermo.core.keys import Key
from palermo.core.message import Message
from palermo.core.unique import Step


class Changes:
    """What one batch changes."""

    def __init__(self, keys: dict[str, Key], holders: dict[str, set[str]], now: float) -> None:
        self._keys = keys
        self._holders = holders
        self.now = now
        self.changed: dict[str, Key] = {}
        self.jobs: list[Message] = []

    def get(self, name: str) -> Key:
        """What is known of a key."""
        return self._keys.get(name) or Key(name=name)

    def held_by(self, id: str) -> list[Key]:
        """The keys that this job has."""
        return [self._keys[name] for name in sorted(self._holders.get(id, ()))]

    def all(self) -> list[Key]:
        """All keys, as they are now, by name."""
        keys = (unique.current(key, self.now) for key in self._keys.values())
        return sorted((key for key in keys if not key.is_free), key=lambda key: key.name)

    def forget(self) -> None:
        """Forget what time has made of no account, which needs not be written down."""
        for name in [name for name, key in self._keys.items() if unique.current(key, self.now).is_free]:
            remember(self._keys, self._holders, Key(name=name))

    def put(self, step: Step) -> None:
        """A key after something happened to it."""
        key, old = step.key, self.get(step.key.name)
        self.jobs += step.jobs
        if key == old and not step.jobs:
            return
        self.changed[key.name] = key
        remember(self._keys, self._holders, key)


def remember(keys: dict[str, Key], holders: dict[str, set[str]], key: Key) -> None:
    """Keep a key in memory, findable by its holder."""
    old = keys.get(key.name)
    if old is not None and old.holder is not None:
        named = holders.get(old.holder.id, set())
        named.discard(key.name)
        if not named:
            holders.pop(old.holder.id, None)
    if key.is_free:
        keys.pop(key.name, None)
        return
    keys[key.name] = key
    if key.holder is not None:
        holders.setdefault(key.holder.id, set()).add(key.name)
