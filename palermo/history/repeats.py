"""Batches that are in the journal twice, because nobody answered when they were stored the first time."""

from palermo.core.journal import Batch

#: Writers that are remembered at most, those that wrote last: a batch is stored again within a minute or so.
MOST = 10_000


class Repeats:
    """Tells which batches are there again, whoever reads them in their order."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def has(self, batch: Batch) -> bool:
        """Whether this one, or a later one of its writer's, has been asked about before."""
        if not batch.source:
            return False
        last = self._last.pop(batch.source, 0)
        self._last[batch.source] = max(last, batch.number)
        if len(self._last) > MOST:
            del self._last[next(iter(self._last))]
        return batch.number <= last
