"""The frames by which a worker on several queues asks them: for a job, how many they have, and to be told of the next.

Pure, as deliveries.py, where the answers are read. Numbers are those of the classes basic and queue of AMQP 0-9-1.
"""

import struct
from functools import lru_cache
from typing import Final

from palermo.brokers.rabbitmq.deliveries import END, METHOD, short

#: A method frame up to its arguments: type, channel, size, class and method.
_FRAME = struct.Struct(">BHII")

_GET: Final = 60 << 16 | 70
_CONSUME: Final = 60 << 16 | 20
_CANCEL: Final = 60 << 16 | 30
_DECLARE: Final = 50 << 16 | 10

_TICKET: Final = b"\x00\x00"
_NO_ARGUMENTS: Final = b"\x00\x00\x00\x00"

#: The bits of each: a job that is to be acknowledged; a queue that is not to be made; and no answer expected.
_ACKED: Final = b"\x00"
_PASSIVE: Final = b"\x01"
_CONSUME_NOWAIT: Final = b"\x08"
_CANCEL_NOWAIT: Final = b"\x01"


@lru_cache(maxsize=4_096)
def get(channel: int, queue: str) -> bytes:
    """Ask for the first message of a queue, to be acknowledged."""
    return _frame(channel, _GET, _TICKET + short(queue) + _ACKED)


@lru_cache(maxsize=4_096)
def count(channel: int, queue: str) -> bytes:
    """Ask how many messages wait in a queue that exists."""
    return _frame(channel, _DECLARE, _TICKET + short(queue) + _PASSIVE + _NO_ARGUMENTS)


def consume(channel: int, queue: str, tag: str) -> bytes:
    """Subscribe to a queue, as the consumer with this tag; the broker answers only if it cannot be."""
    return _frame(channel, _CONSUME, _TICKET + short(queue) + short(tag) + _CONSUME_NOWAIT + _NO_ARGUMENTS)


def cancel(channel: int, tag: str) -> bytes:
    """End such a subscription, without an answer."""
    return _frame(channel, _CANCEL, short(tag) + _CANCEL_NOWAIT)


def _frame(channel: int, method: int, arguments: bytes) -> bytes:
    return _FRAME.pack(METHOD, channel, 4 + len(arguments), method) + arguments + bytes((END,))
