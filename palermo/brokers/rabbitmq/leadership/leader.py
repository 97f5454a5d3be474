"""The leader of one duty: the one session that does its work, for all sessions of the exchange.

A session leads as long as a connection that it has for this duty alone holds the duty's exclusive queue, which RabbitMQ
frees the moment that the connection ends. The leader consumes and publishes on that same connection. So a leader that
is cut off can do nothing at all: the jobs and records that it held have gone back to their queues. What one duty needs
of another it asks that duty's leader for, on that same connection too: if it asked on another, a purge could come after
the next leader has done it, and take jobs that were enqueued since.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from palermo.brokers.rabbitmq.amqp.connection import Connection, open_connection
from palermo.brokers.rabbitmq.amqp.mutex import Mutex
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.amqp.rpc import Responder, Send
from palermo.brokers.rabbitmq.amqp.unreadable import Unreadable
from palermo.brokers.rabbitmq.leadership import operations
from palermo.brokers.rabbitmq.leadership.key_duty import KeyDuty
from palermo.brokers.rabbitmq.leadership.operations import BriefOperation, Operation
from palermo.brokers.rabbitmq.leadership.tenant_duty import TenantDuty
from palermo.brokers.rabbitmq.leadership.time_duty import TimeDuty
from palermo.brokers.rabbitmq.leadership.work import Ask, Work, leader_queue
from palermo.brokers.rabbitmq.publishing.declarer import Declarer
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.contract.broker import SessionParameters
from palermo.contract.scheduled import OnJobs, ignore_jobs
from palermo.core.election import Duty
from palermo.errors import BrokerRefused, BrokerUnavailable, PalermoError, PublishRefused

T = TypeVar("T")

#: Seconds. RabbitMQ notices within two or three heartbeats that a leader is cut off; then another takes over.
_HEARTBEAT = 5

#: Seconds that a leader which ends waits for what is on its way.
_LAST_WORDS = 2.0


class Leader:
    """The leader of one duty, from its election to the end of its connection."""

    def __init__(self, duty: Duty, connection: Connection, responder: Responder, work: Work, ask: Ask) -> None:
        self.duty = duty
        self._connection = connection
        self._responder = responder
        self._work = work
        self._ask = ask
        self._loop = asyncio.get_running_loop()
        #: When the last brief operation came, on the loop's clock.
        self.asked_at = self._loop.time()
        #: Why `run` ended, if this user lacks a permission.
        self.refused: BrokerRefused | None = None

    @classmethod
    async def take(
        cls,
        duty: Duty,
        session: SessionParameters,
        unreadable: Unreadable,
        declarer: Callable[[Connection], Declarer],
        ask_over: Callable[[Connection], Ask],
        fired: OnJobs = ignore_jobs,
    ) -> "Leader | None":
        """Become the leader, on a new connection; None if another session leads. The caller closes it.

        `ask_over` gives what asks the other leaders over a connection; `unreadable` counts what it cannot read.
        """
        connection = await open_connection(session, f"{session.name} {duty}", heartbeat=_HEARTBEAT)
        connection.unreadable = unreadable
        try:
            queue = leader_queue(session.exchange, duty)
            channel = await Mutex(queue).take(connection)
            if channel is not None:
                # A publisher of its own: one that publishes to queues ends with the first queue that refuses.
                responder = Responder(channel, queue, await Publisher.open(connection))
                outbox, ask = Outbox(session, connection, declarer(connection)), ask_over(connection)
                work: Work
                match duty:
                    case Duty.TIME:
                        work = TimeDuty(session, connection, outbox, await outbox.open(), ask, fired)
                    case Duty.KEYS:
                        work = KeyDuty(session, connection, outbox, ask, channel)
                    case Duty.TENANTS:
                        work = TenantDuty(session, connection, outbox)
                return cls(duty, connection, responder, work, ask)
        except BaseException:
            await connection.close()
            raise
        await connection.close()
        return None

    @property
    def busy(self) -> bool:
        """Whether something is under way that another leader would have to do again."""
        return self._work.busy

    async def close(self) -> None:
        """Stop leading, once what is on its way is stored and noted: else the next leader would do it again."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS):
                    await self._work.close()
        finally:  # also if the session that led is closed in a hurry
            self._responder.close()
            await self._connection.close()

    async def run(self) -> None:
        """Lead until the call is cancelled.

        Raises BrokerUnavailable when the connection or the queue is lost, and BrokerRefused, which `refused` keeps, if
        this user lacks a permission, also that to reply.
        """
        lost: asyncio.Future[Any] = asyncio.ensure_future(self._connection.lost.wait())
        # Somebody may delete the queue. Then another session takes the duty, and two would lead. Or no reply leaves.
        deposed: asyncio.Future[Any] = asyncio.ensure_future(self._responder.ended.wait())
        tasks = [asyncio.ensure_future(work) for work in self._work.tasks()]
        for task in tasks:
            task.add_done_callback(_read)
        try:
            await self._work.begin()
            await self._responder.start(self._on_request)
            await asyncio.wait({lost, deposed, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            deleted = BrokerUnavailable("the queue of the duty was deleted.")
            raise self._connection.error or self._responder.error or deleted
        except BrokerRefused as error:
            self.refused = error
            raise
        finally:
            for one in (lost, deposed, *tasks):
                one.cancel()
            await asyncio.wait({lost, deposed, *tasks})

    async def learn(self) -> None:
        """Read what operations need, for a session that leads only for one of them."""
        await self._work.learn()

    # -- operations

    def _on_request(self, request: Mapping[str, Any], send: Send) -> Awaitable[Mapping[str, Any]] | Mapping[str, Any]:
        operation = operations.from_plain(request)
        # Fast path: most starts and permits need no task, and are answered on the channel that they came on.
        reply = self._work.handle_now(operation)
        if reply is NotImplemented:
            return self._reply(operation, send)
        self.asked_at = self._loop.time()
        values: Mapping[str, Any] = operation.reply.write(reply)[-1].values or {}
        return values

    async def _reply(self, operation: Operation[Any], send: Send) -> Mapping[str, Any]:
        try:
            # Programs of earlier versions ask the leader in time for everything.
            handle = self.handle if operation.duty == self.duty else self._ask
            *parts, last = operation.reply.write(await handle(operation))
        except PalermoError as error:
            for name, reported in operation.errors.items():
                if isinstance(error, reported):
                    return {name: str(error)}
            raise
        for part in parts:
            send(part)
        return last.values or {}

    async def handle(self, operation: Operation[T]) -> T:
        """Do the operation. Returns its reply."""
        reply: T
        if not isinstance(operation, BriefOperation):
            reply = await self._work.handle(operation)
            return reply
        self.asked_at = self._loop.time()
        try:
            reply = await self._work.handle(operation)
        except BrokerRefused as error:
            raise PublishRefused(str(error)) from error
        finally:
            self.asked_at = self._loop.time()
        return reply


def _read(task: "asyncio.Task[None]") -> None:
    """Have the error count as read: `run` may have been cancelled, or have raised another."""
    if not task.cancelled():
        task.exception()
