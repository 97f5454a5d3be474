"""Reads and writes the frames that a worker handles for every job, without pika's objects: deliveries and acks.

It also reads the answers to a basic.get and to a count of a queue (polling_frames.py).

Pure: bytes in, values out. A delivery is read here when its three frames follow each other in one buffer, which
is how nearly all come. For everything else a reader returns None, and pika reads it frame by frame: a body of several
frames, a heartbeat between the frames, another method, a frame that does not end where it says. Sizes and numbers are
those of AMQP 0-9-1, 4.2.3 and 4.2.6, and of the class basic.
"""

import struct
from functools import lru_cache
from typing import Final, NamedTuple

#: Bytes around a frame's payload: type, channel and size before it, one byte behind it.
FRAME_HEADER, FRAME_END_SIZE = 7, 1

METHOD, _HEADER, _BODY, _HEARTBEAT = 1, 2, 3, 8
END: Final = 0xCE

_FRAME = struct.Struct(">BHI")
#: A content header up to its property flags: type, channel, size, class and weight, size of the body.
_CONTENT = struct.Struct(">BHI4xQ")
_TAG = struct.Struct(">QB")
#: A whole Basic.Ack frame: type, channel, size, class and method, delivery tag, `multiple` (off), end.
_ACK = struct.Struct(">BHIIQBB")

#: How many messages wait in a queue, and how many consumers it has.
_COUNTS = struct.Struct(">II")

_DELIVER: Final = b"\x00\x3c\x00\x3c"
_GET_OK: Final = b"\x00\x3c\x00\x47"
_GET_EMPTY: Final = b"\x00\x3c\x00\x48"
_DECLARE_OK: Final = b"\x00\x32\x00\x0b"
_BASIC_ACK: Final = 60 << 16 | 80

#: The result of a reader while its frames are not all there.
INCOMPLETE: Final = 0


class Delivered(NamedTuple):
    """One delivery, or answer to a basic.get. Its properties, not read yet, begin at `properties` in the buffer."""

    #: Where the next frame begins.
    end: int
    #: From 1; 0 if the queue is empty: then of all below only `frames` means anything.
    tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    properties: int
    body: bytes
    #: How many frames it took.
    frames: int


class Counted(NamedTuple):
    """The answer to a count of a queue."""

    #: Where the next frame begins.
    end: int
    #: How many messages wait in it, without those that are handed out.
    messages: int
    frames: int = 1


def ack(channel: int, tag: int) -> bytes:
    """The frame that acknowledges one delivery."""
    return _ACK.pack(METHOD, channel, 13, _BASIC_ACK, tag, 0, END)


def frame_at(data: bytes, start: int) -> tuple[int, int] | None:
    """The channel of the frame that begins at `start`, and where the next one begins, which may be beyond the buffer.

    The channel is -1 for a frame that is no method. None if the header is not all there, or if this is no frame.
    """
    if len(data) - start < FRAME_HEADER or data[start] not in (METHOD, _HEADER, _BODY, _HEARTBEAT):
        return None
    kind, channel, size = _FRAME.unpack_from(data, start)
    return channel if kind == METHOD else -1, start + FRAME_HEADER + size + FRAME_END_SIZE


def read_delivery(data: bytes, start: int, channel: int, consumer: bytes) -> "Delivered | int | None":
    """The delivery whose method frame begins at `start`, on this channel, for this consumer.

    `consumer` is its tag as `short` writes it. INCOMPLETE if this may be a delivery that is not all there yet; None if
    pika must read it.
    """
    header = start + _FRAME.unpack_from(data, start)[2] + 8
    if header > len(data):
        return INCOMPLETE
    if not (data.startswith(_DELIVER, start + 7) and data.startswith(consumer, start + 11)):
        return None
    return _content(data, channel, header, start + 11 + len(consumer), header - 1)


def read_got(data: bytes, start: int, channel: int) -> "Delivered | int | None":
    """The answer to a basic.get whose method frame begins at `start`; INCOMPLETE or None as in `read_delivery`."""
    header = start + _FRAME.unpack_from(data, start)[2] + 8
    if header > len(data):
        return INCOMPLETE
    if data.startswith(_GET_EMPTY, start + 7):
        return Delivered(header, 0, False, "", "", 0, b"", 1) if data[header - 1] == END else None
    if not data.startswith(_GET_OK, start + 7):
        return None
    # Behind the routing key stands the number of messages that are left.
    return _content(data, channel, header, start + 11, header - 5)


def read_counted(data: bytes, start: int, channel: int) -> "Counted | int | None":
    """The answer to a count whose method frame begins at `start`; INCOMPLETE or None as in `read_delivery`."""
    end = start + _FRAME.unpack_from(data, start)[2] + 8
    if end > len(data):
        return INCOMPLETE
    if not data.startswith(_DECLARE_OK, start + 7) or data[end - 1] != END:
        return None
    return Counted(end, _COUNTS.unpack_from(data, end - 9)[0])


def _content(data: bytes, channel: int, header: int, at: int, route_end: int) -> "Delivered | int | None":
    """The message that a method frame brings: its delivery tag is at `at`, and its header frame begins at `header`."""
    size = len(data)
    if header + _CONTENT.size > size:
        return INCOMPLETE
    kind, number, length, body_size = _CONTENT.unpack_from(data, header)
    after = header + length + 8
    if kind != _HEADER or number != channel:
        return None
    end, body = after, b""
    if body_size:
        if after + FRAME_HEADER > size:
            return INCOMPLETE
        kind, number, length = _FRAME.unpack_from(data, after)
        if kind != _BODY or number != channel or length != body_size:
            return None
        end = after + length + 8
        body = data[after + 7 : end - 1]
    if end > size:
        return INCOMPLETE
    if data[header - 1] != END or data[after - 1] != END or data[end - 1] != END:
        return None
    tag, redelivered = _TAG.unpack_from(data, at)
    exchange, routing_key = _route(data[at + 9 : route_end])
    properties, frames = header + _CONTENT.size, 3 if body_size else 2
    return Delivered(end, tag, bool(redelivered & 1), exchange, routing_key, properties, body, frames)


@lru_cache(maxsize=1_024)
def _route(data: bytes) -> tuple[str, str]:
    """Exchange and routing key, as two short texts. Cached: they are the same for nearly all jobs of a queue."""
    key = 1 + data[0]
    return data[1:key].decode(errors="replace"), data[key + 1 : key + 1 + data[key]].decode(errors="replace")


def short(text: str) -> bytes:
    """A text of at most 255 bytes as AMQP writes it."""
    data = text.encode()
    return bytes((len(data),)) + data
