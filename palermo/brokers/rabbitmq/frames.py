"""The AMQP frames that pass for every job that is published, as bytes and back; all others are pika's business.

A message is three kinds of frames: the method basic.publish, a header with the properties, and as many pieces of
the body as the connection's largest frame asks for. Its answer is basic.ack, a method of 21 bytes. Nothing here knows a
connection (AMQP 0-9-1, 4.2.3 to 4.2.6).
"""

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache

#: What a frame has besides its payload: type, channel and size before it, and one byte behind.
OVERHEAD = 8

_END = b"\xce"
_HEAD = struct.Struct(">BHI")
_METHOD, _HEADER, _BODY = 1, 2, 3
_PUBLISH = struct.pack(">HHH", 60, 40, 0)
_MANDATORY = b"\x01"
_BASIC = struct.Struct(">HHQ")

#: basic.ack as a whole: the frame's head, class 60 and method 80, delivery tag, multiple, the frame's end.
_ACK = struct.Struct(">BHIHHQBB")
_ACK_HEAD = (_METHOD, 13, 60, 80, 0xCE)

#: Told of a confirm: the delivery tag, and whether it stands for all before it too.
Confirmed = Callable[[int, bool], None]


@lru_cache(maxsize=4_096)
def _route(channel: int, exchange: str, routing_key: str) -> bytes:
    """The frame that says where a message goes; it is mandatory, so what no queue takes is returned."""
    payload = _PUBLISH + _short(exchange) + _short(routing_key) + _MANDATORY
    return _HEAD.pack(_METHOD, channel, len(payload)) + payload + _END


def message(
    channel: int, exchange: str, routing_key: str, properties: bytes, body: bytes, *, frame_max: int
) -> list[bytes]:
    """One message as pieces that follow each other on the wire, with the body cut so that no frame is larger than that.

    Raises ValueError for a name above 255 bytes of UTF-8.
    """
    pieces = [
        _route(channel, exchange, routing_key),
        _HEAD.pack(_HEADER, channel, 12 + len(properties)),
        _BASIC.pack(60, 0, len(body)),
        properties,
        _END,
    ]
    room = frame_max - OVERHEAD
    if len(body) <= room:
        if body:
            pieces += (_HEAD.pack(_BODY, channel, len(body)), body, _END)
        return pieces
    for start in range(0, len(body), room):
        piece = body[start : start + room]
        pieces += (_HEAD.pack(_BODY, channel, len(piece)), piece, _END)
    return pieces


def acks(data: bytes, listening: Mapping[int, Confirmed]) -> int:
    """Tell those who listen on their channels of the acks that the data begins with; how many bytes these were.

    It ends at the first frame that is none, is for another channel, or is not whole.
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
