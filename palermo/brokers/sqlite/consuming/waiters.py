"""Calls that wait until they are woken, the one that has waited longest first."""

import asyncio
from collections import deque


class Waiters:
    """Waiting calls of one consumer."""

    def __init__(self) -> None:
        self._futures: deque[asyncio.Future[None]] = deque()

    def __bool__(self) -> bool:
        """Whether any call waits and is not cancelled."""
        return any(not future.done() for future in self._futures)

    async def wait(self) -> None:
        """Wait until this call is woken."""
        future = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        try:
            await future
        finally:
            if future in self._futures:
                self._futures.remove(future)

    def wake(self) -> None:
        """Wake the call that has waited longest."""
        while self._futures:
            future = self._futures.popleft()
            if not future.done():
                future.set_result(None)
                return

    def wake_all(self) -> None:
        """Wake all calls."""
        while self._futures:
            self.wake()
