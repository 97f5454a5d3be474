"""A state that results from a stream's records, kept in memory by each session.

Law: a state is built only from the stream. If the stream is deleted, the first session that notices rewrites it from
memory, and the others read it again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from palermo.brokers.rabbitmq.amqp.alarms import unconfirmed
from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.amqp.stream import REPLACED_WITHIN, Follower, Record, Stream
from palermo.brokers.rabbitmq.seconds import AGAIN, LONG_PATIENCE, RETRY_EVERY
from palermo.contract.tasks import wait_for_any
from palermo.errors import BrokerRefused, PalermoError

log = logging.getLogger("palermo.rabbitmq")


#: Seconds that a small stream may be down after RabbitMQ has created another one in its place. It opens fast.
_GRACE = 0.5


class State(Protocol):
    """A state that is built from records."""

    def apply(self, record: Record) -> None:
        """Apply one more record."""

    def records(self) -> Iterable[Record]:
        """Records from which this state can be rebuilt."""


S = TypeVar("S", bound=State)


class FollowedStream(Generic[S]):
    """One stream and its state, for one session. The session starts to follow it at the first `read`."""

    def __init__(
        self,
        name: str,
        connection: Connection,
        publisher: Callable[[], Awaitable[Publisher]],
        fresh: Callable[[], S],
        *,
        patience: float,
        holds: str,
        arguments: Mapping[str, Any],
    ) -> None:
        """`connection` is used to write to the stream; `fresh` returns an empty state.

        `patience` is the maximum time to store a record, in seconds. See Stream for the other parameters.
        """
        within = max(patience, REPLACED_WITHIN)
        self.stream = Stream(name, publisher, patience=within, holds=holds, arguments=arguments, grace=_GRACE)
        self.stream.refill = lambda: self.state.records()
        self._writing = connection
        self._fresh = fresh
        self._patience = patience
        self.state = fresh()
        self._follower: Follower | None = None
        self._reading = asyncio.Lock()
        self._listeners: list[Callable[[S, Record], None]] = []
        self._watching: asyncio.Task[None] | None = None
        #: Set once watchers need not wait for the state any more.
        self._known = asyncio.Event()

    async def read(self, connection: Connection) -> S:
        """The state with every record stored so far. Raises BrokerUnavailable if the stream stays down."""
        async with self._reading:
            if not await self._is_up_to_date(connection):
                await self._follow(connection)
            return self.state

    async def write(self, record: Record) -> None:
        """Store a record, waiting for a stream that is down. Raises BrokerUnavailable after `patience` seconds."""
        try:
            async with asyncio.timeout(self._patience):
                await self.stream.write_patiently(record)
        except TimeoutError:
            raise unconfirmed(self._writing, self.stream.holds, self._patience) from None

    async def watch(self, connection: Connection, listener: Callable[[S, Record], None]) -> None:
        """Keep the state up to date as long as the connection lasts, even if the stream fails.

        Returns once the state is known, or after 30 seconds, because a worker runs jobs even if the stream is down.
        From then on, `listener` is called with the state and each new record. After the whole stream was read again, it
        is called with an empty record. Raises the connection's error if it is lost first.
        """
        self._listeners.append(listener)
        if self._watching is None or self._watching.done():
            self._known = asyncio.Event()
            self._watching = asyncio.ensure_future(self._keep_watching(connection))
        await wait_for_any(self._known, connection.lost)
        if connection.error is not None:
            raise connection.error

    def ignore(self, listener: Callable[[S, Record], None]) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    async def _keep_watching(self, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while connection.error is None:
            try:
                await self.read(connection)
            except PalermoError as error:
                if connection.error is None and (self._known.is_set() or loop.time() - began > LONG_PATIENCE):
                    log.error("cannot read %s, continuing error=%r", self.stream.holds, str(error))
                    self._known.set()
                elif connection.error is None:
                    log.warning("cannot read %s, taking no jobs yet error=%r", self.stream.holds, str(error))
            else:
                self._known.set()
                ended = asyncio.Event()
                if self._follower is not None and self._follower.is_open:
                    self._follower.on_close(ended.set)
                    await wait_for_any(ended, connection.lost)
                    continue
            await wait_for_any(connection.lost, timeout=AGAIN)

    async def _is_up_to_date(self, connection: Connection) -> bool:
        if self._follower is None or not self._follower.is_open:
            return False
        end = await self.stream.end(connection)
        return end is not None and await self._follower.has_come_to(end, patience=self._patience)

    async def _follow(self, connection: Connection) -> None:
        if self._follower is not None:
            await self._follower.close()
        state = self._fresh()

        def apply(record: Record) -> None:
            state.apply(record)
            if self.state is state:
                self._notify(record)

        follower = await self.stream.follow(connection, apply)
        if follower is None and await self._make_unless_blocked():
            follower = await self.stream.follow(connection, apply)
        self._follower = follower
        if follower is not None:
            self.state = state
            if self._known.is_set():
                self._notify({})

    async def _make_unless_blocked(self) -> bool:
        """Create the stream, unless this user may only read.

        During an alarm, returns False and creates it in the background.
        """
        making = asyncio.ensure_future(self.stream.make())
        making.add_done_callback(lambda done: done.cancelled() or done.exception())
        while not making.done() and not self._writing.blocked:
            await asyncio.wait({making}, timeout=RETRY_EVERY)
        if making.done():
            with suppress(BrokerRefused):
                making.result()
        return making.done()

    def _notify(self, record: Record) -> None:
        for listener in self._listeners:
            listener(self.state, record)
