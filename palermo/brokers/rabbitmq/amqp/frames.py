"""Read and write the frames that every job needs, without pika's objects; pika handles all others.

Pure: bytes in, values out.

* A message has a method frame, a header with the properties, and the body in as many frames as the connection's maximum
  frame size requires. RabbitMQ confirms it with basic.ack, a frame of 21 bytes.
* A delivery is read here if its three frames are adjacent in one buffer, as they nearly always are. Otherwise a reader
  returns None, and pika reads it frame by frame.
* A worker on several queues sends basic.get, declarations and bindings for many queues, and reads the answers.

Sizes and numbers are those of AMQP 0-9-1, sections 4.2.3 and 4.2.6, and of the classes basic and queue.
"""

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

#: Bytes around a frame's payload: type, channel and size before it, one byte after it.
FRAME_HEADER, FRAME_END_SIZE = 7, 1

METHOD, _HEADER, _BODY, _HEARTBEAT = 1, 2, 3, 8
END: Final = 0xCE

_FRAME = struct.Struct(">BHI")
#: A content header up to its property flags: type, channel, size, class and weight, size of the body.
_CONTENT = struct.Struct(">BHI4xQ")
_TAG = struct.Struct(">QB")
#: A whole Basic.Ack frame: type, channel, size, class and method, delivery tag, `multiple` (off), end.
_ACK = struct.Struct(">BHIIQBB")

#: The number of waiting messages in a queue, and of its consumers.
_COUNTS = struct.Struct(">II")

_DELIVER: Final = b"\x00\x3c\x00\x3c"
_GET_OK: Final = b"\x00\x3c\x00\x47"
_GET_EMPTY: Final = b"\x00\x3c\x00\x48"
_DECLARE_OK: Final = b"\x00\x32\x00\x0b"
_BASIC_ACK: Final = 60 << 16 | 80

#: A reader's result while frames are incomplete.
INCOMPLETE: Final = 0


class Delivered(NamedTuple):
    """A delivery, or an answer to basic.get. Its unparsed properties start at `properties` in the buffer."""

    #: Start of the next frame.
    end: int
    #: From 1. 0 in an answer from an empty queue, where the fields below have no meaning.
    tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    properties: int
    body: bytes
    #: Number of messages left in the queue, in an answer to basic.get.
    left: int = 0


class Counted(NamedTuple):
    """The answer to a count of a queue."""

    #: Start of the next frame.
    end: int
    #: The number of waiting messages, without delivered ones, and the number of consumers.
    messages: int
    consumers: int


def ack(channel: int, tag: int) -> bytes:
    """The frame that acknowledges one delivery."""
    return _ACK.pack(METHOD, channel, 13, _BASIC_ACK, tag, 0, END)


def frame_at(data: bytes, start: int) -> tuple[int, int] | None:
    """The channel of the frame at `start`, and the start of the next frame, which may be beyond the buffer.

    The channel is -1 for other frames than methods. None if the header is incomplete, or if this is not a frame.
    """
    if len(data) - start < FRAME_HEADER or data[start] not in (METHOD, _HEADER, _BODY, _HEARTBEAT):
        return None
    kind, channel, size = _FRAME.unpack_from(data, start)
    return channel if kind == METHOD else -1, start + FRAME_HEADER + size + FRAME_END_SIZE


def read_delivery(data: bytes, start: int, channel: int, consumer: bytes) -> "Delivered | int | None":
    """The delivery whose method frame starts at `start`, on this channel, for this consumer.

    `consumer` is its tag as encoded by `short`. INCOMPLETE if more bytes are needed; None if pika must read it.
    """
    header = start + _FRAME.unpack_from(data, start)[2] + 8
    if header > len(data):
        return INCOMPLETE
    if not (data.startswith(_DELIVER, start + 7) and data.startswith(consumer, start + 11)):
        return None
    return _content(data, channel, header, start + 11 + len(consumer), header - 1)


def read_got(data: bytes, start: int, channel: int) -> "Delivered | int | None":
    """The answer to a basic.get whose method frame starts at `start`; INCOMPLETE or None as in `read_delivery`."""
    header = start + _FRAME.unpack_from(data, start)[2] + 8
    if header > len(data):
        return INCOMPLETE
    if data.startswith(_GET_EMPTY, start + 7):
        return Delivered(header, 0, False, "", "", 0, b"") if data[header - 1] == END else None
    if not data.startswith(_GET_OK, start + 7):
        return None
    # the number of remaining messages follows the routing key
    left = int.from_bytes(data[header - 5 : header - 1], "big")
    return _content(data, channel, header, start + 11, header - 5, left)


def read_counted(data: bytes, start: int, channel: int) -> "Counted | int | None":
    """The answer to a count whose method frame starts at `start`; INCOMPLETE or None as in `read_delivery`."""
    end = start + _FRAME.unpack_from(data, start)[2] + 8
    if end > len(data):
        return INCOMPLETE
    if not data.startswith(_DECLARE_OK, start + 7) or data[end - 1] != END:
        return None
    return Counted(end, *_COUNTS.unpack_from(data, end - 9))


def _content(
    data: bytes, channel: int, header: int, at: int, route_end: int, left: int = 0
) -> "Delivered | int | None":
    """The message after a method frame. Its delivery tag is at `at`, its header frame at `header`."""
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
    return Delivered(end, tag, bool(redelivered & 1), exchange, routing_key, header + _CONTENT.size, body, left)


@lru_cache(maxsize=1_024)
def _route(data: bytes) -> tuple[str, str]:
    """Exchange and routing key. Cached, since nearly all jobs of a queue have the same."""
    key = 1 + data[0]
    return data[1:key].decode(errors="replace"), data[key + 1 : key + 1 + data[key]].decode(errors="replace")


def short(text: str) -> bytes:
    """Encode a text as an AMQP short string. Raises ValueError above 255 bytes of UTF-8."""
    data = text.encode()
    if len(data) > 255:
        raise ValueError(f"{text[:40]!r} has {len(data)} bytes; the maximum for AMQP names is 255")
    return bytes((len(data),)) + data


#: A method frame up to its arguments: type, channel, size, class and method.
_METHOD_FRAME = struct.Struct(">BHII")

_GET: Final = 60 << 16 | 70
_CONSUME: Final = 60 << 16 | 20
_CANCEL: Final = 60 << 16 | 30
_DECLARE: Final = 50 << 16 | 10
_BIND: Final = 50 << 16 | 20

_TICKET: Final = b"\x00\x00"
_NO_ARGUMENTS: Final = b"\x00\x00\x00\x00"

#: The flags of each method: acks are required; the queue is not created; no answer is expected.
_ACKED: Final = b"\x00"
_PASSIVE: Final = b"\x01"
_DURABLE: Final = b"\x02"
_BIND_NOWAIT: Final = b"\x01"
_CONSUME_NOWAIT: Final = b"\x08"
_CANCEL_NOWAIT: Final = b"\x01"


@lru_cache(maxsize=4_096)
def get(channel: int, queue: str) -> bytes:
    """The frame that requests a queue's first message, to be acknowledged."""
    return _method_frame(channel, _GET, _TICKET + short(queue) + _ACKED)


@lru_cache(maxsize=4_096)
def count(channel: int, queue: str) -> bytes:
    """The frame that requests the number of waiting messages of an existing queue."""
    return _method_frame(channel, _DECLARE, _TICKET + short(queue) + _PASSIVE + _NO_ARGUMENTS)


def declare(channel: int, queue: str, arguments: bytes) -> bytes:
    """The frame that declares a durable queue; `arguments` is an encoded table. Answered in the same way as a count."""
    return _method_frame(channel, _DECLARE, _TICKET + short(queue) + _DURABLE + arguments)


def bind(channel: int, queue: str, exchange: str, routing_key: str) -> bytes:
    """The frame that binds a queue. It gets no answer."""
    route = _TICKET + short(queue) + short(exchange) + short(routing_key)
    return _method_frame(channel, _BIND, route + _BIND_NOWAIT + _NO_ARGUMENTS)


def consume(channel: int, queue: str, tag: str) -> bytes:
    """The frame that subscribes the consumer with this tag to a queue. RabbitMQ answers only to refuse it."""
    return _method_frame(channel, _CONSUME, _TICKET + short(queue) + short(tag) + _CONSUME_NOWAIT + _NO_ARGUMENTS)


def cancel(channel: int, tag: str) -> bytes:
    """The frame that ends such a subscription. It gets no answer."""
    return _method_frame(channel, _CANCEL, short(tag) + _CANCEL_NOWAIT)


def _method_frame(channel: int, method: int, arguments: bytes) -> bytes:
    return _METHOD_FRAME.pack(METHOD, channel, 4 + len(arguments), method) + arguments + bytes((END,))


#: Bytes of a frame around its payload (type, channel and size before it, one byte after it), and of a header frame
#: around its properties (also class, weight and the body's size).
OVERHEAD = 8
CONTENT_OVERHEAD = OVERHEAD + 12

_END = b"\xce"
_PUBLISH = struct.pack(">HHH", 60, 40, 0)
_MANDATORY = b"\x01"
_BASIC = struct.Struct(">HHQ")

#: A whole frame of basic.ack: header, class 60 and method 80, delivery tag, multiple, end.
_CONFIRM = struct.Struct(">BHIHHQBB")
_CONFIRM_HEAD = (METHOD, 13, 60, 80, 0xCE)

#: Called with a confirm: the delivery tag, and whether it also confirms all messages before.
Confirmed = Callable[[int, bool], None]


@lru_cache(maxsize=4_096)
def _publish_frame(channel: int, exchange: str, routing_key: str) -> bytes:
    """The frame of basic.publish. The message is mandatory: RabbitMQ returns it if no queue gets it."""
    payload = _PUBLISH + short(exchange) + short(routing_key) + _MANDATORY
    return _FRAME.pack(METHOD, channel, len(payload)) + payload + _END


def message(
    channel: int, exchange: str, routing_key: str, properties: bytes, body: bytes, *, frame_max: int
) -> list[bytes]:
    """A message as pieces in wire order; no frame is larger than `frame_max`.

    Raises ValueError for a name above 255 bytes of UTF-8, and for properties above one frame, for which the broker
    would close the connection.
    """
    room = frame_max - OVERHEAD
    if len(properties) > frame_max - CONTENT_OVERHEAD:
        raise ValueError(
            f"its headers have {len(properties)} bytes; the maximum for a frame on this connection is {room}"
        )
    pieces = [
        _publish_frame(channel, exchange, routing_key),
        _FRAME.pack(_HEADER, channel, 12 + len(properties)),
        _BASIC.pack(60, 0, len(body)),
        properties,
        _END,
    ]
    if len(body) <= room:
        if body:
            pieces += (_FRAME.pack(_BODY, channel, len(body)), body, _END)
        return pieces
    for start in range(0, len(body), room):
        piece = body[start : start + room]
        pieces += (_FRAME.pack(_BODY, channel, len(piece)), piece, _END)
    return pieces


def acks(data: bytes, listening: Mapping[int, Confirmed]) -> int:
    """Pass the acks at the start of `data` to the listeners of their channels; return the acks' length in bytes.

    Stops at the first frame that is not an ack, is for a channel without a listener, or is incomplete.
    """
    offset, end = 0, len(data) - _CONFIRM.size
    while offset <= end:
        kind, channel, size, of, method, tag, multiple, last = _CONFIRM.unpack_from(data, offset)
        listener = listening.get(channel)
        if listener is None or (kind, size, of, method, last) != _CONFIRM_HEAD:
            break
        offset += _CONFIRM.size
        listener(tag, bool(multiple & 1))
    return offset
