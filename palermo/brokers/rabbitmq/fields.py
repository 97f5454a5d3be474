"""AMQP field tables: what headers are made of on the wire.

Our own, because pika truncates floats, cannot write them, and lets a timestamp beyond the year 9999
or a name that is not UTF-8 end the connection: one odd message of another program would stop a worker
for ever. The types are those of RabbitMQ (https://www.rabbitmq.com/amqp-0-9-1-errata.html#section_3),
which differ from the AMQP 0-9-1 text.
"""

import math
import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

from palermo.core.message import KNOWN_HEADERS, HeaderValue

_FIXED: dict[int, struct.Struct] = {
    ord(kind): struct.Struct(">" + layout)
    for kind, layout in {
        "t": "?",
        "b": "b",
        "B": "B",
        "s": "h",
        "U": "h",
        "u": "H",
        "I": "i",
        "i": "I",
        "l": "q",
        "L": "q",
        "f": "f",
        "d": "d",
    }.items()
}
_LONG = struct.Struct(">I")
_KIND_AND_SIZE = struct.Struct(">cI")
_INT, _LONG_INT, _DOUBLE = struct.Struct(">ci"), struct.Struct(">cq"), struct.Struct(">cd")
_TEXT = ord("S")

#: Palermo's own headers as they are on the wire: looked up faster than decoded, and hashed once for all messages.
_KNOWN = {name.encode(): name for name in KNOWN_HEADERS}

_TIME = struct.Struct(">Q")
_DECIMAL = struct.Struct(">Bi")


class UnknownField(ValueError):
    """A field type that RabbitMQ does not document."""


def write_table(table: Mapping[str, HeaderValue]) -> bytes:
    """The table with its length before it.

    Raises ValueError for a name above 255 bytes of UTF-8, an integer above 64 bits, or a type AMQP has not.
    """
    return as_table([write_field(name, value) for name, value in table.items()])


def write_field(name: str, value: HeaderValue) -> bytes:
    """One field of a table with its name. Raises as `write_table`."""
    writer = _WRITERS.get(type(value))
    return write_name(name) + (write_value(value) if writer is None else writer(value))


def as_table(fields: Iterable[bytes]) -> bytes:
    """A table of fields that are written already."""
    data = b"".join(fields)
    return _LONG.pack(len(data)) + data


def write_short(text: str) -> bytes:
    """A short string: at most 255 bytes."""
    data = text.encode(errors="replace")
    if len(data) > 255:
        raise ValueError(f"{text[:40]!r} measures {len(data)} bytes; AMQP names and properties hold 255")
    return bytes((len(data),)) + data


@lru_cache(maxsize=1_024)
def write_name(text: str) -> bytes:
    """A short string that is mostly one of a few."""
    return write_short(text)


def write_value(value: HeaderValue) -> bytes:
    """One field: its type's letter and the value."""
    match value:
        case str():
            return _write_text(value)
        case bool():
            return b"t\x01" if value else b"t\x00"
        case int():
            return _write_int(value)
        case float():
            return _write_float(value)
        case None:
            return b"V"
        case bytes() | bytearray():
            return b"x" + _LONG.pack(len(value)) + bytes(value)
        case datetime():
            aware = value if value.tzinfo else value.replace(tzinfo=UTC)
            return b"T" + _TIME.pack(int(aware.timestamp()))
        case Decimal():
            return _decimal(value)
        case Mapping():
            return b"F" + write_table(value)
        case list() | tuple():
            data = b"".join(map(write_value, value))
            return b"A" + _LONG.pack(len(data)) + data
        case _:
            raise ValueError(f"{str(value)[:40]!r} ({type(value).__name__}) is nothing a header can hold")


def _write_text(value: str) -> bytes:
    data = value.encode("utf-8", "replace")
    return _KIND_AND_SIZE.pack(b"S", len(data)) + data


def _write_int(value: int) -> bytes:
    if -(2**31) <= value < 2**31:
        return _INT.pack(b"I", value)
    if -(2**63) <= value < 2**63:
        return _LONG_INT.pack(b"l", value)
    raise ValueError(f"{value} needs more than the 64 bits of an AMQP integer")


def _write_float(value: float) -> bytes:
    if not math.isfinite(value):
        # RabbitMQ itself cannot read one, and closes the connection with an internal error.
        raise ValueError(f"{value} is a number that AMQP headers cannot hold")
    return _DOUBLE.pack(b"d", value)


#: The frequent ones, by their exact type.
_WRITERS: dict[type, Callable[[Any], bytes]] = {str: _write_text, int: _write_int, float: _write_float}


def _decimal(value: Decimal) -> bytes:
    """AMQP's decimal is a 32-bit integer and a scale; one that does not fit travels as text."""
    sign, digits, exponent = value.as_tuple()
    if isinstance(exponent, int) and -255 <= exponent <= 0:
        unscaled = int("".join(map(str, digits)) or "0") * (-1 if sign else 1)
        if -(2**31) <= unscaled < 2**31:
            return b"D" + _DECIMAL.pack(-exponent, unscaled)
    return write_value(str(value))


def read_table(data: bytes, offset: int) -> tuple[dict[str, HeaderValue], int]:
    """The table at this offset, and the offset behind it. Raises UnknownField."""
    (size,) = _LONG.unpack_from(data, offset)
    offset += 4
    end = offset + size
    table: dict[str, HeaderValue] = {}
    while offset < end:
        # Names and texts in place: that is what nearly all headers of nearly all messages are.
        start = offset + 1
        offset = start + data[offset]
        raw = data[start:offset]
        name = _KNOWN.get(raw) or raw.decode(errors="replace")
        kind = data[offset]
        if kind == _TEXT:
            start = offset + 5
            offset = start + _LONG.unpack_from(data, offset + 1)[0]
            text = data[start:offset]
            try:
                table[name] = text.decode()
            except UnicodeDecodeError:
                table[name] = text
        elif (fixed := _FIXED.get(kind)) is not None:
            (table[name],) = fixed.unpack_from(data, offset + 1)
            offset += 1 + fixed.size
        else:
            table[name], offset = read_value(data, offset)
    return table, offset


def read_short(data: bytes, offset: int) -> tuple[str, int]:
    """The short string at this offset; what is not UTF-8 in it is replaced."""
    start = offset + 1
    end = start + data[offset]
    return data[start:end].decode(errors="replace"), end


def read_name(data: bytes, offset: int) -> tuple[str, int]:
    """The same of one that is mostly one of a few."""
    start = offset + 1
    end = start + data[offset]
    return _name(data[start:end]), end


@lru_cache(maxsize=1_024)
def _name(raw: bytes) -> str:
    return raw.decode(errors="replace")


def read_value(data: bytes, offset: int) -> tuple[HeaderValue, int]:
    """The field at this offset, and the offset behind it."""
    kind = data[offset]
    offset += 1
    if kind == _TEXT:
        return _text(data, offset)
    fixed = _FIXED.get(kind)
    if fixed is not None:
        return fixed.unpack_from(data, offset)[0], offset + fixed.size
    reader = _READERS.get(kind)
    if reader is None:
        raise UnknownField(f"header field of unknown type {chr(kind)!r}")
    return reader(data, offset)


def _text(data: bytes, offset: int) -> tuple[str | bytes, int]:
    raw, end = _bytes(data, offset)
    try:
        return raw.decode(), end
    except UnicodeDecodeError:
        return raw, end


def _bytes(data: bytes, offset: int) -> tuple[bytes, int]:
    (size,) = _LONG.unpack_from(data, offset)
    return data[offset + 4 : offset + 4 + size], offset + 4 + size


def _timestamp(data: bytes, offset: int) -> tuple[HeaderValue, int]:
    (seconds,) = _TIME.unpack_from(data, offset)
    try:
        return datetime.fromtimestamp(seconds, UTC), offset + 8
    except (OverflowError, ValueError, OSError):
        # Milliseconds, as JavaScript has them, lie beyond the year 9999.
        return seconds, offset + 8


def _scaled(data: bytes, offset: int) -> tuple[Decimal, int]:
    scale, unscaled = _DECIMAL.unpack_from(data, offset)
    return Decimal(unscaled).scaleb(-scale), offset + 5


def _array(data: bytes, offset: int) -> tuple[list[HeaderValue], int]:
    (size,) = _LONG.unpack_from(data, offset)
    offset += 4
    end = offset + size
    items: list[HeaderValue] = []
    while offset < end:
        item, offset = read_value(data, offset)
        items.append(item)
    return items, offset


_READERS: dict[int, Callable[[bytes, int], tuple[Any, int]]] = {
    ord("x"): _bytes,
    ord("T"): _timestamp,
    ord("D"): _scaled,
    ord("F"): read_table,
    ord("A"): _array,
    ord("V"): lambda data, offset: (None, offset),
}
