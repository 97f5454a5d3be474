"""pika as it comes: no job system, the limit of the wire. A process per slot owns its connection and runs its jobs.

Messages are encoded and decoded as JSON, jobs run in the callback and are acknowledged after it.
"""

import json
import os
import signal
from collections.abc import Callable
from typing import Any

import pika

from benchmarks.peers import marks
from benchmarks.peers.setup import Setup

SETUP = Setup.here()

#: Messages in flight where many are enqueued.
WINDOW = 1_000

_PROPERTIES = pika.BasicProperties(delivery_mode=2, content_type="application/json")
_ARGUMENTS = {"x-queue-type": "quorum"} if SETUP.quorum else None


class Producer:
    """A BlockingConnection that waits for each confirm, and a SelectConnection that keeps many in flight."""

    awaits = False

    async def open(self) -> None:
        parameters = pika.URLParameters(SETUP.url)
        # Nobody serves this connection while it is another's turn.
        parameters.heartbeat = 0
        self._connection = pika.BlockingConnection(parameters)
        self._channel = self._connection.channel()
        for queue in SETUP.queues:
            self._channel.queue_declare(queue, durable=True, arguments=_ARGUMENTS)
        self._channel.confirm_delivery()
        self._window: _Window | None = None

    async def enqueue(self, order: dict[str, Any], queue: str) -> None:
        self._channel.basic_publish("", queue, json.dumps(order), _PROPERTIES, mandatory=True)

    async def enqueue_many(self, orders: list[dict[str, Any]], queue: str) -> None:
        self._window = self._window or _Window()
        self._window.publish([(queue, order) for order in orders])

    async def close(self) -> None:
        if self._window:
            self._window.close()
        self._connection.close()


class _Window:
    """Publishes a list, and returns when all of it is confirmed."""

    def __init__(self) -> None:
        self._sent = self._confirmed = self._wanted = 0
        self._channel: Any = None
        self._orders: list[tuple[str, dict[str, Any]]] = []
        parameters = pika.URLParameters(SETUP.url)
        parameters.heartbeat = 0
        self._connection = pika.SelectConnection(
            parameters,
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            on_close_callback=lambda connection, _: connection.ioloop.stop(),
        )
        self._connection.ioloop.start()

    def publish(self, orders: list[tuple[str, dict[str, Any]]]) -> None:
        self._orders, self._base = orders, self._sent
        self._wanted += len(orders)
        self._fill()
        self._connection.ioloop.start()

    def close(self) -> None:
        self._connection.close()
        self._connection.ioloop.start()

    def _opened(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(self._on_confirm, callback=lambda _: self._connection.ioloop.stop())

    def _fill(self) -> None:
        publish = self._channel.basic_publish
        upto = min(self._wanted, self._confirmed + WINDOW)
        while self._sent < upto:
            queue, order = self._orders[self._sent - self._base]
            publish("", queue, json.dumps(order), _PROPERTIES, mandatory=True)
            self._sent += 1

    def _on_confirm(self, frame: Any) -> None:
        # A block goes to one queue, which confirms in the order of publishing, so tags need no book-keeping.
        self._confirmed = frame.method.delivery_tag if frame.method.multiple else self._confirmed + 1
        if self._confirmed == self._wanted:
            self._connection.ioloop.stop()
        else:
            self._fill()


def consume() -> None:
    """Take, run and acknowledge message after message until killed."""

    def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        marks.run(json.loads(body))
        channel.basic_ack(method.delivery_tag)

    def on_channel(channel: Any) -> None:
        # One unacknowledged message a consumer; as many as there are slots where they share a process.
        channel.basic_qos(prefetch_count=1 if SETUP.pool == "process" else SETUP.slots)
        for queue in SETUP.queues:
            channel.basic_consume(queue, on_message)

    connection = pika.SelectConnection(
        pika.URLParameters(SETUP.url),
        on_open_callback=lambda connection: connection.channel(on_open_callback=on_channel),
    )
    connection.ioloop.start()


def fork(processes: int, serve: Callable[[], None]) -> None:
    """Serve in so many processes, and end them when told to."""
    children = []
    for _ in range(processes):
        child = os.fork()
        if child == 0:
            serve()
            os._exit(0)
        children.append(child)

    def end(*_: object) -> None:
        for child in children:
            os.kill(child, signal.SIGTERM)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    if SETUP.pool == "process" and SETUP.slots > 1:
        fork(SETUP.slots, consume)
    else:
        consume()
