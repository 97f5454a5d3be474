"""Convert messages to AMQP properties and back, as pika's objects and as bytes.

docs/internals/wire.md is the specification.
"""

import json
import math
import struct
import uuid
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Any

from msgspec.structs import replace
from pika import spec

from palermo.brokers.rabbitmq.amqp.fields import (
    as_table,
    read_name,
    read_short,
    read_table,
    short_text,
    write_field,
    write_name,
    write_short,
    write_table,
)
from palermo.brokers.rabbitmq.amqp.frames import Delivered
from palermo.core.message import (
    HEADER_OF,
    NO_HEADERS,
    HeaderValue,
    Message,
    fit_headers,
    from_wire,
    to_headers,
    without_largest,
)
from palermo.core.topics import OCTETS, as_job, group_of
from palermo.errors import HeadersTooLarge

#: Maximum size of properties with their headers in one frame, after the frame's own 12 bytes.
MAX_PROPERTIES = 131_064 - 12

_OCTET = struct.Struct(">B")
_LONGLONG = struct.Struct(">Q")
_FLAGS = struct.Struct(">H")

#: The encoder of each type.
_WRITERS: dict[str, Callable[[Any], bytes]] = {
    "name": write_name,
    "short": write_short,
    "table": write_table,
    "octet": _OCTET.pack,
    "longlong": _LONGLONG.pack,
}

#: All properties in wire order, each with its flag (AMQP 0-9-1, 4.2.6.1 and the class basic) and type. A "name" is a
#: short string with few different values.
_LAYOUT: tuple[tuple[int, str, str], ...] = (
    (1 << 15, "content_type", "name"),
    (1 << 14, "content_encoding", "name"),
    (1 << 13, "headers", "table"),
    (1 << 12, "delivery_mode", "octet"),
    (1 << 11, "priority", "octet"),
    (1 << 10, "correlation_id", "short"),
    (1 << 9, "reply_to", "short"),
    (1 << 8, "expiration", "short"),
    (1 << 7, "message_id", "short"),
    (1 << 6, "timestamp", "longlong"),
    (1 << 5, "type", "short"),
    (1 << 4, "user_id", "short"),
    (1 << 3, "app_id", "short"),
    (1 << 2, "cluster_id", "short"),
)
_WRITTEN = tuple((flag, name, _WRITERS[kind]) for flag, name, kind in _LAYOUT)


#: Decodes the value at an offset; returns it and the offset after it.
Read = Callable[[bytes, int], tuple[Any, int]]


_FLAG_OF = {name: flag for flag, name, _ in _LAYOUT}

#: Flags of the short strings that come before the headers, and between the headers and the message id.
_SHORTS_BEFORE_HEADERS = _FLAG_OF["content_type"], _FLAG_OF["content_encoding"]
_SHORTS_BEFORE_ID = _FLAG_OF["correlation_id"], _FLAG_OF["reply_to"], _FLAG_OF["expiration"]


class Properties(spec.BasicProperties):  # type: ignore[misc]
    """pika's class with Palermo's encoder and decoder."""

    def encode(self, room: int = MAX_PROPERTIES) -> list[bytes]:
        """Encode the properties. If they exceed `room` bytes, the largest headers are left out."""
        pieces = self._encode()
        excess = sum(map(len, pieces)) - room
        headers = vars(self)["headers"]
        if excess > 0 and headers:
            # Only a message from another program can be this large, since enqueued jobs are checked.
            self.headers = without_largest(headers, len(write_table(headers)) - 4 - excess)
            pieces = self._encode()
        return pieces

    def _encode(self) -> list[bytes]:
        flags = 0
        pieces: list[bytes] = [b""]
        values = vars(self)
        for flag, name, write in _WRITTEN:
            value = values[name]
            if value is not None:
                flags |= flag
                pieces.append(write(value))
        pieces[0] = _FLAGS.pack(flags)
        return pieces

    def decode(self, encoded: bytes, offset: int = 0) -> "Properties":
        for name, value in read_properties(encoded, offset).items():
            setattr(self, name, value)
        return self


#: The delivery mode of a message that RabbitMQ stores on disk.
PERSISTENT = 2

#: The properties of our own messages with a JSON body: durable ones, and ones that may be lost when RabbitMQ restarts.
PERSISTENT_JSON = Properties(delivery_mode=PERSISTENT, content_type="application/json")
TRANSIENT_JSON = Properties(delivery_mode=1, content_type="application/json")

#: The format of the records and requests that this version writes. Readers ignore unknown fields and kinds. A change
#: that an older reader would misread gets a new kind or field.
FORMAT = 1


def write_record(record: Mapping[str, Any]) -> bytes:
    """The body of a record or a request, with its format."""
    return json.dumps({"format": FORMAT, **record}).encode()


#: The pseudo-queue through which RabbitMQ sends a reply to the requesting connection (direct reply-to).
REPLY_TO = "amq.rabbitmq.reply-to"


def request_properties(*, seconds: float, correlation_id: str | None = None, reply: bool = True) -> Properties:
    """The properties of a request, which expires when its caller stops waiting."""
    expiration = str(int(seconds * 1_000))
    return Properties(reply_to=REPLY_TO if reply else None, correlation_id=correlation_id, expiration=expiration)


@lru_cache(maxsize=64)
def _before(content_type: str, content_encoding: str) -> bytes:
    """The encoded properties before the headers; a `content_encoding` of "" is left out."""
    flags = sum(_FLAG_OF[name] for name in ("content_type", "headers", "delivery_mode", "message_id"))
    if not content_encoding:
        return _FLAGS.pack(flags) + write_name(content_type)
    flags += _FLAG_OF["content_encoding"]
    return _FLAGS.pack(flags) + write_name(content_type) + write_name(content_encoding)


def read_properties(data: bytes, offset: int) -> dict[str, Any]:
    """The properties whose flags start at this offset, without missing ones. Raises UnknownField."""
    (flags,) = _FLAGS.unpack_from(data, offset)
    offset += 2
    found: dict[str, Any] = {}
    for name, read in _sent(flags):
        found[name], offset = read(data, offset)
    return found


@lru_cache(maxsize=256)
def _sent(flags: int) -> tuple[tuple[str, Read], ...]:
    """The properties with these flags, in wire order."""
    return tuple((name, _READERS[kind]) for flag, name, kind in _LAYOUT if flags & flag)


def _read_octet(data: bytes, offset: int) -> tuple[int, int]:
    return data[offset], offset + 1


def _read_longlong(data: bytes, offset: int) -> tuple[int, int]:
    return _LONGLONG.unpack_from(data, offset)[0], offset + 8


_READERS: dict[str, Read] = {
    "name": read_name,
    "short": read_short,
    "table": read_table,
    "octet": _read_octet,
    "longlong": _read_longlong,
}


#: AMQP properties that stay with a job. Not included: user_id, which the broker checks against the connection's user;
#: cluster_id; and expiration, because a failed or requeued job must not expire.
_KEPT = frozenset({"priority", "correlation_id", "reply_to", "timestamp", "type", "app_id"})


class Got:
    """A message as delivered by RabbitMQ. Its properties are parsed on demand."""

    __slots__ = ("_at", "_data", "_properties", "body", "exchange", "left", "redelivered", "routing_key", "tag")

    def __init__(
        self,
        tag: int,
        redelivered: bool,
        properties: Properties | None,
        body: bytes,
        exchange: str = "",
        routing_key: str = "",
        left: int = 0,
        *,
        data: bytes = b"",
        at: int = 0,
    ) -> None:
        """If `properties` is None, they start at `at` in `data`."""
        self.tag = tag
        self.redelivered = redelivered
        self.body = body
        #: The exchange that it was published to, "" for the default one, and the routing key.
        self.exchange = exchange
        self.routing_key = routing_key
        #: Number of messages left in the queue, if it came from basic.get.
        self.left = left
        self._properties = properties
        self._data = data
        self._at = at

    @property
    def properties(self) -> Properties:
        if self._properties is None:
            self._properties = Properties().decode(self._data, self._at)
            # Don't keep the receive buffer of up to 256 kB: indexes keep thousands of messages for minutes.
            self._data = b""
        return self._properties

    @property
    def encoded(self) -> bytes:
        """Its encoded properties."""
        at = self._at
        # Fast path: forward the encoded properties. Decoding and encoding takes 40 of the leader's 100 µs per tenant's
        # job.
        if self._properties is None:
            # the size of the header frame minus 12 bytes for class, weight and the body's size
            size = int.from_bytes(self._data[at - 16 : at - 12], "big") - 12
            if size <= MAX_PROPERTIES:
                return self._data[at : at + size]
        return b"".join(self.properties.encode())

    @property
    def id(self) -> str | None:
        """Its message id."""
        raw = _message_id(self._data, self._at) if self._properties is None else b""
        id: str | None = short_text(raw) if raw else self.properties.message_id
        return id

    def may_have(self, ids: Collection[bytes]) -> bool:
        """A quick check, without parsing all properties, whether the message may have one of these ids."""
        if self._properties is not None:
            return True
        id = _message_id(self._data, self._at)
        return not id or id in ids


def delivered(method: Any, properties: Properties, body: bytes, *, left: int = 0) -> Got:
    """The message of a delivery, or of the answer to a basic.get."""
    return Got(method.delivery_tag, method.redelivered, properties, body, method.exchange, method.routing_key, left)


def unread(found: Delivered, data: bytes) -> Got:
    """The message of a delivery, or of an answer to basic.get, with its properties still in the buffer."""
    route = found.exchange, found.routing_key
    return Got(found.tag, found.redelivered, None, found.body, *route, found.left, data=data, at=found.properties)


def _message_id(data: bytes, at: int) -> bytes:
    """The message_id of the properties that start here; empty if missing."""
    flags = data[at] << 8 | data[at + 1]
    at += 2
    for flag in _SHORTS_BEFORE_HEADERS:
        if flags & flag:
            at += 1 + data[at]
    if flags & _FLAG_OF["headers"]:
        at += 4 + int.from_bytes(data[at : at + 4], "big")
    at += bool(flags & _FLAG_OF["delivery_mode"]) + bool(flags & _FLAG_OF["priority"])
    for flag in _SHORTS_BEFORE_ID:
        if flags & flag:
            at += 1 + data[at]
    return data[at + 1 : at + 1 + data[at]] if flags & _FLAG_OF["message_id"] else b""


def new_id() -> str:
    """An id for a message without one."""
    return str(uuid.uuid4())


def to_properties(message: Message) -> Properties:
    """The AMQP properties of the message, including headers."""
    properties = Properties(
        content_type=message.content_type,
        content_encoding=message.content_encoding or None,
        headers=to_headers(message),
        delivery_mode=PERSISTENT,
        message_id=message.id,
    )
    if message.properties:
        for name, value in message.properties.items():
            setattr(properties, name, value)
    return properties


def written(message: Message, room: int = MAX_PROPERTIES) -> bytes:
    """The encoded properties of the message. Raises ValueError or struct.error for a value that headers don't support.

    `room` is the maximum size in bytes. If a failed job's properties are larger, the function cuts its errors, and then
    drops its largest other headers. For any other job it cuts nothing and raises ValueError.
    """
    if message.properties or message.extra or message.failure is not None or message.attempts:
        encoded = b"".join(to_properties(message).encode())
        if len(encoded) > room and (message.failure is not None or message.attempts):
            try:
                fitting = fit_headers(message, headers_room(message, room))
            except HeadersTooLarge as error:
                raise ValueError(str(error)) from None
            encoded = b"".join(to_properties(fitting).encode(room))
        return encoded
    id = message.id
    pieces = [write_field("id", id), _route(message.job, message.queue)]
    for (header, unless_empty), value in zip(_BESIDES.values(), _besides(message), strict=True):
        if value is not None and (value or not unless_empty):
            pieces.append(write_field(header, value))
    before = _before(message.content_type, message.content_encoding)
    return b"".join((before, as_table(pieces), _OCTET.pack(PERSISTENT), write_short(id)))


def headers_room(message: Message, room: int) -> int:
    """Maximum size of a message's headers if all its properties may take `room` bytes."""
    others = Properties(**(vars(to_properties(message)) | {"headers": None}))
    return room - len(b"".join(others.encode()))


#: Headers that `written` writes one by one: all except the id, and those that many messages share.
_BESIDES = {name: header for name, header in HEADER_OF.items() if name not in ("job", "queue")}
_besides = attrgetter(*_BESIDES)


@lru_cache(maxsize=1_024)
def _route(job: str, queue: str) -> bytes:
    """The headers with the job's name and its queue."""
    return b"".join(write_field(HEADER_OF[name][0], value) for name, value in (("job", job), ("queue", queue)) if value)


def to_message(properties: Properties, body: bytes, *, taken_from: str | None) -> Message:
    """The message in an AMQP delivery; never raises (see core.message.from_wire)."""
    return message_of(vars(properties), body, taken_from=taken_from)


def message_of(properties: Mapping[str, Any], body: bytes, *, taken_from: str | None) -> Message:
    """The message from AMQP properties by name; missing ones may be None or left out."""
    find = properties.get
    kept: Mapping[str, Any] = NO_HEADERS
    if not _KEPT.isdisjoint(properties):
        kept = {name: value for name in _KEPT if (value := find(name)) is not None} or NO_HEADERS
    headers: Mapping[str, HeaderValue] = find("headers") or NO_HEADERS
    return from_wire(
        message_id=find("message_id"),
        content_type=find("content_type"),
        content_encoding=find("content_encoding"),
        headers=headers,
        body=body,
        taken_from=taken_from,
        new_id=new_id,
        properties=kept,
    )


def read(got: Got, queue: str | None) -> Message:
    """The message of a delivery from this queue; an event becomes its group's job."""
    message = to_message(got.properties, got.body, taken_from=queue)
    return _as_job(message, got.exchange, got.routing_key, queue, typed=bool(got.properties.content_type))


def read_delivered(found: Delivered, data: bytes, queue: str) -> Message:
    """The same as `read`, for a delivery whose properties are still in the buffer. Raises UnknownField."""
    properties = read_properties(data, found.properties)
    message = message_of(properties, found.body, taken_from=queue)
    if message.job and not group_of(found.exchange, queue):  # usually true
        return message
    return _as_job(message, found.exchange, found.routing_key, queue, typed="content_type" in properties)


def _as_job(message: Message, exchange: str, topic: str, queue: str | None, *, typed: bool) -> Message:
    group = group_of(exchange, queue) if queue else ""
    if not group:
        # Another program's message without a job name and media type need not be JSON.
        return message if typed or message.job else replace(message, content_type=OCTETS)
    return as_job(message if typed else replace(message, content_type=OCTETS), group=group, topic=topic)


def read_json(body: bytes) -> Any:
    """Parse JSON in a message's body. Raises ValueError for invalid JSON, deep nesting, NaN or infinity."""
    try:
        return json.loads(body, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return value


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a record, request or reply; {} if it is not one."""
    try:
        found = read_json(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
