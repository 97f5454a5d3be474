"""An inspector for a web server: it waits for the broker at most publish_timeout, for commands some seconds more."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from palermo.client.client import Client
from palermo.client.failed_queues import sweep_failed
from palermo.contract.broker import Broker
from palermo.contract.rows import MAX_SHOWN
from palermo.contract.sweep import SweepDecision
from palermo.core.message import Message
from palermo.errors import BrokerUnavailable
from palermo.inspector.context import Progress
from palermo.inspector.inspector import Inspector

T = TypeVar("T")

#: Seconds that commands get in addition to the time for reads: orders to workers wait that long for answers.
_MORE = 5.0


class BoundedInspector(Inspector):
    """An inspector that is bounded by the setting publish_timeout. Only sweeps have no limit: they visit every job."""

    _max_shown_bytes = MAX_SHOWN

    def __init__(self, client: Client, *, hidden: Sequence[str] | None = None, longest: float | None = None) -> None:
        """`longest`, in seconds, replaces that setting."""
        super().__init__(client, hidden=hidden)
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

    def _sweep_failed(self, judge: Callable[[Message], SweepDecision], progress: Progress | None = None) -> None:
        self._client.run(lambda broker: sweep_failed(broker, judge, progress))
