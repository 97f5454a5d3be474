"""Logs that are bounded by age and size: the journal, and the kept events."""

from palermo.brokers.features.steps import Step

#: Appends between two checks of the bounds.
_TRIM_EVERY = 50


class Log:
    """One session's access to append to one log."""

    def __init__(self, name: str, *, age: float, most_bytes: int) -> None:
        self.name = name
        self._age = age
        self._most_bytes = most_bytes
        self._appended = 0

    def append(self, body: bytes, now: float, *, topic: str = "", at: float | None = None) -> list[Step]:
        """The changes that append an entry, and occasionally remove old ones."""
        steps: list[Step] = [("append", self.name, body, topic, now if at is None else at)]
        if self._appended % _TRIM_EVERY == 0:
            steps.append(("trim", self.name, max(0.0, now - self._age), self._most_bytes))
        self._appended += 1
        return steps
