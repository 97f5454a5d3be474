"""The event log: a stream that keeps events for a while.

The gateway exchange routes all events to it. The stream accepts every event, so RabbitMQ never returns a mandatory one
as unroutable. An entry has the exchange that the event was published to, and the topic as its routing key.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from msgspec import Struct

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.messages import Got
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.amqp.stream import Stream
from palermo.brokers.rabbitmq.journal import stream_bounds
from palermo.brokers.rabbitmq.publishing.declarer import EventTopology
from palermo.brokers.rabbitmq.seconds import LONG_PATIENCE, SKEW
from palermo.contract import clock
from palermo.contract.broker import SessionParameters
from palermo.core.message import EVENT_ID
from palermo.core.topology import internal
from palermo.errors import BrokerUnavailable

log = logging.getLogger("palermo.rabbitmq")

#: The header with an entry's offset, which the stream adds.
_OFFSET = "x-stream-offset"


class Found(Struct, frozen=True):
    """One event in the log."""

    entry: Got
    offset: int

    @property
    def at(self) -> float | None:
        """When it was published, in Unix seconds, from its headers or timestamp; None if it has neither."""
        headers = self.entry.properties.headers or {}
        for said in (headers.get("queued-at"), headers.get("created-at"), self.entry.properties.timestamp):
            if isinstance(said, int | float) and not isinstance(said, bool):
                return float(said)
        return None


class EventLog:
    """The event log of one exchange."""

    def __init__(
        self,
        session: SessionParameters,
        connection: Connection,
        wiring: EventTopology,
        publisher: Callable[[], Awaitable[Publisher]],
    ) -> None:
        self._session = session
        self._connection = connection
        self._wiring = wiring
        self.wanted = session.keep_events
        #: Whether this session last bound the stream to the gateway; at first, whether events should be kept.
        self._bound = session.keep_events
        self._stream = Stream(
            internal(session.exchange, "events"),
            publisher,
            patience=max(session.timeout, LONG_PATIENCE),  # an aborted long read must start again
            holds="the kept events",
            arguments=stream_bounds(session.events_bytes, session.events_age),
        )

    async def bind(self) -> bool:
        """Bind the stream to the gateway, which fills it. If events should not be kept, unbind it.

        Returns False if events should be kept but the stream is broken. Groups get them anyway.
        """
        if self.wanted:
            try:
                await self._bind()
                self._bound = True
                return True
            except BrokerUnavailable as error:
                if self._connection.error is not None:
                    raise
                level = logging.WARNING if self._bound else logging.DEBUG
                log.log(level, "cannot keep events for now error=%r", str(error))
        self._bound = False
        await self._unbind()
        return not self.wanted

    async def _bind(self) -> None:
        async def bind() -> None:
            async with self._connection.spare_channel() as channel:
                await channel.bind(self._stream.name, self._wiring.gateway)

        await self._stream.destination.publish(bind)

    async def _unbind(self) -> None:
        try:
            async with self._connection.spare_channel() as channel:
                await channel.unbind(self._stream.name, self._wiring.gateway)
        except BrokerUnavailable:
            if self._connection.error is not None:
                raise
            # Up to 4.2 the bindings of a broken stream can't be changed, and RabbitMQ skips it.

    async def count(self, connection: Connection) -> int:
        """Number of events and marks, computed from offsets: RabbitMQ reports an outdated length."""
        end = await self.end(connection)
        if end < 1:
            return 0
        async with aclosing(self._stream.deliveries(connection, "first", end)) as entries:
            async for first, _ in entries:
                # The first entry has no meaning.
                return end - max(1, first) + 1
        return 0

    async def end(self, connection: Connection) -> int:
        """The offset of the newest event; negative if there is none."""
        end = await self._stream.end(connection)
        return -1 if end is None else end

    async def mark(self, connection: Connection) -> int:
        """Write a mark. Returns its offset or a later one. Everything routed before this call has a lower offset.

        A publisher's channel looks up bindings and sends to the stream in one step. So a message routed by old bindings
        arrives before a mark that is sent now, even if `end` doesn't show it yet.
        """
        await self._stream.write({"mark": clock.now()})
        return await self.end(connection)

    async def read(
        self, connection: Connection, first: int, last: int, since: float | None = None
    ) -> AsyncGenerator[Found, None]:
        """The kept events between two offsets, without those that are too old.

        With `since`, starts at about that time instead of at `first`; the stream must contain a later entry. If an
        event has no id, this gives it one, the same at each read. See Stream.deliveries.
        """
        start: int | str | datetime = first or "first"
        if since is not None:
            start = datetime.fromtimestamp(max(0.0, since - SKEW), UTC).replace(tzinfo=None)
        oldest = clock.now() - self._session.events_age
        async with aclosing(self._stream.deliveries(connection, start, last)) as entries:
            async for offset, entry in entries:
                # An entry without an exchange is a mark or the first entry.
                if offset >= first and entry.exchange:
                    found = self._found(offset, entry)
                    if found.at is None or found.at >= oldest:
                        yield found

    def _found(self, offset: int, entry: Got) -> Found:
        headers: dict[str, Any] = dict(entry.properties.headers or {})
        headers.pop(_OFFSET, None)
        if not entry.properties.message_id and not isinstance(headers.get("id"), str):
            headers["id"] = str(uuid5(NAMESPACE_OID, f"{self._stream.name}/{offset}"))
        entry.properties.headers = headers
        return Found(entry, offset)


def event_id(entry: Got) -> str:
    """The id of an event, as published or as the job of a group; "" for an event without an id in a queue."""
    headers = entry.properties.headers or {}
    return str(headers.get(EVENT_ID) or entry.properties.message_id or headers.get("id") or "")
