"""Instants by name: what has many things to do at known times finds the first ones without looking at the others."""

from heapq import heapify, heappop, heappush

#: Instants that do not hold any more are thrown out of a heap when they are more than those that do, and this many.
_SPARE = 1_000


class Instants:
    """An instant for each of many names: finding the first ones costs no more the more names there are."""

    def __init__(self) -> None:
        self._instants: dict[str, float] = {}
        #: The instants and names by time; also some that hold no more.
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
        """The earliest instant; None if there is none."""
        while self._heap and self._instants.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def until(self, now: float) -> list[str]:
        """Take out the names whose instants are not after `now`."""
        found = []
        while (first := self.first) is not None and first <= now:
            found.append(heappop(self._heap)[1])
            del self._instants[found[-1]]
        return found
