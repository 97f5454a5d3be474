"""A lock that at most one session holds: an exclusive queue, which RabbitMQ gives to one connection.

Law: at most one connection holds the lock. Of the tasks that use the same `Mutex`, at most one holds it, unless they
share it.

* The holder is killed (kill -9): RabbitMQ deletes the queue with the connection, immediately if the socket is closed,
  otherwise after missed heartbeats.
* The session is lost: the next holder may start before this one notices. So a holder does its protected work on the
  connection of the lock, where calls fail from then on. Other work must tolerate two holders for a moment.
* The holder is cancelled: it releases the lock, but RabbitMQ may still process the holder's calls on other channels. If
  those calls need the lock, the work must not be cancelled (`uninterrupted` in connection.py).
* RabbitMQ refuses the queue, for example because of a missing permission: no session gets the lock. The callers get the
  error, unless they chose to continue without the lock.

Waiting tasks and sessions get the lock in no particular order.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.brokers.rabbitmq.amqp.replies import RESOURCE_LOCKED
from palermo.brokers.rabbitmq.seconds import RETRY_EVERY, SAY_OFTEN
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")


class Mutex:
    """One lock, as one session sees it."""

    def __init__(self, queue: str, waits_for: str = "another session") -> None:
        """`queue` is an AMQP name; `waits_for` describes the holder in the log lines of waiting sessions."""
        self.queue = queue
        self._waits_for = waits_for
        #: Held by the task that holds the lock, or that starts or ends sharing it.
        self._task = asyncio.Lock()
        #: Number of tasks of this session that share the lock, and the channel that holds it.
        self._sharing = 0
        self._shared: Channel | None = None
        #: The pending release of the last hold, which may outlast its task.
        self._leaving: asyncio.Future[None] | None = None

    @asynccontextmanager
    async def held(
        self, connection: Connection, *, patience: float = math.inf, optional: bool = False
    ) -> AsyncIterator[bool]:
        """Hold the lock. Yields False if another session keeps it for longer than `patience` seconds.

        If RabbitMQ refuses the queue, raises that error, or with `optional` yields False immediately.
        """
        until = asyncio.get_running_loop().time() + patience
        if not await self._enter(until):
            yield False
            return
        channel = None
        try:
            channel = await self._wait(connection, until, optional=optional)
            yield channel is not None
        finally:
            await self._leave(self._free(channel))

    @asynccontextmanager
    async def shared(self, connection: Connection, *, patience: float = math.inf) -> AsyncIterator[bool]:
        """Hold the lock together with other tasks of this session, until the last of them ends."""
        until = asyncio.get_running_loop().time() + patience
        held = await self._enter(until)
        if held:
            try:
                if not self._sharing:
                    self._shared = await self._wait(connection, until)
                held = self._shared is not None
                self._sharing += held
            finally:
                self._task.release()
        try:
            yield held
        finally:
            if held:
                await self._leave(self._unshare())

    async def take(self, connection: Connection) -> Channel | None:
        """Try once to take the lock. Returns the channel that holds it, or None if another connection has it.

        Raises BrokerRefused if RabbitMQ refuses the queue, or the error of a lost session.
        """
        channel = await connection.channel()
        try:
            await channel.call(channel.raw.queue_declare, self.queue, exclusive=True)
        except BaseException as error:
            if isinstance(error, PalermoError) and channel.code == RESOURCE_LOCKED:
                return None
            if channel.is_open:
                # The call was cancelled or timed out, and the queue may be ours. If it is another session's, RabbitMQ
                # closes the channel before it reads the delete.
                channel.raw.queue_delete(self.queue, callback=lambda _: None)
                channel.abandon()
            raise
        return channel

    async def _enter(self, until: float) -> bool:
        """Wait for other tasks of this session; False if that takes too long."""
        try:
            async with asyncio.timeout_at(None if math.isinf(until) else until):
                await self._task.acquire()
        except TimeoutError:
            return False
        return True

    async def _wait(self, connection: Connection, until: float, *, optional: bool = False) -> Channel | None:
        now = asyncio.get_running_loop().time
        logged = now()
        while True:
            try:
                channel = await self.take(connection)
            except PalermoError:
                if not optional or connection.error is not None:
                    raise
                return None
            if channel is not None or now() >= until:
                return channel
            if now() - logged > SAY_OFTEN:
                logged = now()
                log.warning("waiting for %s to end", self._waits_for)
            await asyncio.sleep(RETRY_EVERY)

    async def _leave(self, leaving: Coroutine[Any, Any, None]) -> None:
        """Release the lock completely. If this task is cancelled, the next task to take the lock waits for the release.

        The release may take as long as an alarm, during which RabbitMQ doesn't read from the connection.
        """
        self._leaving = asyncio.ensure_future(leaving)
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            await asyncio.shield(self._leaving)

    async def _free(self, channel: Channel | None) -> None:
        try:
            await self._release(channel)
        finally:
            self._task.release()

    async def _unshare(self) -> None:
        async with self._task:
            self._sharing -= 1
            if not self._sharing:
                await self._release(self._shared)

    async def _release(self, channel: Channel | None) -> None:
        if channel is not None and channel.is_open:
            channel.raw.queue_delete(self.queue, callback=lambda _: None)
            # The close is answered after the delete. Without an answer the session is lost and the lock free.
            with suppress(PalermoError):
                await channel.close()
