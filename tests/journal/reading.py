"""Reading a journal in tests: all records so far, and those to come."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress

from palermo.client.client import Client
from palermo.contract.broker import Broker
from palermo.contract.journal import JournalReader
from palermo.core.journal_records import Record, RecordBatch
from palermo.errors import BrokerUnavailable
from tests.helpers import eventually


class Journal:
    """Follows the journal of a client's broker, from its first record on; each batch once.

    It reads again after the journal was deleted or the session was lost: RabbitMQ 3.10 closes the connections of
    those who write to a stream just when another session makes it anew.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._batches: dict[tuple[str, int], RecordBatch] = {}
        self._reader: JournalReader | None = None
        self._read()

    def _read(self) -> None:
        async def read(broker: Broker) -> None:
            self._reader = reader = await broker.journal.read(self._on_batch)
            events = [asyncio.ensure_future(event.wait()) for event in (reader.caught_up, reader.ended)]
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            for event in events:
                event.cancel()

        with suppress(BrokerUnavailable):
            self._client.run(read, again=True)

    def _on_batch(self, batch: RecordBatch) -> None:
        if batch.records:
            self._batches[batch.source, batch.number] = batch

    def records(self, *kinds: str) -> list[Record]:
        """Those of these kinds, or all."""
        if self._reader is None or self._reader.ended.is_set():
            self._read()
        batches = list(self._batches.values())
        return [one for batch in batches for one in batch.records if not kinds or one["kind"] in kinds]

    def ids(self, *kinds: str) -> Iterator[str]:
        """The ids of jobs in these."""
        return (one["id"] for one in self.records(*kinds))

    def counted(self, outcome: str) -> int:
        """How many jobs came to this, by the counts."""
        return sum(one.get(outcome, 0) for one in self.records("counts"))

    def until(self, count: int, *kinds: str) -> list[Record]:
        """Those of these kinds, once there are so many."""
        eventually(lambda: len(self.records(*kinds)) >= count)
        return self.records(*kinds)
