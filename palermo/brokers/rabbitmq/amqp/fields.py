"""AMQP field tables: the format of headers on the wire.

pika's code for them truncates floats. It closes the connection on a timestamp after the year 9999 or a name that is not
UTF-8, so one message from another program would stop a worker permanently. The types are RabbitMQ's (https:

www.rabbitmq.com/amqp-0-9-1-errata.html#section_3), which differ from the AMQP 0-9-1 text.
"""

import hashlib
import math
import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

from palermo.core.message import KNOWN_HEADERS, HeaderValue, Opaque

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

#: Palermo's own header names by their bytes, to avoid decoding and hashing a new string for each header.
_KNOWN = {name.encode(): name for name in KNOWN_HEADERS}

#: Maximum nesting of tables and lists, because of Python's recursion limit; RabbitMQ has none. Deeper values are read
#: as Opaque.
MAX_NESTING = 32

#: Maximum length of a short string in bytes.
_SHORT = 255

_TIME = struct.Struct(">Q")
_DECIMAL = struct.Struct(">Bi")


class UnknownField(ValueError):
    """A field type that RabbitMQ does not document."""


def write_table(table: Mapping[str, HeaderValue]) -> bytes:
    """Encode a table, with its length first.

    Raises ValueError for a name above 255 bytes of UTF-8, an integer above 64 bits, or a type without an AMQP encoding.
    """
    return as_table([write_field(name, value) for name, value in table.items()])


def write_field(name: str, value: HeaderValue) -> bytes:
    """Encode one field of a table: its name and its value. Raises the same errors as `write_table`."""
    try:
        return write_name(name) + write_value(value)
    except RecursionError:
        raise ValueError(f"header {name[:40]!r} is nested too deeply, or contains itself") from None


def as_table(fields: Iterable[bytes]) -> bytes:
    """Build a table from encoded fields."""
    data = b"".join(fields)
    return _LONG.pack(len(data)) + data


def write_short(text: str) -> bytes:
    """Encode a short string. Raises ValueError above 255 bytes."""
    data = text.encode(errors="replace")
    if len(data) > _SHORT:
        raise ValueError(f"{text[:40]!r} has {len(data)} bytes; the maximum for AMQP names and properties is 255")
    return bytes((len(data),)) + data


@lru_cache(maxsize=1_024)
def write_name(text: str) -> bytes:
    """The same as `write_short`, cached: for strings with few different values."""
    return write_short(text)


def write_value(value: HeaderValue) -> bytes:
    """Encode a value: the letter of its type, then the value."""
    match value:
        case str():
            data = value.encode("utf-8", "replace")
            return _KIND_AND_SIZE.pack(b"S", len(data)) + data
        case bool():
            return b"t\x01" if value else b"t\x00"
        case int() if -(2**31) <= value < 2**31:
            return _INT.pack(b"I", value)
        case int():
            return _long_int(value)
        case float() if math.isfinite(value):
            return _DOUBLE.pack(b"d", value)
        case float():
            # RabbitMQ can't decode such a float either, and closes the connection with an internal error.
            raise ValueError(f"the number {value} cannot be stored in an AMQP header")
        case None:
            return b"V"
        case Opaque():
            return bytes(value)
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
            raise ValueError(f"{str(value)[:40]!r} ({type(value).__name__}) cannot be the value of a header")


def _long_int(value: int) -> bytes:
    if -(2**63) <= value < 2**63:
        return _LONG_INT.pack(b"l", value)
    if 0 <= value < 2**64:
        # A timestamp is RabbitMQ's only unsigned 64-bit type.
        return b"T" + _TIME.pack(value)
    raise ValueError(f"{value} does not fit in a 64-bit AMQP integer")


def _decimal(value: Decimal) -> bytes:
    """Encode a decimal: a 32-bit integer and a scale. A number that doesn't fit is written as text."""
    sign, digits, exponent = value.as_tuple()
    if isinstance(exponent, int) and -255 <= exponent <= 0:
        unscaled = int("".join(map(str, digits)) or "0") * (-1 if sign else 1)
        if -(2**31) <= unscaled < 2**31:
            return b"D" + _DECIMAL.pack(-exponent, unscaled)
    return write_value(str(value))


def read_table(data: bytes, offset: int, depth: int = 0) -> tuple[dict[str, HeaderValue], int]:
    """Decode the table at this offset; return it and its end. `depth` is its nesting. Raises UnknownField."""
    (size,) = _LONG.unpack_from(data, offset)
    offset += 4
    end = offset + size
    table: dict[str, HeaderValue] = {}
    while offset < end:
        # Names and texts are decoded inline, because nearly all headers are texts.
        start = offset + 1
        offset = start + data[offset]
        raw = data[start:offset]
        name = _KNOWN.get(raw) or short_text(raw)
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
            table[name], offset = read_value(data, offset, depth)
    return table, offset


def short_text(raw: bytes) -> str:
    """Decode a short string so that it can be written as a short string again.

    Bytes that are not UTF-8 are escaped, like `\\xff`; if that makes the text too long, a digest replaces its end.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        text = raw.decode(errors="backslashreplace")
    data = text.encode()
    if len(data) <= _SHORT:
        return text
    digest = f"~{hashlib.sha256(raw).hexdigest()}"
    return data[: _SHORT - len(digest)].decode(errors="ignore") + digest


def read_short(data: bytes, offset: int) -> tuple[str, int]:
    """Decode the short string at this offset by `short_text`; return it and the offset after it."""
    start = offset + 1
    end = start + data[offset]
    return short_text(data[start:end]), end


def read_name(data: bytes, offset: int) -> tuple[str, int]:
    """The same as `read_short`, cached: for strings with few different values."""
    start = offset + 1
    end = start + data[offset]
    return _name(data[start:end]), end


@lru_cache(maxsize=1_024)
def _name(raw: bytes) -> str:
    return short_text(raw)


def read_value(data: bytes, offset: int, depth: int = 0) -> tuple[HeaderValue, int]:
    """Decode the value at this offset; return it and the offset after it. `depth` is its nesting."""
    kind = data[offset]
    offset += 1
    if kind == _TEXT:
        return _text(data, offset)
    fixed = _FIXED.get(kind)
    if fixed is not None:
        return fixed.unpack_from(data, offset)[0], offset + fixed.size
    container = _CONTAINERS.get(kind)
    if container is not None:
        try:
            if depth == MAX_NESTING:
                raise _TooDeep
            return container(data, offset, depth + 1)
        except _TooDeep:
            if depth:
                raise
            raw, end = _bytes(data, offset)
            return Opaque(data[offset - 1 : offset] + _LONG.pack(len(raw)) + raw), end
    reader = _READERS.get(kind)
    if reader is None:
        raise UnknownField(f"header field of unknown type {chr(kind)!r}")
    return reader(data, offset)


class _TooDeep(Exception):
    """A table or list is nested too deeply."""


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
        # in milliseconds, as JavaScript writes it, it is after the year 9999
        return seconds, offset + 8


def _scaled(data: bytes, offset: int) -> tuple[Decimal, int]:
    scale, unscaled = _DECIMAL.unpack_from(data, offset)
    return Decimal(unscaled).scaleb(-scale), offset + 5


def _array(data: bytes, offset: int, depth: int) -> tuple[list[HeaderValue], int]:
    (size,) = _LONG.unpack_from(data, offset)
    offset += 4
    end = offset + size
    items: list[HeaderValue] = []
    while offset < end:
        item, offset = read_value(data, offset, depth)
        items.append(item)
    return items, offset


_CONTAINERS: dict[int, Callable[[bytes, int, int], tuple[Any, int]]] = {ord("F"): read_table, ord("A"): _array}

_READERS: dict[int, Callable[[bytes, int], tuple[Any, int]]] = {
    ord("x"): _bytes,
    ord("T"): _timestamp,
    ord("D"): _scaled,
    ord("V"): lambda data, offset: (None, offset),
}
