"""Values that are stored together, because each disk write is expensive.

Law: a value waits only while other values are being stored, or for 10 ms if it isn't urgent.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from palermo.brokers.features.portions import portions
from palermo.contract.tasks import wait_for_any

T = TypeVar("T")

#: Seconds that a non-urgent value waits for others.
_PAUSE = 0.01

#: Maximum size of a batch of several values.
_MOST = 1_048_576


class Gathered(Generic[T]):
    """Gathers values that arrive during a write, and stores them together in the next."""

    def __init__(self, store: Callable[[Sequence[T]], Awaitable[None]], size: Callable[[T], int] = lambda _: 0) -> None:
        """`store` stores a batch of values; `size` is a value's size in bytes."""
        self._store = store
        self._size = size
        self._waiting: list[tuple[T, asyncio.Future[None]]] = []
        self._urgent = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, value: T, *, urgent: bool = True) -> "asyncio.Future[None]":
        """Store this value with others. The future ends when it is stored, or raises the error of `store`."""
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((value, stored))
        if urgent:
            self._urgent.set()
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        return stored

    async def flush(self) -> None:
        """Wait until all values are stored or have failed."""
        if self._task is not None:
            self._urgent.set()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            while self._waiting:
                if not self._urgent.is_set():
                    await wait_for_any(self._urgent, timeout=_PAUSE)
                self._urgent.clear()
                some, self._waiting = self._waiting, []
                for part in portions(some, most_size=_MOST, size=lambda one: self._size(one[0])):
                    await self._store_part(part)
        finally:
            self._task = None

    async def _store_part(self, part: Sequence[tuple[T, "asyncio.Future[None]"]]) -> None:
        error: Exception | None = None
        try:
            await self._store([value for value, _ in part])
        except Exception as found:  # the callers raise it
            error = found
        for _, stored in part:
            if stored.done():
                continue  # its caller was cancelled
            if error is None:
                stored.set_result(None)
            else:
                stored.set_exception(error)
