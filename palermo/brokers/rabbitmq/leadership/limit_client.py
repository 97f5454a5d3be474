"""One session's requests to the leader about limits."""

import asyncio
from contextlib import suppress

from palermo.brokers.rabbitmq.leadership.leader_client import LeaderClient
from palermo.brokers.rabbitmq.leadership.operations import EndRun, RequestPermit
from palermo.core.limits import LimitDemand, RunLater, RunNow
from palermo.errors import PalermoError


class LimitClient:
    """Asks for permits to run limited jobs, and gives them back."""

    def __init__(self, leader_client: LeaderClient) -> None:
        self._leader_client = leader_client
        self._telling: set[asyncio.Task[None]] = set()

    async def ask(self, demand: LimitDemand, *, id: str, worker: str) -> RunNow | RunLater:
        """Whether this worker may run the job now. Raises BrokerUnavailable."""
        return await self._leader_client.ask(RequestPermit(demand, id, worker))

    def ended(self, key: str, *, id: str, worker: str) -> None:
        """Tell the leader, without waiting, that a run has ended."""
        task = asyncio.ensure_future(self._tell(EndRun(key, id, worker)))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell(self, end: EndRun) -> None:
        with suppress(PalermoError):  # then the leader finds out by asking what we run
            await self._leader_client.tell(end)
