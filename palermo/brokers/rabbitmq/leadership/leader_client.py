"""One session's part in the election of leaders: it stands by, leads, and sends requests to the leaders."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from palermo.brokers.rabbitmq.amqp.alarms import trouble_of
from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.amqp.rpc import Rpc
from palermo.brokers.rabbitmq.leadership import operations
from palermo.brokers.rabbitmq.leadership.operations import (
    BriefOperation,
    EndRun,
    GiveSign,
    LeaderFailed,
    ListingProgress,
    Operation,
    RequestPermit,
    StandBy,
    read_reply,
)
from palermo.brokers.rabbitmq.leadership.work import leader_queue
from palermo.brokers.rabbitmq.publishing.declarer import Declarer
from palermo.brokers.rabbitmq.publishing.ledger_records import HandsOver, NewerFormat
from palermo.brokers.rabbitmq.seconds import AGAIN, ANSWERED_WITHIN, LONG_PATIENCE, PATIENCE, SOON
from palermo.contract import clock
from palermo.contract.broker import Delivery, SessionParameters
from palermo.contract.scheduled import OnJobs, ignore_jobs
from palermo.contract.tasks import finish, spawn, together, wait_for_any
from palermo.contract.worker_info import WorkerInfo, WorkerList
from palermo.core.election import Duty
from palermo.core.limits import MIN_POSTPONEMENT, LimitDemand, RunLater, RunNow
from palermo.errors import BrokerBlocked, BrokerRefused, BrokerUnavailable, LeaderUnavailable, PalermoError

if TYPE_CHECKING:
    from palermo.brokers.rabbitmq.leadership.leader import Leader


log = logging.getLogger("palermo.rabbitmq")

T = TypeVar("T")

#: Seconds for which a session that has handed over does not lead again.
_HANDED_OVER = 5.0

#: Minimum and maximum seconds between two checks whether a duty has a leader.
_LOOK_EVERY = 1.0, 1.5

#: Seconds before a session that leads takes the other duty too, so that sessions without a duty can take it first. The
#: longer time, if another session has led there, lets each of them check once.
_LEFT_TO_OTHERS, _LEFT_AT_FIRST = 2.2, 0.3

#: Seconds after the last request for which a stand-in leader keeps leading.
_LINGER = 3.0

#: Minimum seconds to wait for the reply to a brief request. By then there is another leader if necessary.
_PATIENCE = 10.0


#: Seconds without a sign of life after which a brief request counts as lost and is sent again. For others it is
#: PATIENCE.
_SILENCE = 2.5


class LeaderClient:
    """One session's client for all leaders. It sends requests to them with `ask`, and may itself lead.

    A leader holds the exclusive queue of its duty as its lock (mutex.py), and consumes requests from it. If a leader
    dies, a request may be lost. The client sends it again after a short silence.
    """

    def __init__(
        self,
        session: SessionParameters,
        connection: Connection,
        declarer: Callable[[Connection], Declarer],
        workers: Callable[[], Awaitable[WorkerList]],
        publisher: Callable[[], Awaitable[Publisher]],
    ) -> None:
        """`workers` returns all workers, including silent ones. `publisher` opens a publisher on the connection."""
        self._session = session
        self._workers = workers
        self._connection = connection
        self._declarer = declarer
        self._publisher = publisher
        self._queues = {duty: leader_queue(session.exchange, duty) for duty in Duty}
        self._rpcs = {duty: Rpc(connection, queue) for duty, queue in self._queues.items()}
        self._standing_by = False
        #: The leaders in this session.
        self._leaders: dict[Duty, Leader] = {}
        #: Held while this session tries to become leader.
        self._taking = asyncio.Lock()
        #: When a duty that was handed over may be taken again, on the loop's clock.
        self._left_until: dict[Duty, float] = {}
        self._lingering: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def duties(self) -> tuple[Duty, ...]:
        """The duties in which this session leads now, except as a stand-in."""
        return tuple(duty for duty in Duty if (leader := self._leaders.get(duty)) and not leader.stands_in)

    async def lead_or_stand_by(self, fired: OnJobs) -> None:
        """Lead in each duty that no other session has, and stand by for the others, until the connection is lost."""
        self._standing_by = True
        try:
            await together(*(self._stand_by(duty, fired) for duty in Duty))
        finally:
            self._standing_by = False

    async def _stand_by(self, duty: Duty, fired: OnJobs) -> None:
        was_led = False
        while self._connection.error is None:
            try:
                leader = None
                if not await self._is_vacant(duty, StandBy()):
                    was_led = True
                elif (leader := await self._take(duty, fired, only_if_idle=True)) is None and self._leaders:
                    # A session that leads leaves the other duty to other sessions for a moment.
                    await self._rest(_LEFT_TO_OTHERS if was_led else _LEFT_AT_FIRST)
                    if await self._is_vacant(duty, StandBy()):
                        leader = await self._take(duty, fired)
                if leader is not None:
                    await self._rest(await self._lead(leader))
                    continue
            except PalermoError as error:
                if self._connection.error is None:
                    log.warning("cannot lead error=%r", str(error))
            await self._rest(random.uniform(*_LOOK_EVERY))

    async def _is_vacant(self, duty: Duty, operation: Operation[None] | None = None) -> bool:
        """Whether the duty has no leader. If it has one, sends it the operation. Raises the session's error."""
        request = b"" if operation is None else operations.write(operation)
        return not await (await self._publisher()).finds(self._queues[duty], request)

    async def _rest(self, seconds: float) -> None:
        """Wait for this time, or until the connection is lost."""
        await wait_for_any(self._connection.lost, timeout=seconds)

    async def _lead(self, leader: "Leader") -> float:
        """Lead until the session or the leader's own connection is lost, and log the loss.

        Returns the seconds until this session may lead again.
        """
        log.info("leading duty=%s exchange=%s", leader.duty, self._session.exchange)
        match await self._run(leader, self._connection.lost.wait()):
            case HandsOver() as error:
                level = logging.WARNING if isinstance(error, NewerFormat) else logging.INFO
                log.log(level, "handing over duty=%s reason=%r", leader.duty, str(error))
                return _HANDED_OVER
            case PalermoError() as error if self._connection.error is None:
                log.warning("cannot lead duty=%s error=%r", leader.duty, str(error))
            case Exception():  # logged by `_end`: a bug must not end the duties
                return _HANDED_OVER
        return AGAIN

    async def _run(self, leader: "Leader", over: Coroutine[Any, Any, object]) -> BaseException | None:
        """Lead until `over` is done. Returns the error if something else ends it."""
        running, ended = asyncio.ensure_future(leader.run()), asyncio.ensure_future(over)
        try:
            await asyncio.wait({running, ended}, return_when=asyncio.FIRST_COMPLETED)
            return running.exception() if running.done() else None
        finally:
            del self._leaders[leader.duty]
            ended.cancel()
            await finish(_end(leader, running))

    async def _take(
        self, duty: Duty, fired: OnJobs = ignore_jobs, *, only_if_idle: bool = False, stands_in: bool = False
    ) -> "Leader | None":
        """Become the leader. None if there is a leader already.

        With `only_if_idle`, also None if this session leads in another duty.
        """
        # Imported here, because the leader is as much code as the consumer, and most sessions never lead.
        from palermo.brokers.rabbitmq.leadership.leader import Leader

        async with self._taking:
            if self._closed or duty in self._leaders or (only_if_idle and self._leaders):
                return None
            found = self._session, self._connection.unreadable, self._declarer, self.ask
            leader = await Leader.take(duty, *found, fired, stands_in=stands_in)
            if leader is not None:
                self._leaders[duty] = leader
            return leader

    async def ask(self, operation: Operation[T], /) -> T:
        """Send a request and return the leader's reply. Without a leader this session stands in for some seconds.

        The operation may be executed twice. Raises BrokerUnavailable, and BrokerRefused if this user has no permission
        to lead.
        """
        loop, is_brief, duty = asyncio.get_running_loop(), isinstance(operation, BriefOperation), operation.duty
        until = loop.time() + max(self._session.timeout, _PATIENCE if is_brief else LONG_PATIENCE)
        failed: LeaderFailed | None = None
        while self._connection.error is None and loop.time() < until:
            # A worker waits as long as an alarm lasts; a user gets an error.
            if not self._session.takes and (trouble := trouble_of(self._connection)) is not None:
                raise BrokerBlocked(trouble.text)
            try:
                reply = await self._request(operation)
                if reply is not None:
                    return read_reply(operation, reply)
                await self._stand_in(duty)
            except BrokerRefused:
                # The same for a missing permission, which may be granted in the meantime.
                if not self._session.takes:
                    raise
            except HandsOver as error:
                failed = LeaderFailed(str(error))
                await asyncio.sleep(SOON)
            except LeaderFailed as error:
                failed = LeaderFailed(f"the {duty} leader failed: {error}")
                if not is_brief:
                    raise failed from None
                await asyncio.sleep(SOON)
        if self._connection.error is not None:
            raise self._connection.error
        if failed is not None:
            raise LeaderUnavailable(str(failed))
        raise await self._unavailable(duty)

    async def _request(self, operation: Operation[Any]) -> bytes | None:
        """The leader's encoded reply; None if the caller should ask again. Raises the session's error."""
        silence = _SILENCE if isinstance(operation, BriefOperation) else PATIENCE
        return await self._rpcs[operation.duty].ask(operations.write(operation), silence=silence)

    async def why_silent(self) -> LeaderUnavailable | None:
        """The error if the main leader exists but doesn't answer, or None. Raises BrokerError."""
        if Duty.MAIN in self._leaders or await self._is_vacant(Duty.MAIN):
            return None
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWERED_WITHIN):
                if await self._request(GiveSign()) is not None:
                    return None
        return await self._unavailable(Duty.MAIN)

    async def _unavailable(self, duty: Duty) -> LeaderUnavailable:
        silent = list[WorkerInfo]()
        with suppress(PalermoError):
            silent = [one for one in await self._workers() if one.is_silent]
        # A worker that became leader after its last answer is not known to lead.
        leaders = [one for one in silent if duty in one.duties] or (silent if len(silent) == 1 else [])
        named = f", worker {leaders[0].id}," if leaders and leaders[0].pid else ""
        return LeaderUnavailable(
            f"the {duty} leader{named} does not answer, although RabbitMQ does. Its process is stopped, swapped out or"
            " stuck. Continue or end that process, or wait about 15 s until another worker leads. `palermo workers`"
            " shows the workers that do not answer."
        )

    async def listing_progress(self) -> tuple[int, int] | None:
        """How many jobs the leader has read for a page of jobs, and how many it must read; None if unknown."""
        operation = ListingProgress()
        with suppress(LeaderFailed, HandsOver):
            reply = await self._request(operation)
            return None if reply is None else read_reply(operation, reply)
        return None

    async def notify(self, operation: Operation[None]) -> None:
        """Send the leader a request that may be lost; without a leader do nothing. Raises the session's error."""
        await self._rpcs[operation.duty].notify(operations.write(operation), within=_SILENCE)

    async def _stand_in(self, duty: Duty) -> None:
        """Lead in this duty, if no session does, until there was no request for some seconds. Raises BrokerRefused.

        A session that stands by waits for its next check instead.
        """
        if self._closed:
            raise BrokerUnavailable(f"the session with RabbitMQ at {self._connection.where} is being closed.")
        is_left = asyncio.get_running_loop().time() < self._left_until.get(duty, 0.0)
        if not (self._standing_by or is_left) and (leader := await self._take(duty, stands_in=True)) is not None:
            lingering = spawn(self._lingering, self._linger(leader))
            await asyncio.wait({lingering}, timeout=SOON)
            if leader.refused is not None:
                raise leader.refused
        else:
            await asyncio.sleep(SOON)

    async def _linger(self, leader: "Leader") -> None:
        loop = asyncio.get_running_loop()

        async def idle() -> None:
            while (left := leader.asked_at + _LINGER - loop.time()) > 0 or leader.busy:  # noqa: ASYNC110 - no event says it
                await asyncio.sleep(max(left, SOON))

        if isinstance(await self._run(leader, idle()), HandsOver):
            self._left_until[leader.duty] = loop.time() + _HANDED_OVER

    async def close(self) -> None:
        """Stop leading, if this session is only a stand-in."""
        self._closed = True
        if lingering := set(self._lingering):
            for task in lingering:
                task.cancel()
            await asyncio.wait(lingering)


async def _end(leader: "Leader", running: asyncio.Task[None]) -> None:
    """Stop leading, and always close the leader's connection, because no other session could lead otherwise."""
    running.cancel()
    await asyncio.wait({running})
    error = None if running.cancelled() else running.exception()
    if isinstance(error, PalermoError):
        log.debug("stopped leading error=%r", str(error))
    elif error is not None:
        log.error("cannot lead duty=%s", leader.duty, exc_info=error)
    await leader.close()


class Permits:
    """The permits that one worker has or requests for limited jobs."""

    def __init__(self, leader_client: LeaderClient, worker: str) -> None:
        self._leader_client = leader_client
        self._worker = worker
        #: By delivery token: the key and the job's id.
        self._held: dict[Any, tuple[str, str]] = {}
        self._notifying: set[asyncio.Task[None]] = set()

    async def ask(self, delivery: Delivery, demand: LimitDemand) -> RunNow | RunLater:
        """Whether the job may run now. Raises BrokerUnavailable."""
        permit = (demand.key, delivery.message.id)
        if any(held == permit for token, held in self._held.items() if token != delivery.token):
            # Another job with this id runs here, and the leader identifies permits by worker and id.
            return RunLater(clock.now() + MIN_POSTPONEMENT, reserved=demand.reserved)
        self._held[delivery.token] = permit
        verdict: RunNow | RunLater | None = None
        try:
            verdict = await self._leader_client.ask(RequestPermit(demand, delivery.message.id, self._worker))
            return verdict
        finally:
            if not isinstance(verdict, RunNow):
                self._held.pop(delivery.token, None)

    def end(self, delivery: Delivery) -> None:
        """Notify the leader, without waiting, that this run has ended, if it had a permit."""
        if self._held and (permit := self._held.pop(delivery.token, None)) is not None:
            spawn(self._notifying, self._notify(EndRun(*permit, self._worker)))

    async def _notify(self, end: EndRun) -> None:
        with suppress(PalermoError):  # the leader will see it in the workers' reports
            await self._leader_client.notify(end)
