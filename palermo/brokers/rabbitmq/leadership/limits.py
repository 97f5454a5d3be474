"""Limits and rates on RabbitMQ: the leader decides in memory, and asks the workers for missing information.

Nothing is stored. A job that must not run yet is postponed like a delayed job. When a permit is free, the leader
publishes the next waiting job immediately, if it holds that job because it is due within seconds; other jobs return to
their queues when they are due. While a job waits, the leader asks all workers twice a second which jobs they run, since
a worker may die, and its message about the end of a run may be lost.
"""

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.cluster.worker_control import ask_workers
from palermo.brokers.rabbitmq.seconds import LOOK_EVERY, SAY_EVERY
from palermo.contract import clock
from palermo.core.limits import MIN_POSTPONEMENT, LimitDemand, LimitInfo, PermitTable, RunLater, RunNow

if TYPE_CHECKING:
    from palermo.brokers.rabbitmq.scheduling.due_jobs import DueJobs

log = logging.getLogger("palermo.rabbitmq")


class LeaderLimits:
    """The permits of one exchange, in the leader."""

    def __init__(self, exchange: str, connection: Connection, due: "DueJobs") -> None:
        self._exchange = exchange
        self._connection = connection
        self._due = due
        self._permits = PermitTable(clock.now())
        self._learnt = False
        self._learning = asyncio.Lock()
        self._told_at = float("-inf")

    @property
    def knows(self) -> bool:
        """Whether the running jobs are known. If not, no job gets a permit."""
        return self._learnt

    def request(self, demand: LimitDemand, *, id: str, worker: str) -> RunNow | RunLater:
        """Whether a worker may run a job now."""
        if not self._learnt:
            return RunLater(clock.now() + MIN_POSTPONEMENT, reserved=demand.reserved)
        return self._permits.request(demand, (worker, id), clock.now())

    def end(self, key: str, *, id: str, worker: str) -> None:
        """Free the permit of a run that has ended."""
        self._permits.run_ended(key, (worker, id), clock.now())
        self._call()

    def known(self) -> list[LimitInfo]:
        """All known keys, by name."""
        return self._permits.listing(clock.now())

    async def learn(self) -> None:
        """Ask the workers which jobs run, unless that is known. Raises BrokerUnavailable."""
        if not self._learnt:
            async with self._learning:
                self._learnt = self._learnt or await self._ask_workers(first=True)
        if not self._learnt and time.monotonic() - self._told_at > SAY_EVERY:
            self._told_at = time.monotonic()
            log.warning(
                "jobs with limits are waiting for a worker that does not answer, find it with `palermo workers`, then"
                " resume or kill it"
            )

    async def run(self) -> None:
        """Free the permits of ended runs and give them to waiting jobs, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            if self._permits.has_waiting:
                await self._ask_workers()
                self._call()

    async def _ask_workers(self, *, first: bool = False) -> bool:
        """Ask all workers which jobs they run. Returns whether all have answered. If not, the answers are ignored."""
        workers = await ask_workers(self._connection, self._exchange)
        if not workers.complete:
            return False
        asked = [(worker.id, worker.asks) for worker in workers] if first else ()
        self._permits.sync_running([(worker.id, worker.permits) for worker in workers], clock.now(), asked=asked)
        return True

    def _call(self) -> None:
        """Publish the waiting jobs that can get a permit."""
        now = clock.now()
        if not self._permits.has_waiting:
            self._permits.offer(now, lambda _: False)
            return
        for id in self._permits.offer(now, self._due.has):
            self._due.call(id)
