"""A worker's process model with bare pika and nothing else, for `python -m benchmarks.drain --model`.

A SelectConnection with a consumer for each slot, each at a prefetch of one, hands every message to a process of that
slot through a socket pair, and acknowledges it when the process has answered.
"""

import os
import socket
import sys
from contextlib import suppress
from typing import Any

import pika


def serve(url: str, queue: str, slots: str) -> None:
    """Take and acknowledge message after message, with so many slots, until killed."""
    # Forked first: no other process may hold the connection open.
    ends = [_slot() for _ in range(int(slots))]

    def opened(channel: Any) -> None:
        end, tags = ends[channel.channel_number - 1], list[int]()

        def delivered(_: object, method: Any, properties: object, body: bytes) -> None:
            tags.append(method.delivery_tag)
            end.send(body)

        def answered(*_: object) -> None:
            end.recv(1)
            channel.basic_ack(tags.pop())

        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(queue, delivered)
        loop.add_handler(end.fileno(), answered, loop.READ)

    def connected(connection: Any) -> None:
        for _ in ends:
            connection.channel(on_open_callback=opened)

    loop: Any = pika.SelectConnection(pika.URLParameters(url), on_open_callback=connected).ioloop
    loop.start()


def _slot() -> socket.socket:
    """Our end of a socket pair with a process that answers whatever it reads with one byte."""
    ours, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        return ours
    ours.close()
    with suppress(ConnectionError):
        while theirs.recv(65_536):
            theirs.send(b"+")
    os._exit(0)


if __name__ == "__main__":
    serve(*sys.argv[1:])
