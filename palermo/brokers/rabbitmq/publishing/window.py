"""Limits how many unconfirmed messages of one call, and how many bytes of them, are in flight at a time."""

import asyncio
from functools import partial

from palermo.brokers.rabbitmq.amqp.publisher import GONE, Nacked
from palermo.brokers.rabbitmq.publishing.job_destinations import Place
from palermo.contract.broker import OnPublished
from palermo.core.message import Message
from palermo.errors import NotFound, PalermoError, PublishRefused

#: Unconfirmed messages, and bytes of their bodies, in flight at once.
MOST, MOST_BYTES = 1_000, 16 * 1024 * 1024


class Window:
    """Counts the messages that were sent and are not confirmed. `room` returns when half of them are confirmed."""

    def __init__(self) -> None:
        #: Refused messages that may be published again: the message, its place, and why.
        self.refused: list[tuple[Message, Place, PublishRefused | NotFound]] = []
        self._error: PalermoError | None = None
        self._flying = self._bytes = 0
        self._wanted = 0
        self._waiting: asyncio.Future[None] | None = None

    def sends(self, message: Message, place: Place) -> OnPublished:
        """Count the message in; returns the callback to call with the outcome."""
        self._flying += 1
        self._bytes += len(message.body)
        return partial(self._ended, message, place)

    @property
    def full(self) -> bool:
        """Whether no more messages may be sent now."""
        return self._flying >= MOST or self._bytes > MOST_BYTES or self._error is not None

    async def room(self) -> None:
        """Wait until there is room again. Raises the error of a message that is not to be tried again."""
        await self._until(MOST // 2)

    async def landed(self) -> None:
        """Wait until all are confirmed or refused. Raises as `room` does."""
        await self._until(0)

    async def _until(self, most: int) -> None:
        while self._error is None and (self._flying > most or self._bytes > MOST_BYTES):
            self._wanted = most
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        if self._error is not None:
            raise self._error

    def _ended(self, message: Message, place: Place, error: PalermoError | None) -> None:
        self._flying -= 1
        self._bytes -= len(message.body)
        if isinstance(error, (Nacked, *GONE)):
            self.refused.append((message, place, error))
        elif error is not None:
            self._error = self._error or error
        waiting = self._waiting
        if waiting is not None and (self._flying <= self._wanted or self._error is not None) and not waiting.done():
            waiting.set_result(None)
