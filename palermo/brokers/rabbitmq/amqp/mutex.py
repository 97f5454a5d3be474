"""A lock that at most one session holds: an exclusive queue, which RabbitMQ gives to one connection.

Law: one of all connections holds the lock, and one task of those that use the same `Mutex`, unless they share it.

* The holder is killed (kill -9): RabbitMQ deletes the queue with the connection, and the lock is free. That is
  immediate if the socket is closed, and after the missed heartbeats if the machine or the network is down. No cleanup
  is needed.
* The session is lost: the next holder may start before this one notices. So a holder does its protected work through
  the same connection, whose calls fail from then on; otherwise the work must tolerate two holders for a moment.
* The holder is cancelled: it releases the lock, and RabbitMQ may still process calls of the holder on another channel.
  Work for which that is too early is not cancelled (`uninterrupted` in connection.py).
* RabbitMQ refuses the queue, for example to a user without the permission: no session holds the lock. The caller gets
  the error, or may choose to continue without the lock.

Waiting tasks and sessions get the lock in no particular order.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from palermo.brokers.rabbitmq.amqp.connection import RETRY_EVERY, Channel, Connection
from palermo.brokers.rabbitmq.amqp.replies import RESOURCE_LOCKED
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Seconds between two log lines while waiting for a lock.
_LOG_EVERY = 10.0


class Mutex:
    """One lock, as one session sees it."""

    def __init__(self, queue: str, waits_for: str = "another session") -> None:
        """`queue` is the AMQP name of the queue; `waits_for` describes the holder in the log of a waiting session."""
        self.queue = queue
        self._waits_for = waits_for
        #: Held by the task of this session that holds the lock, or that starts or ends sharing it.
        self._task = asyncio.Lock()
        #: Number of tasks of this session that share the lock, and the channel that it was taken on.
        self._sharing = 0
        self._shared: Channel | None = None
        #: The end of the last hold, which may outlast the task that held the lock.
        self._leaving: asyncio.Future[None] | None = None

    @asynccontextmanager
    async def held(
        self, connection: Connection, *, patience: float = math.inf, optional: bool = False
    ) -> AsyncIterator[bool]:
        """Hold the lock; yields False if another session holds it for longer than `patience` seconds.

        With `optional` it also yields False, immediately, if RabbitMQ refuses the queue. Otherwise that error is
        raised.
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
            await self._leave(self._give_back(channel))

    @asynccontextmanager
    async def shared(self, connection: Connection, *, patience: float = math.inf) -> AsyncIterator[bool]:
        """The same, but tasks of this session that share the lock hold it together until the last one ends."""
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
        """Try once to take the lock until the connection ends. Returns a channel; None if another connection holds it.

        Raises BrokerRefused if RabbitMQ refuses the queue, or the error of a lost session.
        """
        channel = await connection.channel()
        try:
            await channel.call(channel.raw.queue_declare, self.queue, exclusive=True)
        except BaseException as error:
            if isinstance(error, PalermoError) and channel.code == RESOURCE_LOCKED:
                return None
            if channel.is_open:
                # The call was cancelled or timed out, and the queue may be ours anyway. If it isn't, RabbitMQ closes
                # the channel before it reads the delete.
                channel.raw.queue_delete(self.queue, callback=lambda _: None)
                channel.abandon()
            raise
        return channel

    async def _enter(self, until: float) -> bool:
        """Wait for this session's other tasks; False if that takes too long."""
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
            if now() - logged > _LOG_EVERY:
                logged = now()
                log.warning("waiting for %s to end", self._waits_for)
            await asyncio.sleep(RETRY_EVERY)

    async def _leave(self, leaving: Coroutine[Any, Any, None]) -> None:
        """Run this to its end. A cancelled task does not wait for it, but the next one to take the lock does.

        RabbitMQ may answer late: while an alarm blocks the connection it doesn't read from it.
        """
        self._leaving = asyncio.ensure_future(leaving)
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            await asyncio.shield(self._leaving)

    async def _give_back(self, channel: Channel | None) -> None:
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
            # The answer to the close follows that to the delete. Without it the session is lost, and the lock free.
            with suppress(PalermoError):
                await channel.close()
