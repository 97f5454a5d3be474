"""A destination of messages: a queue or an exchange that is made first, and made again when it is gone.

Law: this connection makes a destination once, and publishes to it without asking again. Only RabbitMQ's answer to a
publish tells that the destination is gone: the message was returned (Unroutable), or there is no such exchange
(NotFound). Then it is made again, and the message is published once more.

Promise:

* `publish` returns once the message is stored in a queue that existed at that moment.
* A refusal (Nacked), a destination that is gone twice in a row, and the error of a lost session are raised. After
  NotFound or a lost session the message may be stored all the same: a second copy has the same id.
* kill -9 of this process: a destination may exist without a message, and a message never without a destination that
  was made before it.

Cost: nothing while the destination is there; else what making it takes, and one more publish.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.properties import PERSISTENT_JSON
from palermo.brokers.rabbitmq.amqp.publisher import Nacked, Publisher, Unroutable
from palermo.core.topology import QUORUM
from palermo.errors import NotFound

#: Seconds in which a record that a quorum queue refuses is published again and again, and seconds between attempts.
#: Such a queue refuses while RabbitMQ is making it: its name is there before it has a leader, so a session that finds
#: the queue which another one is making is refused (3.10.8).
_REFUSED, _AGAIN = 5.0, 0.05

#: The errors of a publish whose destination is gone.
GONE = (Unroutable, NotFound)


@dataclass(frozen=True, slots=True)
class Destination:
    """One destination, as one connection sees it."""

    #: Makes it, unless this connection has made it or found it before.
    ensure: Callable[[], Awaitable[object]]
    #: Notes that it is gone, so that `ensure` makes it again.
    forget: Callable[[], None]

    async def publish(self, send: Callable[[], Awaitable[object]]) -> None:
        """Publish by `send`, which returns once the message is stored. Raises what the module's first lines say."""
        await self.ensure()
        try:
            await send()
        except GONE:
            self.forget()
            await self.ensure()
            await send()


class RecordQueue:
    """A durable queue of Palermo's own, to which sessions write records. One of another type is used as it is."""

    def __init__(
        self,
        name: str,
        connection: Connection,
        publisher: Callable[[], Awaitable[Publisher]],
        arguments: Mapping[str, Any],
    ) -> None:
        """`arguments` are those that the queue is declared with."""
        self.name = name
        self._connection = connection
        self._publisher = publisher
        self._arguments = dict(arguments)
        self._made = False
        self._destination = Destination(self.ensure, self.forget)

    async def exists(self) -> bool:
        """Whether the queue was ever made."""
        return (await self._connection.probe(self.name)).exists

    async def ensure(self) -> None:
        """Make the queue, unless this connection has made it."""
        if not self._made:
            is_new = not await self.exists()
            await self._connection.declare(self.name, self._arguments)
            if is_new:
                await self._connection.persist_queues()
            self._made = True

    def forget(self) -> None:
        """Note that the queue may be gone."""
        self._made = False

    async def write(self, record: Mapping[str, Any]) -> None:
        """Add a record. Returns once it is stored. Raises Nacked; of a quorum queue after five seconds of refusals."""
        body = json.dumps(record).encode()

        async def send() -> None:
            await (await self._publisher()).send("", self.name, PERSISTENT_JSON, body)

        loop = asyncio.get_running_loop()
        until = loop.time() + _REFUSED
        while True:
            try:
                return await self._destination.publish(send)
            except Nacked:
                if self._arguments.get("x-queue-type") != QUORUM or loop.time() > until:
                    raise
                await asyncio.sleep(_AGAIN)
