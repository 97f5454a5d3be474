"""Builds the frames that a worker on several queues sends: get a job, count the jobs, subscribe, unsubscribe.

Pure, like delivery_frames.py, which reads the answers. The numbers are those of the classes basic and queue of
AMQP 0-9-1.
"""

import struct
from functools import lru_cache
from typing import Final

from palermo.brokers.rabbitmq.amqp.delivery_frames import END, METHOD, short

#: A method frame up to its arguments: type, channel, size, class and method.
_FRAME = struct.Struct(">BHII")

_GET: Final = 60 << 16 | 70
_CONSUME: Final = 60 << 16 | 20
_CANCEL: Final = 60 << 16 | 30
_DECLARE: Final = 50 << 16 | 10

_TICKET: Final = b"\x00\x00"
_NO_ARGUMENTS: Final = b"\x00\x00\x00\x00"

#: The flags of each method: the job has to be acknowledged; the queue is not created; no answer is expected.
_ACKED: Final = b"\x00"
_PASSIVE: Final = b"\x01"
_CONSUME_NOWAIT: Final = b"\x08"
_CANCEL_NOWAIT: Final = b"\x01"


@lru_cache(maxsize=4_096)
def get(channel: int, queue: str) -> bytes:
    """The frame that asks for a queue's first message, which has to be acknowledged."""
    return _frame(channel, _GET, _TICKET + short(queue) + _ACKED)


@lru_cache(maxsize=4_096)
def count(channel: int, queue: str) -> bytes:
    """The frame that asks how many messages wait in a queue that exists."""
    return _frame(channel, _DECLARE, _TICKET + short(queue) + _PASSIVE + _NO_ARGUMENTS)


def consume(channel: int, queue: str, tag: str) -> bytes:
    """The frame that subscribes to a queue, as the consumer with this tag. RabbitMQ answers only when it refuses."""
    return _frame(channel, _CONSUME, _TICKET + short(queue) + short(tag) + _CONSUME_NOWAIT + _NO_ARGUMENTS)


def cancel(channel: int, tag: str) -> bytes:
    """The frame that ends such a subscription, without an answer."""
    return _frame(channel, _CANCEL, short(tag) + _CANCEL_NOWAIT)


def _frame(channel: int, method: int, arguments: bytes) -> bytes:
    return _FRAME.pack(METHOD, channel, 4 + len(arguments), method) + arguments + bytes((END,))
