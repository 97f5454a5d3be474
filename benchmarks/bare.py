"""The other side: pika as it comes, doing what the broker must be asked for the same promises, and nothing else.

Bodies and properties are made once, before the clock runs: what is left is the price of the wire.
"""

import sys
import time
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
        """Seconds that so many take."""
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
        # One queue on one node confirms in the order of publishing, so tags need no book-keeping.
        self._confirmed = frame.method.delivery_tag if frame.method.multiple else self._confirmed + 1
        if self._confirmed == self._wanted:
            self._connection.ioloop.stop()
        else:
            self._fill()

    def _ended(self, _: object, reason: Any) -> None:
        if not isinstance(reason, pika.exceptions.ConnectionClosedByClient):
            self._error = reason
        self._connection.ioloop.stop()


def consume(url: str, queue: str) -> None:
    """Take and acknowledge message after message, at a prefetch of one, until killed."""

    def opened(channel: Any) -> None:
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(queue, lambda channel, method, properties, body: channel.basic_ack(method.delivery_tag))

    connection = pika.SelectConnection(
        pika.URLParameters(url), on_open_callback=lambda connection: connection.channel(on_open_callback=opened)
    )
    connection.ioloop.start()


if __name__ == "__main__":
    consume(*sys.argv[1:])
