"""Asking the leader again and again on one channel: many questions may be under way at once.

A question may be lost with a leader that dies. So whoever asks must be able to ask the same once more, and is told
after a short silence that nobody answered.
"""

import asyncio
import itertools
import json
from collections.abc import Mapping
from typing import Any

from pika import exceptions, spec

from palermo.brokers.rabbitmq.later import lease
from palermo.brokers.rabbitmq.leader import END, REPLY_TO
from palermo.brokers.rabbitmq.link import Channel, Link, fulfil
from palermo.errors import PalermoError

#: Seconds without an answer, or a sign of life, after which a question counts as lost. A leader gives one every second.
_SILENCE = 2.5


class _Question:
    """One that waits for its answer."""

    __slots__ = ("_alarm", "_loop", "future", "heard")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        #: None if nobody leads, or nothing is heard.
        self.future: asyncio.Future[Mapping[str, Any] | None] = loop.create_future()
        #: Whether there was a sign of life since that was looked at last.
        self.heard = False
        self._loop = loop
        self._alarm = loop.call_later(_SILENCE, self._look)

    def _look(self) -> None:
        if not self.heard:
            fulfil(self.future, None)
        self.heard = False
        self._alarm = self._loop.call_later(_SILENCE, self._look)

    def close(self) -> None:
        """Nobody waits for it any more."""
        self._alarm.cancel()


class Asking:
    """One session's questions to whoever leads."""

    def __init__(self, link: Link, exchange: str) -> None:
        self._link = link
        self._lease = lease(exchange)
        self._opening = asyncio.Lock()
        self._channel: Channel | None = None
        self._questions: dict[str, _Question] = {}
        self._numbers = itertools.count()

    async def tell(self, news: Mapping[str, Any]) -> None:
        """Tell the leader something to which there is no answer; it may be lost. Raises the session's error."""
        channel = await self._open()
        properties = spec.BasicProperties(expiration=str(int(_SILENCE * 1_000)))
        self._publish(channel, news, properties, mandatory=False)

    async def ask(self, question: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The leader's answer; None if nobody leads, or nothing was heard: then ask again.

        Raises the session's error if that is lost.
        """
        channel = await self._open()
        name, asked = str(next(self._numbers)), _Question(asyncio.get_running_loop())
        self._questions[name] = asked
        properties = spec.BasicProperties(reply_to=REPLY_TO, correlation_id=name, expiration=str(int(_SILENCE * 1_000)))
        try:
            self._publish(channel, question, properties, mandatory=True)
            return await asked.future
        finally:
            asked.close()
            self._questions.pop(name, None)

    def _publish(
        self, channel: Channel, values: Mapping[str, Any], properties: spec.BasicProperties, *, mandatory: bool
    ) -> None:
        body = json.dumps(values, separators=(",", ":")).encode()
        try:
            channel.raw.basic_publish("", self._lease, body, properties, mandatory=mandatory)
        except exceptions.AMQPError as error:
            raise channel.error or self._link.translated(error) from error
        self._link.raw.flush()

    async def _open(self) -> Channel:
        if self._channel is not None and self._channel.is_open:
            return self._channel
        async with self._opening:
            if self._channel is None or not self._channel.is_open:
                channel = await self._link.channel()
                channel.on_close(self._on_close)
                channel.raw.add_on_return_callback(self._on_return)
                await channel.call(channel.raw.basic_consume, REPLY_TO, self._on_answer, auto_ack=True)
                self._channel = channel
            return self._channel

    def _on_answer(self, _: object, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
        asked = self._questions.get(str(properties.correlation_id))
        if asked is None:
            return
        values = json.loads(body)
        if values.get(END):
            fulfil(asked.future, values)
        else:
            asked.heard = True

    def _on_return(self, _: object, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
        asked = self._questions.get(str(properties.correlation_id))
        if asked is not None:
            fulfil(asked.future, None)

    def _on_close(self) -> None:
        error = self._link.error
        for asked in self._questions.values():
            if asked.future.done():
                continue
            if isinstance(error, PalermoError):
                asked.future.set_exception(error)
            else:
                asked.future.set_result(None)
