"""The rules of `-q`: the queues that a worker serves, and their order.

As in Resque, the given order is strict priority. `*` stands for every queue not named elsewhere, in alphabetical order;
`file_*` is a glob; `!low` excludes a queue; on its own, it selects all others. Failed queues are never served.

Queues with weights, `high:5,low:1`, share one place in that order. For each poll the worker draws which of them comes
first, here `high` five times out of six. So `low` is slow but never starves.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import translate

from msgspec import Struct

from palermo.core.topology import check_job_queue, is_failed
from palermo.errors import QueueNameInvalid

_GLOB = frozenset("*?[")

#: The syntax of a weight after a pattern.
_WEIGHED = re.compile(r"(?s)(?P<pattern>.+):(?P<weight>[0-9]+)\Z")

#: The largest weight.
MAX_WEIGHT = 1_000


class QueueRank(Struct, frozen=True):
    """The place of one queue in the order."""

    #: Queues of a lower level are always polled first.
    level: int
    #: The share of polls in which it is first, among the queues of its level.
    weight: int = 1


def draw_order(places: Mapping[str, QueueRank], chance: Callable[[], float]) -> tuple[str, ...]:
    """The queues in the order of one poll; `chance` returns numbers from 0 to below 1.

    Within a level, each queue's chance to be first is proportional to its weight, and so on among the rest.
    """
    # Efraimidis and Spirakis, Weighted random sampling with a reservoir (2006): sort by u ** (1 / weight).
    ranks = {queue: (place.level, -((1.0 - chance()) ** (1.0 / place.weight))) for queue, place in places.items()}
    return tuple(sorted(places, key=ranks.__getitem__))


class PausedQueues(Struct, frozen=True):
    """The queues from which no worker takes jobs: some, by name, or all existing and future ones."""

    names: frozenset[str] = frozenset()
    every: bool = False

    def __contains__(self, queue: str) -> bool:
        return queue in self.names or (self.every and not is_failed(queue))


#: No queue is paused.
NONE_PAUSED = PausedQueues()

#: Stands for all queues among the stored names of paused queues. No queue can have this name.
EVERY_QUEUE = "~all"


class QueueSelection(Struct, frozen=True):
    """The queues a worker serves, as patterns in order of priority."""

    patterns: tuple[str, ...]
    #: The weight of each pattern, None for one with a place of its own; empty if no pattern has a weight.
    weights: tuple[int | None, ...] = ()

    @classmethod
    def parse(cls, text: str | Iterable[str]) -> "QueueSelection":
        """Parse a selection such as `high,low` or `high:5,low:1`, or a sequence of its parts.

        If a queue's name ends in a colon and digits, a weight must follow it. Raises QueueNameInvalid for an empty
        selection, an empty part, a name that workers must not serve, or an invalid weight.
        """
        parts = text.split(",") if isinstance(text, str) else list(text)
        split = [_weighed(part.strip()) if isinstance(part, str) else (part, None) for part in parts]
        patterns = tuple(pattern for pattern, _ in split)
        if not patterns or "" in patterns:
            raise QueueNameInvalid(
                f"queue list {text!r} contains an empty name. Separate names with commas: -q high,low."
            )
        for pattern in patterns:
            name = pattern.removeprefix("!") if isinstance(pattern, str) else pattern
            if not isinstance(name, str) or not _GLOB.intersection(name):
                if isinstance(pattern, str) and pattern.startswith("!") and is_failed(name):
                    continue
                check_job_queue(name)
        weights = tuple(weight for _, weight in split)
        return cls(patterns, weights if any(weights) else ())

    @property
    def fixed(self) -> bool:
        """Whether it names each queue, so that new queues can't join."""
        return not any(pattern.startswith("!") or _GLOB.intersection(pattern) for pattern in self.patterns)

    @property
    def shared(self) -> bool:
        """Whether it has weights, so that the order changes with each poll."""
        return bool(self.weights)

    @property
    def names(self) -> tuple[str, ...]:
        """The queues that are listed by their whole names."""
        return tuple(pattern for pattern, _ in self._wanted() if not _GLOB.intersection(pattern))

    def select(self, known: Iterable[str]) -> tuple[str, ...]:
        """The known queues to serve, in order. A queue listed by its whole name is served even if it is unknown."""
        return tuple(dict.fromkeys(name for _, found in self._matches(known) for name in found))

    def places(self, known: Iterable[str]) -> dict[str, QueueRank]:
        """The known queues to serve, with the place of each."""
        chosen: dict[str, QueueRank] = {}
        level, before = 0, None
        for weight, found in self._matches(known):
            # Adjacent weighted patterns share a level.
            level += weight is None or before is None
            before = weight
            for name in found:
                chosen.setdefault(name, QueueRank(level, weight or 1))
                level += weight is None
        return chosen

    def _matches(self, known: Iterable[str]) -> Iterator[tuple[int | None, list[str]]]:
        """For each pattern that selects queues, its weight and the matching queues in order."""
        names = sorted(name for name in dict.fromkeys(known) if not is_failed(name))
        refuse = [_matcher(pattern[1:]) for pattern in self.patterns if pattern.startswith("!")]
        wanted = list(self._wanted()) or [("*", None)]
        literal = {pattern for pattern, _ in wanted if not _GLOB.intersection(pattern)}
        if literal:
            names = [name for name in names if name not in literal]
        for pattern, weight in wanted:
            found = [pattern] if pattern in literal else list(filter(_matcher(pattern), names))
            for refused in refuse:
                found = [name for name in found if not refused(name)]
            yield weight, found

    @property
    def written(self) -> tuple[str, ...]:
        """Its parts, in the form that `parse` reads."""
        weights = self.weights or (None,) * len(self.patterns)
        return tuple(_written(pattern, weight) for pattern, weight in zip(self.patterns, weights, strict=True))

    def _wanted(self) -> Iterator[tuple[str, int | None]]:
        weights = self.weights or (None,) * len(self.patterns)
        for pattern, weight in zip(self.patterns, weights, strict=True):
            if not pattern.startswith("!"):
                yield pattern, weight

    def __str__(self) -> str:
        return ",".join(self.written)


def _matcher(pattern: str) -> Callable[[str], object]:
    """A function that is true for names that match a pattern."""
    return re.compile(translate(pattern)).match


def _weighed(part: str) -> tuple[str, int | None]:
    """Split a part of a selection into its pattern and its weight, or None. Raises QueueNameInvalid."""
    found = _WEIGHED.match(part)
    if found is None or is_failed(part):
        return part, None
    weight = int(found["weight"][:9])
    if not 1 <= weight <= MAX_WEIGHT:
        raise QueueNameInvalid(
            f"weight {found['weight'][:20]} of queue {found['pattern']!r} is invalid; it must be from 1 to"
            f" {MAX_WEIGHT}."
        )
    if part.startswith("!"):
        raise QueueNameInvalid(f"{part!r} both excludes a queue and gives it a weight. Write {found['pattern']!r}.")
    return found["pattern"], weight


def _written(pattern: str, weight: int | None) -> str:
    # A name that ends in a colon and digits would be read as a weight. A weight of 1 after it is harmless, since the
    # queue is alone in its place.
    if weight is None and _WEIGHED.match(pattern) and not pattern.startswith("!"):
        weight = 1
    return pattern if weight is None else f"{pattern}:{weight}"
