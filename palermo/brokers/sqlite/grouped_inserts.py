"""Group commit: jobs that coroutines enqueue at the same time are stored in one transaction, with one disk write."""

import asyncio
from dataclasses import dataclass
from functools import partial

from palermo.brokers.features.portions import in_steps
from palermo.brokers.sqlite.channels import Channels
from palermo.brokers.sqlite.file.store import Store
from palermo.brokers.sqlite.tables.jobs import Row, insert_many, to_row
from palermo.core.message import Message
from palermo.errors import BrokerError, PublishRefused


@dataclass
class _Insert:
    message: Message
    row: Row
    #: Whether the job was stored or refused, or its caller was cancelled.
    ended: bool = False
    error: BrokerError | None = None


class GroupedInserts:
    """Stores jobs of concurrent calls together. Each call returns once its own job is stored."""

    def __init__(self, store: Store, exchange: str, channels: Channels) -> None:
        self._store = store
        self._exchange = exchange
        self._channels = channels
        self._inserts: list[_Insert] = []
        #: Held by the call that stores the jobs of all others.
        self._turn = asyncio.Lock()

    async def insert(self, message: Message) -> None:
        """Store a job. Raises EncodeError for a header that can't be stored, and the errors of Store.write."""
        mine = _Insert(message, to_row(message))
        self._inserts.append(mine)
        try:
            async with self._turn:
                while not mine.ended:
                    await asyncio.sleep(0)  # lets other calls of this loop turn join
                    await self._insert_some()
        finally:
            mine.ended = True
        if mine.error is not None:
            raise mine.error

    async def _insert_some(self) -> None:
        waiting = [one for one in self._inserts if not one.ended]
        batch = waiting[: len(next(in_steps(one.message for one in waiting)))]
        try:
            await self._write(batch)
        except PublishRefused:
            # One of the jobs may be one that the file can't store.
            for one in batch:
                try:
                    await self._write([one])
                except BrokerError as error:
                    one.error = error
                one.ended = True  # now, because after a cancel another call continues with the rest
        except BrokerError as error:
            for one in batch:
                one.error = type(error)(*error.args)  # each call its own: a shared one would collect all tracebacks
        for one in batch:
            one.ended = True
        self._inserts = [one for one in self._inserts if not one.ended]

    async def _write(self, batch: list[_Insert]) -> None:
        rows = [(one.message.queue, one.row) for one in batch]
        await self._store.write(partial(insert_many, exchange=self._exchange, rows=rows), publishing=True)
        self._channels.ring()
