"""The two connections of one session: one for publishing, and one for consuming.

During a memory or disk alarm RabbitMQ stops reading from a connection that has ever published, acks included, so
consuming needs its own. A session without a worker opens it on first use: a program that only enqueues has one
connection.
"""

import asyncio

from palermo.brokers.rabbitmq.amqp.connection import Connection, open_connection
from palermo.contract.broker import SessionParameters
from palermo.contract.tasks import wait_for_any
from palermo.errors import BrokerError, BrokerUnavailable


async def open_connections(session: SessionParameters) -> "Connections":
    """The connections of a new session. Raises the errors of `open_connection`."""
    count = 2 if session.takes else 1
    tasks = [asyncio.ensure_future(open_connection(session, session.name)) for _ in range(count)]
    try:
        # Each attempt ends by itself, even after the other has failed, because a cancelled TLS handshake logs its own
        # error.
        await asyncio.wait(tasks)
        return Connections(session, *(task.result() for task in tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled() and task.exception() is None:
                task.result().raw.abort()
        raise


class Connections:
    """The connections of one session, which is lost when one of them is lost."""

    def __init__(self, session: SessionParameters, publishing: Connection, consuming: Connection | None = None) -> None:
        self._session = session
        self.publishing = publishing
        #: The consuming connection, once it is open.
        self.consuming: Connection | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        if consuming is not None:
            self._consume_on(consuming)

    async def to_consume(self) -> Connection:
        """The connection for consuming and reading, opened if necessary."""
        async with self._opening:
            if self.consuming is None:
                opened = await open_connection(self._session, self._session.name)
                if self._closed:  # closed in the meantime; nothing else would close this connection
                    await opened.close()
                    raise BrokerUnavailable(f"the session with RabbitMQ at {opened.where} is closed.")
                self._consume_on(opened)
            assert self.consuming is not None
            return self.consuming

    def _consume_on(self, connection: Connection) -> None:
        connection.unreadable = self.publishing.unreadable
        self.consuming = connection

    async def lost(self) -> BrokerError:
        """See palermo.contract.broker.Broker.lost."""
        connections = [self.publishing, await self.to_consume()]
        await wait_for_any(*(connection.lost for connection in connections))
        error = next(connection.error for connection in connections if connection.error is not None)
        if self._closed:
            await asyncio.get_running_loop().create_future()
        return error if isinstance(error, BrokerError) else BrokerUnavailable(str(error))

    @property
    def is_lost(self) -> bool:
        """Whether one of them is lost."""
        return any(each is not None and each.error is not None for each in (self.publishing, self.consuming))

    async def close(self) -> None:
        """Close both. After this `lost` doesn't return."""
        self._closed = True
        connections = [self.publishing] if self.consuming is None else [self.consuming, self.publishing]
        # Concurrently: if both are silent, the second must not wait for the first.
        await asyncio.gather(*(connection.close() for connection in connections))
