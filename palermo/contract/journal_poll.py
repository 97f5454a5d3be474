"""A running read of a journal that is a table or a log: it looks again after each notification, and now and then."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from palermo.contract.journal import OnBatch, Wants
from palermo.core.journal_records import decode
from palermo.errors import BrokerError


class JournalPoll:
    """See palermo.contract.journal.JournalReader."""

    def __init__(
        self,
        find: Callable[[int], Awaitable[Sequence[tuple[int, bytes]]]],
        on_batch: OnBatch,
        wants: Wants | None,
        *,
        begin: int,
        end: int,
        every: float,
        stop: Callable[[], Awaitable[None]],
    ) -> None:
        """`find` returns some batches from a position on, each with its own position.

        Without a call of `look_again` it is asked again after `every` seconds. `stop` ends those calls.
        """
        self._find = find
        self._on_batch = on_batch
        self._wants = wants
        self.begin = begin
        self.end = end
        self.deleted = False
        self.caught_up = asyncio.Event()
        self.ended = asyncio.Event()
        self._every = every
        self._stop = stop
        self._notified = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to read, once `look_again` is called for what comes from now on."""
        self._task = asyncio.ensure_future(self._run())

    def look_again(self, text: bytes = b"") -> None:
        """Look for new batches now."""
        self._notified.set()

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait({task})
        self.ended.set()
        await self._stop()

    async def _run(self) -> None:
        next = self.begin
        try:
            while True:
                self._notified.clear()
                batches = await self._find(next)
                for position, body in batches:
                    next = position + 1
                    if self._wants is None or self._wants(body):
                        self._on_batch(decode(position, body))
                if next > self.end or not batches:
                    self.caught_up.set()
                if batches:
                    await asyncio.sleep(0)
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._every):
                        await self._notified.wait()
        except BrokerError:
            self.ended.set()
