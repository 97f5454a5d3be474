"""An inspector for a server: no request waits longer for a broker than enqueuing a job may take."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from palermo.broker import Broker, Verdict
from palermo.client import Client
from palermo.core.message import Message
from palermo.errors import BrokerUnavailable
from palermo.failed import Progress
from palermo.failures import sweep_failed
from palermo.inspector import Inspector

T = TypeVar("T")

#: What doing something gets above the time for looking, in seconds: orders to workers wait that long for answers.
_MORE = 5.0


class BoundedInspector(Inspector):
    """Looks and acts within the setting publish_timeout, but for sweeps: those take as long as there are jobs."""

    def __init__(self, client: Client, *, longest: float | None = None) -> None:
        """`longest`, in seconds, instead of that setting."""
        super().__init__(client)
        self._longest = client.settings.publish_timeout if longest is None else longest

    def _ask(self, question: Callable[[Broker], Coroutine[Any, Any, T]], *, again: bool = False) -> T:
        settings = self._client.settings
        limit = self._longest + (0 if again else _MORE)

        async def bounded(broker: Broker) -> T:
            try:
                async with asyncio.timeout(limit):
                    return await question(broker)
            except TimeoutError:
                raise BrokerUnavailable(
                    f"the broker at {settings.address} did not answer within {limit:g} s."
                    + ("" if again else " Look whether it was done.")
                ) from None

        return super()._ask(bounded, again=again)

    def _sweep(self, judge: Callable[[Message], Verdict], progress: Progress | None = None) -> None:
        self._client.run(lambda broker: sweep_failed(broker, judge, progress))
