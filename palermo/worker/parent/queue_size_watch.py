"""Tells the hook queue_size how many jobs wait in the worker's queues, and has the worker keep the pace it answers."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from palermo.errors import PalermoError

#: The least seconds between two questions to the broker.
_EVERY = 1.0

#: The pause after a question is _EVERY, or this many times as long as it took: with many queues it costs little too.
_PAUSE_FACTOR = 20.0


class QueueSizeWatch:
    """Asks the broker for the sizes of the queues, again and again, and knows the pace that the hook wants."""

    def __init__(
        self,
        *,
        sizes: Callable[[], Awaitable[Mapping[str, int] | None]],
        on_sizes: Callable[[Mapping[str, int]], Awaitable[None]],
    ) -> None:
        """`sizes` gives None while there is no session with the broker."""
        self._sizes = sizes
        self._on_sizes = on_sizes

    async def run(self) -> None:
        """Watch, until cancelled."""
        while True:
            began = time.monotonic()
            try:
                sizes = await self._sizes()
            except PalermoError:
                sizes, began = None, time.monotonic()  # if the session is lost, the slots notice that themselves
            took = time.monotonic() - began
            if sizes is not None:
                await self._on_sizes(sizes)
            await asyncio.sleep(max(_EVERY, _PAUSE_FACTOR * took))
