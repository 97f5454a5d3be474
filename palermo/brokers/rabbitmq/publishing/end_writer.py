"""Writes the ends of runs into one of the leader's ledgers, before their jobs are acknowledged."""

import asyncio
from collections.abc import Awaitable

from palermo.brokers.rabbitmq.amqp.alarms import confirmed
from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.messages import PERSISTENT_JSON
from palermo.brokers.rabbitmq.amqp.publisher import RecordQueue
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.brokers.rabbitmq.seconds import AGAIN
from palermo.errors import NotFound, PublishRefused


class EndWriter:
    """Writes the ends of one session's runs into one queue."""

    def __init__(self, queue: RecordQueue, connection: Connection, outbox: Outbox, timeout: float) -> None:
        """`timeout` is the time to wait for RabbitMQ's confirm, in seconds; an alarm extends it."""
        self._queue = queue
        self._connection = connection
        self._outbox = outbox
        self._timeout = timeout

    async def send(self, id: str, body: bytes) -> Awaitable[None]:
        """Send the end of the job with this id. Returns an awaitable for its storage.

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
            try:
                await confirmed(future, self._connection, f"the end of job {id}", self._timeout, patient=True)
                return
            except NotFound:
                self._queue.forget()
                await self._queue.ensure()
            except PublishRefused:
                await asyncio.sleep(AGAIN)
            future = await self._send(body)
