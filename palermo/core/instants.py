"""Instants by name, with a fast way to find the earliest."""

from heapq import heapify, heappop, heappush

#: Outdated instants are removed from a heap when they outnumber the valid ones and exceed this number.
_SPARE = 1_000


class Instants:
    """An instant for each of many names. Finding the earliest takes the same time for any number of names."""

    def __init__(self) -> None:
        self._instants: dict[str, float] = {}
        #: By time, including outdated ones.
        self._heap: list[tuple[float, str]] = []

    def put(self, name: str, instant: float | None) -> None:
        """Set the name's instant; None removes it."""
        if instant is None:
            self._instants.pop(name, None)
        elif self._instants.get(name) != instant:
            self._instants[name] = instant
            heappush(self._heap, (instant, name))
            if len(self._heap) > 2 * len(self._instants) + _SPARE:
                self._heap = [(instant, name) for name, instant in self._instants.items()]
                heapify(self._heap)

    @property
    def first(self) -> float | None:
        """The earliest instant; None if there are no names."""
        while self._heap and self._instants.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def until(self, now: float) -> list[str]:
        """Remove the names whose instants have come by `now`, and return them."""
        found = []
        while (first := self.first) is not None and first <= now:
            found.append(heappop(self._heap)[1])
            del self._instants[found[-1]]
        return found
