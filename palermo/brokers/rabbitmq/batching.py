"""What is asked while one batch is being stored goes into the next: one after another, so that a commit serves many."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import field
from typing import Any, Generic, TypeVar

from palermo.brokers.rabbitmq.changes import Changes
from palermo.core.values import dataclass
from palermo.errors import BrokerUnavailable, PalermoError, PublishRefused

log = logging.getLogger("palermo.rabbitmq")

T = TypeVar("T")

#: Things that one batch is made of, at most, and bytes of bodies.
_AT_ONCE, _BYTES = 500, 4 * 1024 * 1024


@dataclass(slots=True)
class Asked(Generic[T]):
    """Something to be done in a batch."""

    do: Callable[[Changes], T]
    future: "asyncio.Future[T]"
    size: int = 0
    #: Awaited once it is stored, before anything else is decided.
    after: Callable[[], Awaitable[None]] | None = None
    result: Any = field(default=None)


class Batching:
    """See the module's first line."""

    def __init__(
        self,
        prepare: Callable[[], Awaitable[None]],
        store: Callable[[list[Asked[Any]]], Awaitable[None]],
        lose: Callable[[], None],
    ) -> None:
        """`prepare` is awaited before each batch is chosen, and `lose` called when one was not stored."""
        self._prepare = prepare
        self._store = store
        self._lose = lose
        self._loop = asyncio.get_running_loop()
        self._asked: list[Asked[Any]] = []
        self._working: asyncio.Task[None] | None = None
        #: Whether nothing more is done.
        self.closed = False

    @property
    def busy(self) -> bool:
        """Whether anything is being stored."""
        return self._working is not None and not self._working.done()

    async def close(self) -> None:
        """Do nothing more."""
        self.closed = True
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait({self._working})

    def ask(
        self,
        do: Callable[[Changes], T],
        *,
        size: int = 0,
        after: Callable[[], Awaitable[None]] | None = None,
        before_others: bool = False,
    ) -> "asyncio.Future[T]":
        """Have this done in a batch; what it said once that is stored. `size` is how many bytes it adds to one.

        With `before_others` it is done before all that has been asked and not been done yet.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        if self.closed:
            future.set_exception(_leads_no_more())
            return future
        self._asked.insert(0 if before_others else len(self._asked), Asked(do, future, size, after))
        if not self.busy:
            self._working = self._loop.create_task(self._work())
        return future

    async def _work(self) -> None:
        """Store one batch after another until nothing is asked any more."""
        while self._asked:
            batch: list[Asked[Any]] = []
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

    def _next(self) -> list[Asked[Any]]:
        batch: list[Asked[Any]] = []
        size = 0
        while self._asked and len(batch) < _AT_ONCE and size <= _BYTES:
            asked = self._asked.pop(0)
            batch.append(asked)
            size += asked.size
            if asked.after is not None:
                break
        return batch


def _fail(batch: Iterable[Asked[Any]], error: Exception) -> None:
    told = error if isinstance(error, PalermoError) else PublishRefused(f"a job cannot be stored: {error!r}.")
    for asked in batch:
        if not asked.future.done():
            asked.future.set_exception(told)
            asked.future.exception()  # nobody may be left to be told


def _leads_no_more() -> BrokerUnavailable:
    return BrokerUnavailable("who kept the time does so no more.")
