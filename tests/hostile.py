"""Messages that no client library would publish, and that the broker takes: properties as bytes, a list and by chance.

What RabbitMQ 3.10 itself refuses, by closing the publisher's connection, is left out: numbers that are not finite,
field types that it does not document and `U`, tables that end in the middle of a field, delivery modes other than 1
and 2, expirations that are no number, another's user_id, CC and BCC that are no list.
"""

import struct
import time
from random import Random
from typing import TypeVar

from palermo.core.message import KNOWN_HEADERS
from tests.raw_amqp import FRAME_MAX, long, nested, properties, short, table, table_of, text

T = TypeVar("T")

#: What all properties together may measure, so that they fit one frame.
ROOM = FRAME_MAX - 8 - 12

#: Jobs of tests/programs/hostile.py: one that writes a line, two that fail, and one that is not there.
NOTE, RAISES, LONG_NAME, UNKNOWN = "hostile.note", "mixed.hostile", "mixed.monster", "hostile.nowhere"

#: Headers with a meaning, beside those that Palermo writes itself.
_MEANT = (
    *sorted(KNOWN_HEADERS - {"id", "job-class", "queue"}),
    *("perform_job_at", "recurring", "tick", "topic", "event-id", "unique", "unique-linger", "rate-turn"),
    *("traceparent", "tracestate", "baggage", "dropped-headers", "x-death", "x-first-death-queue"),
    *("x-delivery-count", "failed-in", "parent-id", "batch-id", "deaths", "CC", "BCC"),
)

_SHORTS = (
    *(b"", b"a", b"\x00", b"a\x00b", b"\xff", b"\xff" * 86, b"\xff" * 128, b"\xff" * 255, b"\xc3" * 200),
    *("é".encode() * 127, "𝄞".encode() * 63, b"\r\n", b"\x1b[31mred", b"\xe2\x80\xa8", b"' or 1=1 --", b"<script>"),
    *(b"\xed\xa0\x80", b"\xef\xbf\xbd" * 85, b"../../etc/passwd", b"id", b"%s%n{0}"),
    *(b"application/json", b"application/msgpack", b"gzip"),
)

_TEXTS = (
    *(*_SHORTS, b"0", b"-1", b"1e300", b"nan", b"NaN", b"{}"),
    *(b"9" * 5_000, b"\xff" * 3_000, b"\xf0\x9f\x92\xa9" * 500),
)

_EDGES = {
    "b": (-128, -1, 0, 127),
    "B": (0, 255),
    "h": (-(2**15), -1, 0, 2**15 - 1),
    "H": (0, 2**16 - 1),
    "i": (-(2**31), -1, 0, 1, 2**31 - 1),
    "I": (0, 2**31, 2**32 - 1),
    "q": (-(2**63), -1, 0, 1, 2**53 + 1, 2**63 - 1),
    "Q": (0, 1, 2**31, 2**33, 253_402_300_800, 1_760_000_000_000, 2**62, 2**63 - 1, 2**63, 2**64 - 1),
    "f": (0.0, -0.0, 1.5, -1e38, 1e-45),
    "d": (0.0, -0.0, -1.0, 1e300, -1e300, 5e-324, 2.0**63, 0.1),
}

#: Headers with which a job may run for the test's whole time, or not yet, and values that mean no time and no number.
_DELAYING = (b"rerun-after", b"timeout", b"run-at", b"perform_job_at", b"max-retries")
_NO_TIMES = (
    *(b"t\x01", b"V", b"F" + long(b""), b"A" + long(b"")),
    *(b"S" + long(b"soon"), b"x" + long(b"12"), b"S" + long(b"\xff")),
)

#: Names of jobs that no job has.
_ODD_NAMES = (
    *(b"", b"hostile.no\x00te", b"hostile.\xff", b"hostile.\nnote", b"\xed\xb2\x80"),
    *(b"j" * 60_000, b"\xff" * 300),
)

#: A field's letter, and the layout of what follows.
_NUMBERS = (
    *(("b", "b"), ("B", "B"), ("s", "h"), ("u", "H"), ("I", "i"), ("i", "I"), ("l", "q"), ("L", "q")),
    *(("T", "Q"), ("f", "f"), ("d", "d")),
)


def a_message(random: Random, token: str) -> tuple[bytes, bytes]:
    """The properties and the body of a message that is one job; its body holds the token."""
    fields = _job(random, token) + _fields(random, room=ROOM - 4_000)
    return _properties(random, fields, token), b'["' + token.encode() + b'"]'


def any_properties(random: Random) -> bytes:
    """Properties alone, without a job that is known."""
    return _properties(random, _job(random, "x") * random.randint(0, 1) + _fields(random, room=ROOM - 4_000), "x")


def _job(random: Random, token: str) -> bytes:
    names = (NOTE, NOTE, NOTE, NOTE, RAISES, LONG_NAME, UNKNOWN)
    name = random.choice(names).encode()
    if random.random() < 0.1:
        name = random.choice(_ODD_NAMES)
    written = short(b"job-class") + (b"S" + long(name) if random.random() < 0.95 else _value(random, 0, 2_000))
    if random.random() < 0.1:
        written += short(b"unique-key") + b"S" + long(f"key-{token}".encode() + random.choice(_SHORTS))
        written += short(b"unique") + b"S" + long(b"until_done")
    if random.random() < 0.05:
        written += short(b"limit-key") + b"S" + long(random.choice(_TEXTS)) + short(b"limit") + b"I\x00\x00\x00\x04"
    if random.random() < 0.2:
        written += short(b"queue") + b"S" + long(random.choice(_TEXTS))
    return written


def _fields(random: Random, room: int) -> bytes:
    written = b""
    for _ in range(random.choice((0, 1, 2, 3, 8))):
        room -= len(written)
        name = random.choice(_MEANT).encode() if random.random() < 0.2 else _short(random)
        if name == b"id":
            continue  # two jobs of one id are one job, and one of them is to go
        if name in _DELAYING:
            value = random.choice(_NO_TIMES)
        elif name in (b"CC", b"BCC"):
            value = b"A" + long(random.choice((b"", b"I\0\0\0\1", b"S" + long(b"\xff\xff"))))
        else:
            value = _value(random, 0, max(0, min(room - 300, random.choice((300, 300, 5_000, 120_000)))))
        field = short(name) + value
        if len(field) <= room:
            written += field
    return written


def _value(random: Random, depth: int, room: int) -> bytes:
    kind = random.random()
    if kind < 0.45:
        letter, layout = random.choice(_NUMBERS)
        return letter.encode() + struct.pack(">" + layout, random.choice(_EDGES[layout]))
    if kind < 0.5:
        return random.choice((b"V", b"t\x00", b"t\x01", b"t\xff"))
    if kind < 0.55:
        return b"D" + bytes((random.choice((0, 1, 28, 255)),)) + struct.pack(">i", random.choice(_EDGES["i"]))
    if kind < 0.6 and room > 60_000:
        return random.choice((b"S", b"x")) + long(
            random.choice((b"\xff", b"a", b"\x00", b"\x1b")) * random.randint(50_000, room)
        )
    if kind < 0.8 or depth > 3:
        return random.choice((b"S", b"x")) + long(random.choice(_TEXTS)[: max(0, room)])
    if kind < 0.86:
        return _deep(random, room)
    inside = b""
    table = random.random() < 0.5
    for _ in range(random.choice((0, 1, 3))):
        item = (_short_field(random) if table else b"") + _value(random, depth + 1, room // 4)
        if len(inside) + len(item) < room:
            inside += item
    return (b"F" if table else b"A") + long(inside)


def _deep(random: Random, room: int) -> bytes:
    """Tables or lists within each other."""
    value = b"T" + (2**63).to_bytes(8, "big")
    for _ in range(random.choice((5, 31, 32, 33, 100, 450, 600, 3_000))):
        if len(value) + 8 > room:
            break
        value = random.choice((b"F" + long(short(b"k") + value), b"A" + long(value)))
    return value


def _short(random: Random) -> bytes:
    if random.random() < 0.5:
        return random.choice(_SHORTS)
    return random.randbytes(random.choice((1, 3, 20, 100, 200, 255)))


def _short_field(random: Random) -> bytes:
    return short(_short(random))


def _properties(random: Random, fields: bytes, token: str) -> bytes:
    """All properties, of which each may be there or not, and the headers with these fields. An id ends in the token."""
    flags, pieces = 0, list[bytes]()

    def put(bit: int, raw: bytes) -> None:
        nonlocal flags
        flags |= 1 << bit
        pieces.append(raw)

    if random.random() < 0.3:
        put(15, short(b"application/json" if random.random() < 0.7 else _short(random)))
    if random.random() < 0.05:
        put(14, short(_short(random)))
    put(13, long(fields))
    put(12, bytes((random.choice((1, 2)),)))
    if random.random() < 0.3:
        put(11, bytes((random.choice((0, 9, 10, 255)),)))
    for bit in (10, 9):
        if random.random() < 0.3:
            put(bit, short(_short(random)))
    if random.random() < 0.1:
        put(8, short(b"4294967295"))
    if random.random() < 0.5:
        put(7, short(_short(random)[: 255 - len(token)] + token.encode()))
    if random.random() < 0.3:
        put(6, struct.pack(">Q", random.choice((*_EDGES["Q"], int(time.time())))))
    if random.random() < 0.3:
        put(5, short(_short(random)))
    if random.random() < 0.1:
        put(4, short(b"guest"))
    for bit in (3, 2):
        if random.random() < 0.3:
            put(bit, short(_short(random)))
    if random.random() < 0.05:
        flags |= 2
    return struct.pack(">H", flags) + b"".join(pieces)


#: 200 bytes that are no UTF-8.
_NOISE = b"\xff\xfe\x80" * 66 + b"\xc3("

_JOB = text(b"mixed.hostile")
_LAST_INSTANT = struct.pack(">Q", 2**63)
_INSTANT = b"T" + _LAST_INSTANT


def _named(job: bytes = _JOB, **more: bytes) -> bytes:
    """Headers that name the job, and others."""
    return table_of({b"job-class": job} | {name.encode(): value for name, value in more.items()})


def _headers(**more: bytes) -> bytes:
    return properties(headers=_named(**more), delivery_mode=b"\2")


def _property(name: str, value: bytes) -> bytes:
    return properties(headers=_named(), **{name: value})


def _array(*values: bytes) -> bytes:
    return b"A" + long(b"".join(values))


#: Jobs of tests/programs/mixed.py and hostile.py, by what is wrong with each: properties as they go over the wire.
MESSAGES: dict[str, bytes] = {
    "tables nested 450 deep": _headers(deep=nested(450)),
    "tables nested 600 deep": _headers(deep=nested(600)),
    "lists nested 600 deep": _headers(deep=nested(600, b"A")),
    "tables nested 600 deep in a known header": _headers(**{"attempts-log": nested(600)}),
    "instant 2^63 in a header": _headers(when=_INSTANT),
    "instant 2^64 - 1 in a list": _headers(when=_array(_INSTANT, b"T" + b"\xff" * 8)),
    "instant 2^63 as the property": _property("timestamp", _LAST_INSTANT),
    "header names not UTF-8": properties(
        headers=table_of({b"job-class": _JOB, _NOISE: text(b"x"), b"\xfe" * 255: b"V"})
    ),
    "header value not UTF-8": _headers(note=text(_NOISE)),
    **{
        f"{name} not UTF-8": _property(name, short(_NOISE))
        for name in (
            *("correlation_id", "type", "app_id", "reply_to"),
            *("content_type", "content_encoding", "message_id"),
        )
    },
    "NUL in the job's name": properties(headers=_named(text(b"mixed.\0hostile"))),
    "job's name not UTF-8": properties(headers=_named(text(_NOISE))),
    "job's name of 60 kB": properties(headers=_named(text(b"j" * 60_000))),
    "job's name of 130,900 bytes": properties(headers=_named(text(b"j" * 130_900))),
    "job's name is a table": properties(headers=_named(b"F" + table(x=text(b"y")))),
    "no job": properties(headers=table()),
    "no headers": properties(),
    "header id is a table": _headers(id=b"F" + table(x=text(b"y"))),
    "header id of 300 bytes": _headers(id=text(b"i" * 300)),
    "run-at is text": _headers(**{"run-at": text(b"tomorrow")}),
    "retries is an instant": _headers(retries=_INSTANT),
    "headers of 120 kB": _headers(a=text(b"x" * 60_000), b=text(b"y" * 60_000)),
    "bytes of 128 kB": _headers(large=b"x" + long(b"\xff" * 128_000)),
    "names of 250 bytes": _headers(**{chr(97 + n) * 250: b"t\1" for n in range(20)}),
    "exception class of 300,000 characters": properties(headers=_named(text(b"mixed.monster"))),
}
