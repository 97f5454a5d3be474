"""The leader's copy of a list of names: those of the buckets, or of the tenants, that may have jobs.

A session that creates such a queue adds its name to the list. The leader holds the records (state_log.py), and
occasionally replaces all of them by one.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.publisher import Publisher, RecordQueue
from palermo.brokers.rabbitmq.amqp.state_log import Record, StateLog
from palermo.brokers.rabbitmq.publishing.handover import Refusals
from palermo.errors import NotFound, PublishRefused

N = TypeVar("N", str, tuple[str, str])

#: Number of records after which the leader replaces them by one. Old records are replaced earlier.
_MANY = 50


class NameList(Generic[N]):
    """All names on one list."""

    def __init__(
        self,
        queue: RecordQueue,
        connection: Connection,
        publisher: Callable[[], Awaitable[Publisher]],
        *,
        parse: Callable[[Any], N],
        plain: Callable[[N], object],
        news: Callable[[set[N]], None],
    ) -> None:
        """`news` is called with the names in each new record; `parse` and `plain` convert a name from and to JSON."""
        self.names: set[N] = set()
        self._log = StateLog(queue.name, connection, publisher, prepare=self._prepare, on_record=self._on_record)
        self._queue = queue
        self._connection = connection
        self._parse: Callable[[Any], N] = parse
        self._plain: Callable[[N], object] = plain
        self._news: Callable[[set[N]], None] = news
        self._records: list[Record] = []
        self._refusals = Refusals(f"the list {queue.name!r}")
        self._again_at = 0.0

    async def read(self) -> None:
        """Read all records written before this call, and new ones as they arrive. Idempotent."""
        with suppress(NotFound):
            await self._log.open()

    async def reach(self) -> None:
        """Read all records written before this call, including those still on their way."""
        with suppress(NotFound):
            await self._log.catch_up()

    async def tidy(self) -> None:
        """Replace the records by one, if they are many or old, or were deleted with their queue."""
        before = list(self._records)
        if not self._log.is_open or not (before or self.names):
            return
        if before and len(before) < max(_MANY, len(self.names)) and not before[0].is_old:
            return
        now = asyncio.get_running_loop().time()
        if now < self._again_at:
            return
        try:
            await self._log.store({"all": [self._plain(name) for name in sorted(self.names)]})
        except PublishRefused as error:
            self._again_at = now + self._refusals.refused(error)
            return
        self._refusals.taken()
        self._log.forget(*before)
        self._records = [record for record in self._records if record.is_held]

    async def _prepare(self) -> None:
        self._queue.forget()
        await self._queue.ensure()
        self._records = []

    def _on_record(self, record: Record, value: Any) -> None:
        found = value.get("all", [value.get("made")]) if isinstance(value, dict) else None
        self._records.append(record)
        unreadable = self._connection.unreadable
        if not isinstance(found, list):
            unreadable.skip(self._queue.name, value, "not a list of names")
            return
        read = (unreadable.attempt(self._queue.name, name, partial(self._parse, name)) for name in found)
        names = {name for name in read if name is not None}
        self.names |= names
        self._news(names)
