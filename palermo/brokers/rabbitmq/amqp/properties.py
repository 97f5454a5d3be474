"""The properties of an AMQP message, read and written by our own field tables (see fields.py)."""

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from pika import spec

from palermo.brokers.rabbitmq.amqp.fields import read_name, read_short, read_table, write_name, write_short, write_table
from palermo.core.message import without_largest

#: The most bytes of properties, headers included, that fit one frame, which begins with 12 bytes of its own.
MAX_PROPERTIES = 131_064 - 12

_OCTET = struct.Struct(">B")
_LONGLONG = struct.Struct(">Q")
_FLAGS = struct.Struct(">H")

#: The writer of each type.
_WRITERS: dict[str, Callable[[Any], bytes]] = {
    "name": write_name,
    "short": write_short,
    "table": write_table,
    "octet": _OCTET.pack,
    "longlong": _LONGLONG.pack,
}

#: Every property in the order of the wire, with its flag (AMQP 0-9-1, 4.2.6.1 and the class basic) and its type; a name
#: is a short string that is mostly one of a few.
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


#: Gives the value at an offset, and the offset behind it.
Read = Callable[[bytes, int], tuple[Any, int]]


_FLAG_OF = {name: flag for flag, name, _ in _LAYOUT}


class Properties(spec.BasicProperties):  # type: ignore[misc]
    """pika's own class with Palermo's own way to the wire and back."""

    def encode(self) -> list[bytes]:
        pieces = self._encode()
        excess = sum(map(len, pieces)) - MAX_PROPERTIES
        headers = vars(self)["headers"]
        if excess > 0 and headers:
            # Only a message that came from elsewhere has such headers: a job that is enqueued here has been measured.
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

#: The properties of our own messages with a JSON body, and of those that a restart of RabbitMQ may lose.
PERSISTENT_JSON = Properties(delivery_mode=PERSISTENT, content_type="application/json")
TRANSIENT_JSON = Properties(delivery_mode=1, content_type="application/json")
TRANSIENT = Properties(delivery_mode=1)

#: The queue by which RabbitMQ sends a reply to the connection that asked (direct reply-to).
REPLY_TO = "amq.rabbitmq.reply-to"


def request_properties(*, seconds: float, correlation_id: str | None = None, reply: bool = True) -> Properties:
    """The properties of a request. It expires when nobody waits for the reply any more."""
    expiration = str(int(seconds * 1_000))
    return Properties(reply_to=REPLY_TO if reply else None, correlation_id=correlation_id, expiration=expiration)


def write_plain(content_type: str, content_encoding: str, headers: bytes, delivery_mode: int, message_id: str) -> bytes:
    """The bytes of these properties; `headers` are bytes from `write_table`, and a `content_encoding` of "" is none."""
    before = _before(content_type, content_encoding)
    return b"".join((before, headers, _OCTET.pack(delivery_mode), write_short(message_id)))


@lru_cache(maxsize=64)
def _before(content_type: str, content_encoding: str) -> bytes:
    """The bytes before the headers."""
    flags = sum(_FLAG_OF[name] for name in ("content_type", "headers", "delivery_mode", "message_id"))
    if not content_encoding:
        return _FLAGS.pack(flags) + write_name(content_type)
    flags += _FLAG_OF["content_encoding"]
    return _FLAGS.pack(flags) + write_name(content_type) + write_name(content_encoding)


def read_properties(data: bytes, offset: int) -> dict[str, Any]:
    """The properties whose flags begin at this offset; those that were not sent are left out. Raises UnknownField."""
    (flags,) = _FLAGS.unpack_from(data, offset)
    offset += 2
    found: dict[str, Any] = {}
    for name, read in _sent(flags):
        found[name], offset = read(data, offset)
    return found


@lru_cache(maxsize=256)
def _sent(flags: int) -> tuple[tuple[str, Read], ...]:
    """The properties that have these flags, in the order of the wire."""
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
