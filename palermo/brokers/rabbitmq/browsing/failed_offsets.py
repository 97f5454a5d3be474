"""The places of failed jobs in the log of failed jobs (failed_log.py), without the jobs themselves."""

from collections import Counter

#: The most copies to remember that were logged as taken out before they were logged as stored; beyond that the oldest
#: are forgotten.
_EARLY = 10_000


def key(id: str, failed_at: int) -> str:
    """The key of one failure of a job in the log."""
    return f"{failed_at} {id}"


def parts(key: str) -> tuple[str, int]:
    """The job's id and the instant of its failure, from a key."""
    failed_at, _, id = key.partition(" ")
    return id, int(failed_at)


class FailedOffsets:
    """The copies of failed jobs that are in their queues, by queue and key; some 300 bytes for each."""

    def __init__(self) -> None:
        #: The offset of the next record to learn.
        self.next = 0
        #: A hash of the last record learned: tells it from another one at its place, in a log that was made anew.
        self.mark = 0
        self._there: dict[str, dict[str, tuple[int, ...]]] = {}
        self._early: dict[tuple[str, str], int] = {}

    def put(self, queue: str, key: str, offset: int) -> None:
        """Note that a copy was stored in this queue; the log has it at this offset."""
        early = self._early.pop((queue, key), 0)
        if early:
            # The session that took it out logged that sooner than the session that had put it in.
            if early > 1:
                self._early[queue, key] = early - 1
            return
        copies = self._there.setdefault(queue, {})
        copies[key] = (*copies.get(key, ()), offset)

    def gone(self, queue: str, key: str) -> None:
        """Note that a copy was taken out: the first one, if there are several."""
        copies = self._there.get(queue, {})
        offsets = copies.pop(key, ())
        if len(offsets) > 1:
            copies[key] = offsets[1:]
        elif not offsets:
            self._early[queue, key] = self._early.get((queue, key), 0) + 1
            if len(self._early) > _EARLY:
                del self._early[next(iter(self._early))]

    def emptied(self, queue: str) -> None:
        """Note that all copies were taken out of this queue."""
        self._there.pop(queue, None)
        self._early = {one: times for one, times in self._early.items() if one[0] != queue}

    def lost(self, queue: str, offsets: set[int]) -> None:
        """Note that the log has forgotten the copies at these offsets."""
        copies = self._there.get(queue, {})
        for key, places in list(copies.items()):
            if left := tuple(place for place in places if place not in offsets):
                copies[key] = left
            else:
                del copies[key]

    def places(self, queue: str) -> list[tuple[int, str]]:
        """The offsets of the copies in this queue, oldest first, each with its key."""
        return sorted((offset, key) for key, offsets in self._there.get(queue, {}).items() for offset in offsets)

    def copies(self, queue: str) -> Counter[str]:
        """How many copies are in this queue, by key."""
        return Counter({key: len(offsets) for key, offsets in self._there.get(queue, {}).items()})
