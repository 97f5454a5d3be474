"""Does requests in batches: those that come while one batch is stored go into the next, so one commit serves many."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from palermo.brokers.rabbitmq.unique.key_changes import KeyChanges
from palermo.errors import BrokerUnavailable, PalermoError, PublishRefused

log = logging.getLogger("palermo.rabbitmq")

T = TypeVar("T")

#: The most requests in one batch, and the bytes of bodies beyond which none is added.
_AT_ONCE, _BYTES = 500, 4 * 1024 * 1024


@dataclass(slots=True)
class BatchRequest(Generic[T]):
    """A request: something to be done in a batch."""

    do: Callable[[KeyChanges], T]
    future: "asyncio.Future[T]"
    size: int = 0
    #: Awaited once the batch is stored, before anything else is decided.
    after: Callable[[], Awaitable[None]] | None = None
    result: Any = field(default=None)


class RequestBatches:
    """The requests that wait, and the task that does and stores them batch by batch."""

    def __init__(
        self,
        prepare: Callable[[], Awaitable[None]],
        store: Callable[[list[BatchRequest[Any]]], Awaitable[None]],
        lose: Callable[[], None],
    ) -> None:
        """`prepare` is awaited before each batch is chosen; `lose` is called when a batch could not be stored."""
        self._prepare = prepare
        self._store = store
        self._lose = lose
        self._loop = asyncio.get_running_loop()
        self._asked: list[BatchRequest[Any]] = []
        self._working: asyncio.Task[None] | None = None
        #: Whether no more requests are done.
        self.closed = False

    @property
    def busy(self) -> bool:
        """Whether a batch is being stored."""
        return self._working is not None and not self._working.done()

    async def close(self) -> None:
        """Stop. Requests that wait fail with BrokerUnavailable."""
        self.closed = True
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait({self._working})

    def ask(
        self,
        do: Callable[[KeyChanges], T],
        *,
        size: int = 0,
        after: Callable[[], Awaitable[None]] | None = None,
        before_others: bool = False,
    ) -> "asyncio.Future[T]":
        """Have `do` called in a batch. The future has its result once the batch is stored. `size` is the bytes it adds.

        With `before_others` it is done before all other requests that wait.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        if self.closed:
            future.set_exception(_leads_no_more())
            future.exception()  # of several requests the caller awaits only the first
            return future
        self._asked.insert(0 if before_others else len(self._asked), BatchRequest(do, future, size, after))
        if not self.busy:
            self._working = self._loop.create_task(self._work())
        return future

    def ask_again(self, asked: list[BatchRequest[Any]]) -> None:
        """Have these done in the next batch, before all that came since. To be called while a batch is being stored."""
        self._asked[:0] = asked

    async def _work(self) -> None:
        """Store one batch after another until no request waits."""
        while self._asked:
            batch: list[BatchRequest[Any]] = []
            try:
                await self._prepare()
                batch = self._next()
                await self._store(batch)
            except asyncio.CancelledError:
                _fail([*batch, *self._asked], _leads_no_more())
                raise
            except Exception as error:
                self._lose()
                rest, self._asked = self._asked, []
                if not isinstance(error, PalermoError):
                    log.exception("a batch of keys cannot be stored")
                _fail([*batch, *rest], error)

    def _next(self) -> list[BatchRequest[Any]]:
        batch: list[BatchRequest[Any]] = []
        size = 0
        while self._asked and len(batch) < _AT_ONCE and size <= _BYTES:
            asked = self._asked.pop(0)
            batch.append(asked)
            size += asked.size
            if asked.after is not None:
                break
        return batch


def _fail(batch: Iterable[BatchRequest[Any]], error: Exception) -> None:
    told = error if isinstance(error, PalermoError) else PublishRefused(f"a job cannot be stored: {error!r}.")
    for asked in batch:
        if not asked.future.done():
            asked.future.set_exception(told)
            asked.future.exception()  # nobody may be waiting for it any more


def _leads_no_more() -> BrokerUnavailable:
    return BrokerUnavailable("who kept the time does so no more.")
