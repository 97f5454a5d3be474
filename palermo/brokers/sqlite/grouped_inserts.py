"""Group commit: jobs that coroutines enqueue at the same time are stored in one transaction, by one write."""

import asyncio
from dataclasses import dataclass
from functools import partial

from palermo.brokers.sqlite.channels import Channels
from palermo.brokers.sqlite.file.store import Store
from palermo.brokers.sqlite.tables.jobs import Row, insert_many, to_row
from palermo.contract.broker import in_steps
from palermo.core.message import Message
from palermo.errors import BrokerError, PublishRefused


@dataclass
class _Insert:
    message: Message
    row: Row
    #: Whether it is stored or refused, or nobody waits for it any more.
    ended: bool = False
    error: BrokerError | None = None


class GroupedInserts:
    """The jobs that calls of one session store together. Each call returns once its job is stored, or raises."""

    def __init__(self, store: Store, exchange: str, channels: Channels) -> None:
        self._store = store
        self._exchange = exchange
        self._channels = channels
        self._inserts: list[_Insert] = []
        #: Held by the call that stores for all others.
        self._turn = asyncio.Lock()

    async def insert(self, message: Message) -> None:
        """Store a job. Raises EncodeError for a header that cannot be kept, and what Store.write raises."""
        mine = _Insert(message, to_row(message))
        self._inserts.append(mine)
        try:
            async with self._turn:
                while not mine.ended:
                    await asyncio.sleep(0)  # other calls of this turn of the loop join
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
            # It may be one of them that the file cannot hold.
            for one in batch:
                try:
                    await self._write([one])
                except BrokerError as error:
                    one.error = error
                one.ended = True  # now: a cancel may come before the next, and another call goes on with the rest
        except BrokerError as error:
            for one in batch:
                one.error = type(error)(*error.args)  # each call raises its own: tracebacks of all would add up in one
        for one in batch:
            one.ended = True
        self._inserts = [one for one in self._inserts if not one.ended]

    async def _write(self, batch: list[_Insert]) -> None:
        rows = [(one.message.queue, one.row) for one in batch]
        await self._store.write(partial(insert_many, exchange=self._exchange, rows=rows), publishing=True)
        self._channels.ring()
