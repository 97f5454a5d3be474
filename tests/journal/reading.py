"""Reading a journal in tests: all records so far, and those to come."""

from collections.abc import Iterator

from palermo.broker import Broker
from palermo.client import Client
from palermo.core.journal import Batch, Record
from tests.helpers import eventually


class Journal:
    """Follows the journal of a client's broker, from its first record on; each batch once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._batches: dict[tuple[str, int], Batch] = {}
        self.read_again()

    def read_again(self) -> None:
        """From the first record there is, after the journal was deleted or the session was lost."""

        async def read(broker: Broker) -> None:
            reader = await broker.journal.read(self._on_batch)
            await reader.caught_up.wait()

        self._client.run(read, again=True)

    def _on_batch(self, batch: Batch) -> None:
        if batch.records:
            self._batches[batch.source, batch.number] = batch

    def records(self, *kinds: str) -> list[Record]:
        """Those of these kinds, or all."""
        return [one for batch in self._batches.values() for one in batch.records if not kinds or one["kind"] in kinds]

    def ids(self, *kinds: str) -> Iterator[str]:
        """The ids of jobs in these."""
        return (one["id"] for one in self.records(*kinds))

    def counted(self, outcome: str) -> int:
        """How many jobs came to this, by the counts."""
        return sum(one.get(outcome, 0) for one in self.records("counts"))

    def until(self, count: int, *kinds: str, within: float = 10.0) -> list[Record]:
        """Those of these kinds, once there are so many."""
        eventually(lambda: len(self.records(*kinds)) >= count, within=within)
        return self.records(*kinds)
