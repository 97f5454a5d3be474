"""State that outlives its leader: records kept unacknowledged in one queue, and read by the next leader.

Law: a record for which `append` or `store` has returned is read by every later leader, until a leader acknowledges it.
A leader acknowledges a record only if no replacement is needed, or after RabbitMQ has confirmed the replacement, never
in one transaction with it.

* The leader is killed (kill -9), or its session is lost: RabbitMQ requeues all records, and the next leader waits for
  that (`open`). If the old one died between a confirm and an acknowledgement, both records are read, in any order. So
  the records themselves determine which one replaces the other, and `replace` takes all replaced records at once.
* The queue refuses a record: `append` and `replace` raise PublishRefused, and acknowledge nothing. A quorum queue may
  have stored the record anyway; then it is read like any other.
* The broker is killed: confirmed records survive. Acknowledgements not yet on disk are lost, so a replaced record may
  be read again.
* The queue is deleted: the log closes, and the next `open` creates the queue and reads nothing.

Cost: one confirmed publish for each record. The leader holds at most 65,535 records. RabbitMQ delivers later records
only as the leader replaces held ones with `store` and `forget`.
"""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from msgspec import Struct

from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.brokers.rabbitmq.amqp.messages import PERSISTENT_JSON, TRANSIENT_JSON, Got, read_json
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.amqp.replies import Probe
from palermo.brokers.rabbitmq.seconds import DELIVERED_WITHIN, HELD, PATIENCE
from palermo.errors import BrokerUnavailable, PalermoError

#: Maximum number of records that a leader holds: AMQP's highest prefetch. Without one, RabbitMQ delivers only 2,000 of
#: a quorum queue.
_MOST = 65_535


class Record(Struct, eq=False):
    """A record that the leader holds unacknowledged. Its content is not kept here."""

    channel: Channel
    #: The delivery tag; 0 once it is acknowledged.
    tag: int
    #: When it was read, on the loop's clock.
    since: float

    @property
    def is_held(self) -> bool:
        """Whether the leader still holds it: it was neither acknowledged nor requeued."""
        return self.tag > 0 and self.channel.is_open

    @property
    def old_at(self) -> float:
        """When it must be replaced, on the loop's clock, before RabbitMQ requeues it."""
        return self.since + HELD

    @property
    def is_old(self) -> bool:
        """Whether it must be replaced now."""
        return asyncio.get_running_loop().time() > self.old_at


class StateLog:
    """One queue of records, on the leader's side."""

    def __init__(
        self,
        queue: str,
        connection: Connection,
        publisher: Callable[[], Awaitable[Publisher]],
        *,
        prepare: Callable[[], Awaitable[None]],
        on_record: Callable[[Record, Any], None],
    ) -> None:
        """`prepare` creates the queue if it is missing. It is awaited before all records are read again.

        `on_record` is called with each record that was not appended by this leader, and its JSON value, or its bytes if
        they aren't JSON. If `on_record` raises, the record counts as unreadable, and is kept in the queue.
        """
        self._queue = queue
        self._connection = connection
        self._publisher = publisher
        self._prepare = prepare
        self._on_record = on_record
        self._opening = asyncio.Lock()
        self._channel: Channel | None = None
        #: Records on their way through the queue, by their bytes. Of two equal ones, the first to arrive counts for
        #: both.
        self._coming: dict[bytes, asyncio.Future[Record]] = {}

    @property
    def is_open(self) -> bool:
        """Whether the leader has read all records, and holds them."""
        return self._channel is not None and self._channel.is_open

    async def open(self) -> None:
        """Read all records, unless the log is open, and then new ones as they arrive. Raises NotFound."""
        async with self._opening:
            if self.is_open:
                return
            await self._prepare()
            channel = await self._connection.channel()
            channel.on_cancel(channel.abandon)
            channel.on_close(partial(self._on_close, channel))
            try:
                await channel.prefetch(_MOST)
                await channel.consume(self._queue, partial(self._on_delivery, channel))
                # Until RabbitMQ has noticed the last leader's end, the queue lacks the records that it held.
                if (await settled(channel, self._queue, readers=1)).consumers > 1:
                    # Two leaders with half of the records each would contradict each other.
                    raise BrokerUnavailable(
                        f"another program is reading the queue {self._queue!r}, or the last leader's session has not"
                        " ended yet."
                    )
            except BaseException:
                channel.abandon()
                raise
            self._channel = channel

    async def catch_up(self) -> None:
        """Read all records that any session had confirmed before this call. Raises NotFound."""
        await self.open()
        if self._channel is not None:
            await settled(self._channel, self._queue, readers=1)

    def close(self) -> None:
        """Requeue all records, for another leader."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.abandon()
            self._fail(BrokerUnavailable(f"the queue {self._queue!r} is being read again. Try again."))

    async def store(self, *values: Any) -> None:
        """Store records, and return once they are confirmed. This log reads them back, like records of other sessions.

        Raises PublishRefused if the queue refuses one.
        """
        await self._send([_encode(value) for value in values])

    async def append(self, *values: Any) -> list[Record]:
        """Store records. Returns them once they are confirmed and held.

        Raises PublishRefused if the queue refuses one, and BrokerUnavailable if the log is closed in the meantime.
        """
        bodies = [_encode(value) for value in values]
        async with self._returning(bodies) as records:
            await self._send(bodies)
        return records

    async def _send(self, bodies: Sequence[bytes]) -> None:
        publisher = await self._publisher()
        await asyncio.gather(*(publisher.send("", self._queue, PERSISTENT_JSON, body) for body in bodies))

    async def replace(self, old: Iterable[Record], *values: Any) -> list[Record]:
        """Append records, then acknowledge the old ones. Raises the same as `append`, with nothing acknowledged."""
        replaced = list(old)
        records = await self.append(*values)
        self.forget(*replaced)
        return records

    def forget(self, *records: Record) -> None:
        """Acknowledge records that are replaced or obsolete. If RabbitMQ has requeued one, it will be read again."""
        for record in records:
            if record.is_held:
                record.channel.ack(record.tag)
                record.tag = 0

    async def await_mark(self, channel: Channel | None = None) -> None:
        """Send a mark through the queue and wait for it, so that all earlier records are read.

        The mark is sent on `channel`, after the unconfirmed records sent there, or by default on the publisher's
        channel.
        """
        publisher = await self._publisher()
        mark = _encode({"mark": uuid.uuid4().hex})
        async with self._returning([mark]) as marks:
            if channel is None:
                await publisher.send("", self._queue, TRANSIENT_JSON, mark)
            else:
                channel.publish("", self._queue, TRANSIENT_JSON, mark)
        self.forget(*marks)

    @asynccontextmanager
    async def _returning(self, bodies: Sequence[bytes]) -> AsyncIterator[list[Record]]:
        """Wait, at the end of the block, until the records sent in it have been read back into the list."""
        if not self.is_open:
            raise BrokerUnavailable(f"the queue {self._queue!r} is not open.")
        records = list[Record]()
        loop = asyncio.get_running_loop()
        coming = [self._coming.setdefault(body, loop.create_future()) for body in bodies]
        try:
            yield records
            async with asyncio.timeout(DELIVERED_WITHIN):
                records += await asyncio.gather(*coming)
        except TimeoutError:
            raise BrokerUnavailable(
                f"the queue {self._queue!r} does not deliver the messages published to it."
            ) from None
        finally:
            for body in bodies:
                self._coming.pop(body, None)

    def _on_delivery(self, channel: Channel, got: Got) -> None:
        if not channel.is_open:
            return  # RabbitMQ requeues it
        if not got.body:
            channel.ack(got.tag)  # Publisher.finds: another session checks that the queue exists
            return
        record = Record(channel, got.tag, asyncio.get_running_loop().time())
        ours = self._coming.pop(got.body, None)
        if ours is not None and not ours.done():
            ours.set_result(record)
        else:
            self._read(record, got.body)

    def _read(self, record: Record, body: bytes) -> None:
        try:
            value = read_json(body)
        except ValueError:
            value = body
        self._connection.unreadable.attempt(self._queue, body, lambda: self._on_record(record, value))

    def _on_close(self, channel: Channel) -> None:
        if channel is self._channel:
            self._channel = None
            self._fail(channel.error or BrokerUnavailable(f"the queue {self._queue!r} was closed."))

    def _fail(self, error: PalermoError) -> None:
        coming, self._coming = self._coming, {}
        for future in coming.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # its caller may have got another error first


async def settled(channel: Channel, queue: str, *, readers: int) -> Probe:
    """Wait until our `readers` are the queue's only consumers.

    If there is such a reader, also waits until RabbitMQ has delivered everything to it. Gives up after some seconds.
    Returns RabbitMQ's last answer about the queue in any case. Raises NotFound. If a quorum queue doesn't answer within
    250 ms, RabbitMQ reports no messages and no consumers (rabbit_quorum_queue:stat). That can't be true while one of
    the consumers is ours.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        # Asked twice, because the second answer arrives after all deliveries that the first one counted.
        await channel.probe(queue)
        probe = await channel.probe(queue)
        is_settled = probe.consumers == readers and not (readers and probe.messages)
        if is_settled or time.monotonic() > deadline:
            return probe
        await asyncio.sleep(0.01)


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
