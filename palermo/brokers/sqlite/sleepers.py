"""Calls that wait to be woken, the one that has waited longest first."""

import asyncio
from collections import deque


class Sleepers:
    """Some of the calls of one consumer."""

    def __init__(self) -> None:
        self._futures: deque[asyncio.Future[None]] = deque()

    def __bool__(self) -> bool:
        """Whether any is asleep, and not cancelled."""
        return any(not future.done() for future in self._futures)

    async def sleep(self) -> None:
        """Until this call is woken."""
        future = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        try:
            await future
        finally:
            if future in self._futures:
                self._futures.remove(future)

    def wake(self) -> None:
        """Wake one."""
        while self._futures:
            future = self._futures.popleft()
            if not future.done():
                future.set_result(None)
                return

    def wake_all(self) -> None:
        """Wake all."""
        while self._futures:
            self.wake()
