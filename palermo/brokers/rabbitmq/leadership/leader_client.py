"""One session's part in leader election: it stands by, leads, and asks the leader, also for permits of limited jobs."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from palermo.brokers.rabbitmq.amqp.connection import Connection, finish
from palermo.brokers.rabbitmq.amqp.rpc import Part
from palermo.brokers.rabbitmq.leadership.operations import (
    BriefOperation,
    EndRun,
    LeaderRequests,
    ListingProgress,
    Operation,
    RequestPermit,
    StartJob,
)
from palermo.brokers.rabbitmq.publishing.declarer import Declarer
from palermo.contract.broker import SessionParameters
from palermo.contract.scheduled import OnJobs, ignore_jobs
from palermo.contract.worker_info import WorkerInfo, WorkerList
from palermo.core.limits import LimitDemand, RunLater, RunNow
from palermo.errors import BrokerUnavailable, LeaderUnavailable, PalermoError

if TYPE_CHECKING:
    from palermo.brokers.rabbitmq.leadership.leader import Leader


log = logging.getLogger("palermo.rabbitmq")

T = TypeVar("T")

#: Seconds between two checks whether there is a leader, at least and at most.
_LOOK_EVERY = (1.0, 2.0)

#: Seconds until a leader whose connection broke tries again.
_AGAIN = 1.0

#: Seconds after the last brief operation for which a session goes on leading that only stepped in.
_LINGER = 3.0

#: The least seconds to wait for the reply to a brief operation, and to any other: there is another leader by then.
_PATIENCE, _LONG_PATIENCE = 10.0, 25.0

#: Seconds in which a leader that lives gives a sign of life, once a request has waited for long.
_SIGN = 1.0

#: Seconds until an operation is asked for again.
_SOON = 0.1


class LeaderClient:
    """Leads the exchange, or asks its leader, for one session. `ask` is the one way to any leader."""

    def __init__(
        self,
        session: SessionParameters,
        connection: Connection,
        declarer: Callable[[Connection], Declarer],
        workers: Callable[[], Awaitable[WorkerList]],
    ) -> None:
        """`workers` returns all workers, those too that do not answer."""
        self._session = session
        self._workers = workers
        self._connection = connection
        self._declarer = declarer
        self._requests = LeaderRequests(connection, session.exchange)
        self.is_leader = False
        self._standing_by = False
        #: The leader's part, while this session leads.
        self._leader: Leader | None = None
        #: The leader's part, while this session leads for one operation.
        self._leader_once: Leader | None = None
        self._stepping_in = asyncio.Lock()
        self._lingering: asyncio.Task[None] | None = None
        self._closed = False

    async def lead_or_stand_by(self, fired: OnJobs) -> None:
        """Lead if no other session does, and else stand by, until the connection is lost."""
        self._standing_by = True
        try:
            while self._connection.error is None:
                try:
                    if await self._requests.is_vacant():
                        await self._lead(fired)
                    await asyncio.sleep(random.uniform(*_LOOK_EVERY))
                except PalermoError as error:
                    if self._connection.error is None:
                        log.warning("cannot keep the time error=%r", str(error))
                        await asyncio.sleep(_AGAIN)
        finally:
            self._standing_by = False

    async def _lead(self, fired: OnJobs) -> None:
        leader = await self._take(fired)
        if leader is None:
            return
        log.info("keeping the time exchange=%s", self._session.exchange)
        self.is_leader = True
        self._leader = leader
        running = asyncio.ensure_future(leader.run())
        lost = asyncio.ensure_future(self._connection.lost.wait())
        try:
            await asyncio.wait({running, lost}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                await running
        finally:
            self.is_leader = False
            self._leader = None
            lost.cancel()
            await finish(_end(leader, running))

    async def _take(self, fired: OnJobs = ignore_jobs) -> "Leader | None":
        # Imported here: the leader is as much code as the consumer, and most sessions never lead.
        from palermo.brokers.rabbitmq.leadership.leader import Leader

        return await Leader.take(self._session, self._declarer, fired)

    async def ask(self, operation: Operation[T]) -> T:
        """The leader's reply. Without a leader this session leads: for some seconds, or for this one operation.

        The operation may be done twice. Raises BrokerUnavailable.
        """
        loop, is_brief = asyncio.get_running_loop(), isinstance(operation, BriefOperation)
        until = loop.time() + max(self._session.timeout, _PATIENCE if is_brief else _LONG_PATIENCE)
        while self._connection.error is None and loop.time() < until:
            leader = self._leader if is_brief else None
            parts: list[Part] | None = None
            # A reply to StartJob through RabbitMQ proves that we still lead, and that all we sent before it has arrived
            # there too. Without a reply we take the long way, which stores the decision.
            if leader is None or isinstance(operation, StartJob):
                parts = await self._requests.ask(operation)
                if parts and "error" not in (values := parts[-1].values or {}):
                    return operation.reply_from_parts(parts)
                if parts and not is_brief:
                    raise BrokerUnavailable(f"who keeps the time could not do it: {values['error']}")
            if leader is not None:
                try:
                    return await leader.handle(operation)
                except BrokerUnavailable as error:
                    log.debug("the leader did not answer error=%r", str(error))
            elif parts is None and not self._standing_by:
                if is_brief:
                    await self._step_in()
                    continue
                if (leader := await self._take()) is not None:
                    return await self._lead_once(leader, operation)
            await asyncio.sleep(_SOON)  # this session or another may be about to lead
        raise self._connection.error or await self._unavailable()

    async def silence(self) -> LeaderUnavailable | None:
        """The error of a leader that does not answer; None if it answers, or none leads. Raises the session's error."""
        if self._leader is not None or await self._requests.is_vacant():
            return None
        with suppress(TimeoutError):
            async with asyncio.timeout(_SIGN):
                if await self._requests.ask(ListingProgress()) is not None:
                    return None
        return await self._unavailable()

    async def _unavailable(self) -> LeaderUnavailable:
        silent = list[WorkerInfo]()
        with suppress(PalermoError):
            silent = [one for one in await self._workers() if not one.answers]
        # Of a worker that was heard of before it led, it is not known that it leads.
        leaders = [one for one in silent if one.clock] or (silent if len(silent) == 1 else [])
        named = f", worker {leaders[0].id}," if leaders and leaders[0].pid else ""
        return LeaderUnavailable(
            f"the leader{named} does not answer, though RabbitMQ does: its process is stopped, swapped out or stuck."
            " Continue or end that process, or wait: RabbitMQ drops its session within some 15 s, and another worker"
            " leads. `palermo workers` shows who does not answer."
        )

    async def _lead_once(self, leader: "Leader", operation: Operation[T]) -> T:
        self._leader_once = leader
        try:
            await leader.learn()
            return await leader.handle(operation)
        finally:
            self._leader_once = None
            await leader.close()

    async def listing_progress(self) -> tuple[int, int] | None:
        """How far a look at scheduled jobs is, as ListingProgress has it; None if no leader tells."""
        operation = ListingProgress()
        if (leader := self._leader or self._leader_once) is not None:
            return await leader.handle(operation)
        parts = await self._requests.ask(operation)
        return operation.reply_from_parts(parts) if parts and "error" not in (parts[-1].values or {}) else None

    async def tell(self, operation: Operation[None]) -> None:
        """Have the leader do something that may be lost; without a leader do nothing. Raises the session's error."""
        if self._leader is not None:
            await self._leader.handle(operation)
        else:
            await self._requests.tell(operation)

    async def _step_in(self) -> None:
        """Lead, if there is no leader, until no question has come for some seconds."""
        async with self._stepping_in:
            if self._leader is not None or self._closed:
                return
            leader = await self._take()
            if leader is None:
                await asyncio.sleep(_SOON)
                return
            self._leader = leader
            self._lingering = asyncio.ensure_future(self._linger(leader))

    async def _linger(self, leader: "Leader") -> None:
        loop = asyncio.get_running_loop()
        running = asyncio.ensure_future(leader.run())
        try:
            while not running.done() and (
                (left := leader.unique_keys.asked_at + _LINGER - loop.time()) > 0 or leader.unique_keys.busy
            ):
                await asyncio.wait({running}, timeout=max(left, _SOON))
        finally:
            self._leader = None
            await finish(_end(leader, running))

    async def close(self) -> None:
        """Stop leading, if this session only stepped in."""
        self._closed = True
        if self._lingering is not None and not self._lingering.done():
            self._lingering.cancel()
            await asyncio.wait({self._lingering})


async def _end(leader: "Leader", running: asyncio.Task[None]) -> None:
    """Stop leading. A leader that no longer runs must not keep its connection: no other session would lead."""
    running.cancel()
    await asyncio.wait({running})
    if not running.cancelled() and (error := running.exception()) is not None:
        log.debug("led no longer error=%r", str(error))
    await leader.close()


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
