"""The leader of one duty: the one session that does its work for all sessions of the exchange.

A session leads as long as a connection of its own holds the duty's exclusive queue, which RabbitMQ frees when the
connection ends. The leader consumes and publishes on that connection only. So a disconnected leader can change nothing,
and the jobs and records that it held return to their queues.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from palermo.brokers.rabbitmq.amqp.connection import Connection, fulfil, open_connection
from palermo.brokers.rabbitmq.amqp.mutex import Mutex
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.amqp.rpc import Responder
from palermo.brokers.rabbitmq.amqp.unreadable import Unreadable
from palermo.brokers.rabbitmq.leadership import operations
from palermo.brokers.rabbitmq.leadership.fair_scheduler import FairScheduler
from palermo.brokers.rabbitmq.leadership.main_duty import MainDuty
from palermo.brokers.rabbitmq.leadership.operations import BriefOperation, Operation, Reply, StandBy
from palermo.brokers.rabbitmq.leadership.work import Ask, Work, leader_queue
from palermo.brokers.rabbitmq.publishing.declarer import Declarer
from palermo.brokers.rabbitmq.publishing.ledger_records import HandsOver, NewerFormat
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.brokers.rabbitmq.seconds import LAST_WORDS
from palermo.contract.broker import SessionParameters
from palermo.contract.scheduled import OnJobs, ignore_jobs
from palermo.core.election import Duty
from palermo.errors import BrokerRefused, BrokerUnavailable, PalermoError, PublishRefused

log = logging.getLogger("palermo.rabbitmq")

#: Seconds. RabbitMQ detects within two or three heartbeats that a leader is disconnected; then another takes over.
_HEARTBEAT = 5

#: Errors from parsing a request that is not Palermo's.
_UNREADABLE = (TypeError, ValueError, LookupError, AttributeError, OverflowError, RecursionError)


class Leader:
    """The leader of one duty, from its election to the end of its connection."""

    def __init__(
        self, duty: Duty, connection: Connection, responder: Responder, work: Work, *, stands_in: bool
    ) -> None:
        self.duty = duty
        self.stands_in = stands_in
        self._connection = connection
        self._responder = responder
        self._work = work
        self._loop = asyncio.get_running_loop()
        #: The newest format of requests that this version knows.
        self._format = operations.FORMAT
        #: Set with the reason why another session should lead. From then on, requests are left to that session.
        self._hands_over: asyncio.Future[HandsOver] = self._loop.create_future()
        #: Number of active requests, and when the last one arrived or ended, on the loop's clock.
        self._under_way = 0
        self.asked_at = self._loop.time()
        #: Why `run` ended: this user lacks a permission, or this version doesn't know a format.
        self.refused: BrokerRefused | NewerFormat | None = None

    @classmethod
    async def take(
        cls,
        duty: Duty,
        session: SessionParameters,
        unreadable: Unreadable,
        declarer: Callable[[Connection], Declarer],
        ask: Ask,
        fired: OnJobs = ignore_jobs,
        *,
        stands_in: bool,
    ) -> "Leader | None":
        """Become the leader, on a new connection, which the caller closes; None if another session leads.

        `ask` sends requests to the other leader; `unreadable` counts unreadable records. A leader that `stands_in` only
        serves requests, and hands over to a session that stands by.
        """
        connection = await open_connection(session, f"{session.name} {duty}", heartbeat=_HEARTBEAT)
        connection.unreadable = unreadable
        try:
            queue = leader_queue(session.exchange, duty)
            channel = await Mutex(queue).take(connection)
            if channel is not None:
                # A publisher of its own, because one that publishes to queues closes at the first refusal.
                responder = Responder(channel, queue, await Publisher.open(connection))
                outbox = Outbox(session, connection, declarer(connection))
                work: Work
                if duty is Duty.TENANTS:
                    work = FairScheduler(session, connection, outbox, stands_in=stands_in)
                else:
                    work = MainDuty(session, connection, outbox, ask, channel, fired, stands_in=stands_in)
                return cls(duty, connection, responder, work, stands_in=stands_in)
        except BaseException:
            await connection.close()
            raise
        await connection.close()
        return None

    @property
    def busy(self) -> bool:
        """Whether a request is active, which another leader would have to repeat."""
        return self._under_way > 0

    async def close(self) -> None:
        """Stop leading, once pending work is stored and recorded. Otherwise the next leader would repeat it."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS):
                    await self._work.close()
        finally:  # even if the session is closed in a hurry
            self._responder.close()
            await self._connection.close()

    async def run(self) -> None:
        """Lead until cancelled.

        Raises BrokerUnavailable when the connection or the queue is lost, HandsOver if another session is to lead, and
        BrokerRefused if this user lacks a permission. `refused` is the last BrokerRefused.
        """
        lost: asyncio.Future[Any] = asyncio.ensure_future(self._connection.lost.wait())
        # If the queue is deleted, another session may lead, and there must not be two. It may also be impossible to
        # reply.
        deposed: asyncio.Future[Any] = asyncio.ensure_future(self._responder.ended.wait())
        tasks = [asyncio.ensure_future(work) for work in self._work.tasks()]
        for task in tasks:
            # `run` may be cancelled, or raise another error.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            await self._work.begin()
            await self._responder.start(self._on_request)
            await asyncio.wait({lost, deposed, self._hands_over, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            if self._hands_over.done():
                raise self._hands_over.result()
            deleted = BrokerUnavailable("the leader's queue was deleted.")
            raise self._connection.error or self._responder.error or deleted
        except (BrokerRefused, NewerFormat) as error:
            self.refused = error
            if isinstance(error, NewerFormat):
                fulfil(self._hands_over, error)  # the reply to requests until the queue is closed
            raise
        finally:
            fulfil(self._hands_over, HandsOver("the leader is ending."))
            for one in (lost, deposed, *tasks):
                one.cancel()
            await asyncio.wait({lost, deposed, *tasks})

    # -- requests

    def _on_request(self, body: bytes) -> Awaitable[bytes] | bytes:
        if self._hands_over.done():
            return operations.write_error(self._hands_over.result())
        try:
            operation = operations.read(body, self._format)
            if isinstance(operation, StandBy):
                return self._on_stand_by()
            # Fast path: most starts and permits need no task, and are answered on the channel of their request.
            reply = self._work.handle_now(operation)
        except NewerFormat as error:
            fulfil(self._hands_over, error)
            return operations.write_error(error)
        except (*_UNREADABLE, PalermoError) as error:
            return _refuse(body, error)
        if reply is NotImplemented:
            return self._reply(operation)
        self.asked_at = self._loop.time()
        return operations.write(Reply(value=reply))

    def _on_stand_by(self) -> bytes:
        if self.stands_in:
            fulfil(self._hands_over, HandsOver("another worker is ready to lead."))
        return b""

    async def _reply(self, operation: Operation[Any]) -> bytes:
        """Execute the operation. Returns its reply."""
        self._under_way += 1
        try:
            return operations.write(Reply(value=await self._work.handle(operation)))
        except PalermoError as error:
            if isinstance(error, NewerFormat):
                fulfil(self._hands_over, error)
            if isinstance(error, BrokerRefused) and isinstance(operation, BriefOperation):
                error = PublishRefused(str(error))
            # After a handover, a closed part may have caused the error.
            reason = self._hands_over.result() if self._hands_over.done() else error
            return operations.write_error(reason, operation.raises)
        except _UNREADABLE as error:
            return _refuse(operation, error)
        finally:
            self._under_way -= 1
            self.asked_at = self._loop.time()


def _refuse(request: object, error: Exception) -> bytes:
    """The reply to an invalid request, which any program with permission to publish can send."""
    log.warning("cannot read a request to the leader request=%.200r error=%.200r", request, error)
    return operations.write_error(ValueError(f"the leader cannot read the request: {error!r:.200}"))
