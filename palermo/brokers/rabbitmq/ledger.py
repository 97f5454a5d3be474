"""Which failed jobs there are, as the log of failed jobs (failed_log.py) tells it: their places, not themselves."""

from collections import Counter

#: Copies whose end was read before their beginning that are remembered; of more the oldest are forgotten.
_EARLY = 10_000


def key(id: str, failed_at: int) -> str:
    """What one failure of a job is called in the log."""
    return f"{failed_at} {id}"


def parts(key: str) -> tuple[str, int]:
    """The id and the instant in a key."""
    failed_at, _, id = key.partition(" ")
    return id, int(failed_at)


class Ledger:
    """The copies that are there, by queue and key; some 300 bytes for each."""

    def __init__(self) -> None:
        #: The offset of the next record to learn.
        self.next = 0
        #: What tells the last record learned from another one at its place, in a log that was made anew.
        self.mark = 0
        self._there: dict[str, dict[str, tuple[int, ...]]] = {}
        self._early: dict[tuple[str, str], int] = {}

    def put(self, queue: str, key: str, offset: int) -> None:
        """A copy was stored in this queue; it is kept at this offset."""
        early = self._early.pop((queue, key), 0)
        if early:
            # Whoever took it out was quicker to write that down than whoever had put it in.
            if early > 1:
                self._early[queue, key] = early - 1
            return
        copies = self._there.setdefault(queue, {})
        copies[key] = (*copies.get(key, ()), offset)

    def gone(self, queue: str, key: str) -> None:
        """A copy was taken out: the first of several."""
        copies = self._there.get(queue, {})
        offsets = copies.pop(key, ())
        if len(offsets) > 1:
            copies[key] = offsets[1:]
        elif not offsets:
            self._early[queue, key] = self._early.get((queue, key), 0) + 1
            if len(self._early) > _EARLY:
                del self._early[next(iter(self._early))]

    def emptied(self, queue: str) -> None:
        """All were taken out."""
        self._there.pop(queue, None)
        self._early = {one: times for one, times in self._early.items() if one[0] != queue}

    def lost(self, queue: str, offsets: set[int]) -> None:
        """The log has forgotten what it kept at these."""
        copies = self._there.get(queue, {})
        for key, places in list(copies.items()):
            if left := tuple(place for place in places if place not in offsets):
                copies[key] = left
            else:
                del copies[key]

    def places(self, queue: str) -> list[tuple[int, str]]:
        """Where the copies that are there are kept, oldest first, each with its key."""
        return sorted((offset, key) for key, offsets in self._there.get(queue, {}).items() for offset in offsets)

    def copies(self, queue: str) -> Counter[str]:
        """How many copies there are, by their key."""
        return Counter({key: len(offsets) for key, offsets in self._there.get(queue, {}).items()})
