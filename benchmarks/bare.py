"""The other side: pika alone, with the same guarantees from the broker and nothing else.

Bodies and properties are made once, before the clock runs, so only the cost of the protocol is left.
"""

import itertools
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pika

if TYPE_CHECKING:
    from benchmarks.ground import Wire

#: Unconfirmed messages in flight.
WINDOW = 1_000


class OneByOne:
    """A BlockingConnection that waits for each confirm."""

    def __init__(self, url: str, wire: "Wire") -> None:
        self._wire = wire
        self._connection = pika.BlockingConnection(pika.URLParameters(url))
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()

    def publish(self, jobs: int) -> float:
        """Publish this number of messages; returns the seconds that it took."""
        wire, publish = self._wire, self._channel.basic_publish
        started = time.perf_counter()
        for _ in range(jobs):
            publish(wire.exchange, wire.routing_key, wire.body, wire.properties, mandatory=True)
        return time.perf_counter() - started

    def close(self) -> None:
        self._connection.close()


class Window:
    """A SelectConnection that keeps WINDOW messages in flight."""

    def __init__(self, url: str, wire: "Wire") -> None:
        self._wire = wire
        self._sent = self._confirmed = self._wanted = 0
        self._channel: Any = None
        self._connection = pika.SelectConnection(
            pika.URLParameters(url),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            on_open_error_callback=self._ended,
            on_close_callback=self._ended,
        )
        self._error: Exception | None = None
        self._run()

    def publish(self, jobs: int) -> float:
        """Seconds from the first publish to the last confirm."""
        self._wanted += jobs
        started = time.perf_counter()
        self._fill()
        self._run()
        return time.perf_counter() - started

    def close(self) -> None:
        self._connection.close()
        self._connection.ioloop.start()

    def _run(self) -> None:
        self._connection.ioloop.start()
        if self._error is not None:
            raise self._error

    def _opened(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(self._on_confirm, callback=lambda _: self._connection.ioloop.stop())

    def _fill(self) -> None:
        wire, publish = self._wire, self._channel.basic_publish
        upto = min(self._wanted, self._confirmed + WINDOW)
        while self._sent < upto:
            publish(wire.exchange, wire.routing_key, wire.body, wire.properties, mandatory=True)
            self._sent += 1

    def _on_confirm(self, frame: Any) -> None:
        # One queue on one node confirms in the order of publishing, so counting is enough.
        self._confirmed = frame.method.delivery_tag if frame.method.multiple else self._confirmed + 1
        if self._confirmed == self._wanted:
            self._connection.ioloop.stop()
        else:
            self._fill()

    def _ended(self, _: object, reason: Any) -> None:
        if not isinstance(reason, pika.exceptions.ConnectionClosedByClient):
            self._error = reason
        self._connection.ioloop.stop()


class Dispatcher:
    """A SelectConnection that moves messages from several queues in turn into one, as the leader does for tenants.

    Each step counts that queue, gets as many messages as it has room for, publishes them, waits for the confirms, and
    acknowledges. There is a channel for each get, because a channel of pika has only one get at a time.
    """

    def __init__(self, url: str, queues: Sequence[str], into: str, *, ahead: int) -> None:
        """`ahead` messages may wait in the queue `into`."""
        self._queues, self._into, self._ahead = itertools.cycle(queues), into, ahead
        self._left = self._coming = 0
        self._channels = list[Any]()
        self._got = list[tuple[Any, int, Any, bytes]]()
        self._unconfirmed = dict[int, tuple[Any, int]]()
        self._published = 0
        self._connection = pika.SelectConnection(
            pika.URLParameters(url),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
        )
        self._connection.ioloop.start()

    def dispatch(self, jobs: int) -> float:
        """Seconds from the first count to the last confirm."""
        self._left = jobs
        started = time.perf_counter()
        self._count()
        self._connection.ioloop.start()
        return time.perf_counter() - started

    def close(self) -> None:
        self._connection.add_on_close_callback(lambda *_: self._connection.ioloop.stop())
        self._connection.close()
        self._connection.ioloop.start()

    def _opened(self, channel: Any) -> None:
        self._channels.append(channel)
        if len(self._channels) <= self._ahead:
            self._connection.channel(on_open_callback=self._opened)
        else:
            channel.confirm_delivery(self._on_confirm, callback=lambda _: self._connection.ioloop.stop())

    def _count(self) -> None:
        self._channels[0].queue_declare(self._into, passive=True, callback=self._on_count)

    def _on_count(self, frame: Any) -> None:
        self._coming = min(self._left, self._ahead - frame.method.message_count)
        if self._coming <= 0:
            self._connection.ioloop.call_later(0.001, self._count)
        for channel in self._channels[: max(0, self._coming)]:
            channel.basic_get(next(self._queues), self._on_got)

    def _on_got(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self._got.append((channel, method.delivery_tag, properties, body))
        if len(self._got) == self._coming:
            for source, tag, found, data in self._got:
                self._published += 1
                self._unconfirmed[self._published] = source, tag
                self._channels[-1].basic_publish("", self._into, data, found, mandatory=True)
            self._got.clear()

    def _on_confirm(self, frame: Any) -> None:
        last = frame.method.delivery_tag
        for number in [one for one in self._unconfirmed if one == last or (frame.method.multiple and one < last)]:
            source, tag = self._unconfirmed.pop(number)
            source.basic_ack(tag)
            self._left -= 1
        if not self._left:
            self._connection.ioloop.stop()
        elif not self._unconfirmed:
            self._count()


def consume(url: str, queue: str, consumers: str = "1") -> None:
    """Take and acknowledge messages until killed, with this number of consumers at a prefetch of one."""

    def opened(channel: Any) -> None:
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(queue, lambda channel, method, properties, body: channel.basic_ack(method.delivery_tag))

    def connected(connection: Any) -> None:
        for _ in range(int(consumers)):
            connection.channel(on_open_callback=opened)

    pika.SelectConnection(pika.URLParameters(url), on_open_callback=connected).ioloop.start()


if __name__ == "__main__":
    consume(*sys.argv[1:])
