"""Writes how runs have ended into a ledger of the leader, before their jobs are acknowledged."""

import asyncio
import logging
from collections.abc import Awaitable

from palermo.brokers.rabbitmq.amqp.alarms import why_late
from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.messages import PERSISTENT_JSON
from palermo.brokers.rabbitmq.amqp.publisher import RecordQueue
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.errors import BrokerUnavailable, NotFound, PublishRefused

log = logging.getLogger("palermo.rabbitmq")

#: Seconds between two attempts to write down an end that was refused.
_AGAIN = 0.5


class EndWriter:
    """Writes the ends of one session's runs into one queue."""

    def __init__(self, queue: RecordQueue, connection: Connection, outbox: Outbox, timeout: float) -> None:
        """`timeout` is the number of seconds in which RabbitMQ must confirm, unless an alarm blocks it."""
        self._queue = queue
        self._connection = connection
        self._outbox = outbox
        self._timeout = timeout

    async def send(self, id: str, body: bytes) -> Awaitable[None]:
        """Send the end of the job with this id. Returns an awaitable that is done once that is stored.

        Raises BrokerUnavailable.
        """
        return self._stored(id, body, await self._send(body))

    async def _send(self, body: bytes) -> "asyncio.Future[None]":
        publisher = await self._outbox.open()
        future = publisher.send("", self._queue.name, PERSISTENT_JSON, body)
        self._connection.raw.flush()
        return future

    async def _stored(self, id: str, body: bytes, future: "asyncio.Future[None]") -> None:
        while True:
            # A plain timer of the loop: asyncio.timeout costs several times as much, at every job.
            alarm = asyncio.get_running_loop().call_later(self._timeout, self._overdue, future, id)
            try:
                await future
                return
            except NotFound:
                self._queue.forget()
                await self._queue.ensure()
            except PublishRefused:
                await asyncio.sleep(_AGAIN)
            finally:
                alarm.cancel()
            future = await self._send(body)

    def _overdue(self, end: "asyncio.Future[None]", id: str) -> None:
        if end.done():
            return
        if self._connection.blocked:
            log.warning("the end of a job waits to be stored, an alarm blocks it id=%s", id)
            asyncio.get_running_loop().call_later(self._timeout, self._overdue, end, id)
            return
        end.set_exception(
            BrokerUnavailable(
                f"RabbitMQ at {self._connection.where} did not confirm within {self._timeout:g} s that"
                f" job {id} has ended: {why_late(self._connection)}"
            )
        )
