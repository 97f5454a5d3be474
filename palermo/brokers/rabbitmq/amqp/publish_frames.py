"""Writes the AMQP frames of a published message, and reads RabbitMQ's acks; pika does all other frames.

A message has three kinds of frames: the method basic.publish, a header with the properties, and the body in as many
pieces as the connection's largest frame requires. RabbitMQ answers with basic.ack, a frame of 21 bytes. This module
knows no connection (AMQP 0-9-1, 4.2.3 to 4.2.6).
"""

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache

#: The bytes of a frame besides its payload: type, channel and size before it, and one byte behind it.
OVERHEAD = 8

_END = b"\xce"
_HEAD = struct.Struct(">BHI")
_METHOD, _HEADER, _BODY = 1, 2, 3
_PUBLISH = struct.pack(">HHH", 60, 40, 0)
_MANDATORY = b"\x01"
_BASIC = struct.Struct(">HHQ")

#: A whole frame of basic.ack: the frame's head, class 60 and method 80, delivery tag, multiple, the frame's end.
_ACK = struct.Struct(">BHIHHQBB")
_ACK_HEAD = (_METHOD, 13, 60, 80, 0xCE)

#: Called with a confirm: the delivery tag, and whether it confirms all messages before that too.
Confirmed = Callable[[int, bool], None]


@lru_cache(maxsize=4_096)
def _route(channel: int, exchange: str, routing_key: str) -> bytes:
    """The frame of basic.publish. The message is mandatory: RabbitMQ returns it if no queue takes it."""
    payload = _PUBLISH + _short(exchange) + _short(routing_key) + _MANDATORY
    return _HEAD.pack(_METHOD, channel, len(payload)) + payload + _END


def message(
    channel: int, exchange: str, routing_key: str, properties: bytes, body: bytes, *, frame_max: int
) -> list[bytes]:
    """One message as pieces that follow each other on the wire; no frame is larger than `frame_max`.

    Raises ValueError for a name above 255 bytes of UTF-8, and for properties that do not fit one frame: the broker
    would end the connection.
    """
    room = frame_max - OVERHEAD
    if 12 + len(properties) > room:
        raise ValueError(f"its headers measure {len(properties)} bytes, and frames on this connection hold {room}")
    pieces = [
        _route(channel, exchange, routing_key),
        _HEAD.pack(_HEADER, channel, 12 + len(properties)),
        _BASIC.pack(60, 0, len(body)),
        properties,
        _END,
    ]
    if len(body) <= room:
        if body:
            pieces += (_HEAD.pack(_BODY, channel, len(body)), body, _END)
        return pieces
    for start in range(0, len(body), room):
        piece = body[start : start + room]
        pieces += (_HEAD.pack(_BODY, channel, len(piece)), piece, _END)
    return pieces


def acks(data: bytes, listening: Mapping[int, Confirmed]) -> int:
    """Call the listeners of the channels with the acks that `data` begins with. Returns how many bytes these acks are.

    It stops at the first frame that is not an ack, is for a channel without a listener, or is incomplete.
    """
    offset, end = 0, len(data) - _ACK.size
    while offset <= end:
        kind, channel, size, of, method, tag, multiple, last = _ACK.unpack_from(data, offset)
        told = listening.get(channel)
        if told is None or (kind, size, of, method, last) != _ACK_HEAD:
            break
        offset += _ACK.size
        told(tag, bool(multiple & 1))
    return offset


def _short(text: str) -> bytes:
    data = text.encode()
    if len(data) > 255:
        raise ValueError(f"{text[:40]!r} measures {len(data)} bytes; AMQP names hold 255")
    return bytes((len(data),)) + data
