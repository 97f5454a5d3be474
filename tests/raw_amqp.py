"""AMQP 0-9-1 as bytes: for a program that is not ours, and for messages that no client library would write or read."""

import socket
import struct
from contextlib import suppress
from typing import Self

import pika

CONFIRMED, REFUSED = "confirmed", "refused"

#: The AMQP properties in their order on the wire, each with its flag.
_FLAGS = {
    "content_type": 0x8000,
    "content_encoding": 0x4000,
    "headers": 0x2000,
    "delivery_mode": 0x1000,
    "priority": 0x0800,
    "correlation_id": 0x0400,
    "reply_to": 0x0200,
    "expiration": 0x0100,
    "message_id": 0x0080,
    "timestamp": 0x0040,
    "type": 0x0020,
    "user_id": 0x0010,
    "app_id": 0x0008,
}

_METHOD, _HEADER, _BODY, _END = 1, 2, 3, b"\xce"

FRAME_MAX = 131_072
_ROOM = FRAME_MAX - 8


def short(value: bytes) -> bytes:
    """A short string, of at most 255 bytes."""
    return bytes([len(value)]) + value


def long(value: bytes) -> bytes:
    """A long string, or the inside of a table or an array with its length."""
    return struct.pack(">I", len(value)) + value


def text(value: bytes) -> bytes:
    """A field value: a long string."""
    return b"S" + long(value)


def nested(depth: int, kind: bytes = b"F") -> bytes:
    """A field value: so many tables, or with the kind `A` lists, within each other."""
    value = b"I\0\0\0\1"
    for _ in range(depth):
        value = kind + long(short(b"x") + value if kind == b"F" else value)
    return value


def table(**fields: bytes) -> bytes:
    """A table of field values by name."""
    return table_of({name.encode(): value for name, value in fields.items()})


def table_of(fields: dict[bytes, bytes]) -> bytes:
    return long(b"".join(short(name) + value for name, value in fields.items()))


def properties(**given: bytes) -> bytes:
    """Flags and values; each is given as its bytes on the wire."""
    assert given.keys() <= _FLAGS.keys()
    flags = sum(flag for name, flag in _FLAGS.items() if name in given)
    return struct.pack(">H", flags) + b"".join(given[name] for name in _FLAGS if name in given)


class RawClient:
    """One connection with one channel on which publishes are confirmed. What goes wrong with it is an OSError."""

    def __init__(self, url: str, *, timeout: float = 10.0) -> None:
        self._parameters = pika.URLParameters(url)
        self._timeout = timeout
        self.connect()

    def connect(self) -> None:
        """Open the connection; once more after it was lost."""
        self._waiting = b""
        self._socket = socket.create_connection((self._parameters.host, self._parameters.port), self._timeout)
        self._file = self._socket.makefile("rb")
        try:
            self._open()
        except OSError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection without a farewell; what was got and not acknowledged goes back."""
        with suppress(OSError):
            self._file.close()
            self._socket.close()

    def publish(self, exchange: str, queue: str, properties: bytes, body: bytes) -> str:
        """Publish one message, mandatory, and say what the broker answered."""
        self._method(1, 60, 40, b"\0\0" + short(exchange.encode()) + short(queue.encode()) + b"\1", flush=False)
        self._frame(_HEADER, 1, struct.pack(">HHQ", 60, 0, len(body)) + properties, flush=not body)
        for start in range(0, len(body), _ROOM):
            self._frame(_BODY, 1, body[start : start + _ROOM], flush=start + _ROOM >= len(body))
        outcome = CONFIRMED
        while True:
            match self._next_method():
                case (60, 50, _):
                    outcome = REFUSED
                    self._content()
                case (60, 80, _):
                    return outcome
                case (60, 120, _):
                    return REFUSED
                case other:
                    raise ConnectionError(f"the broker says {other}")

    def messages(self, queue: str) -> list[tuple[bytes, bytes]]:
        """The properties and bodies of all messages that wait in a queue, which are there again afterwards."""
        found: list[tuple[bytes, bytes]] = []
        while (got := self._get(queue)) is not None:
            found.append(got)
        # A get is answered when all that came before it is done.
        self._give_back()
        self._get(queue)
        self._give_back()
        return found

    def consume_alone(self, queue: str) -> None:
        """Consume from a queue exclusively, with a prefetch of one. Raises ConnectionError while it has a consumer."""
        self._ask(60, 10, struct.pack(">IHB", 0, 1, 0))
        self._ask(60, 20, b"\0\0" + short(queue.encode()) + short(b"") + b"\4" + table())

    def _open(self) -> None:
        self._socket.sendall(b"AMQP\x00\x00\x09\x01")
        self._expect(10, 10)
        credentials = self._parameters.credentials
        response = f"\0{credentials.username}\0{credentials.password}".encode()
        self._method(0, 10, 11, long(b"") + short(b"PLAIN") + long(response) + short(b"en_US"))
        most_channels = self._expect(10, 30)[:2]
        self._method(0, 10, 31, most_channels + struct.pack(">IH", FRAME_MAX, 0))
        self._method(0, 10, 40, short(self._parameters.virtual_host.encode()) + short(b"") + b"\0")
        self._expect(10, 41)
        self._ask(20, 10, short(b""))
        self._ask(85, 10, b"\0")

    def _ask(self, class_id: int, method_id: int, arguments: bytes) -> None:
        """Send a method whose answer has the next number."""
        self._method(1, class_id, method_id, arguments)
        self._expect(class_id, method_id + 1)

    def _get(self, queue: str) -> tuple[bytes, bytes] | None:
        self._method(1, 60, 70, b"\0\0" + short(queue.encode()) + b"\0")
        match self._next_method():
            case (60, 71, _):
                return self._content()
            case (60, 72, _):
                return None
            case other:
                raise ConnectionError(f"the broker says {other}")

    def _give_back(self) -> None:
        """All that this connection holds, to its places in the queue."""
        self._method(1, 60, 120, b"\0" * 8 + b"\3")

    def _content(self) -> tuple[bytes, bytes]:
        """The properties and the body that follow a method."""
        header, body = self._read_frame()[2], b""
        while len(body) < int.from_bytes(header[4:12], "big"):
            body += self._read_frame()[2]
        return header[12:], body

    def _expect(self, class_id: int, method_id: int) -> bytes:
        found = self._next_method()
        if found[:2] != (class_id, method_id):
            raise ConnectionError(f"the broker says {found}")
        return found[2]

    def _next_method(self) -> tuple[int, int, bytes]:
        while True:
            kind, _, payload = self._read_frame()
            if kind == _METHOD:
                return (*struct.unpack(">HH", payload[:4]), payload[4:])

    def _read_frame(self) -> tuple[int, int, bytes]:
        kind, channel, size = struct.unpack(">BHI", self._read(7))
        payload = self._read(size + 1)[:-1]
        return kind, channel, payload

    def _read(self, size: int) -> bytes:
        got = self._file.read(size)
        if len(got) < size:
            raise ConnectionError("the broker hung up")
        return got

    def _method(self, channel: int, class_id: int, method_id: int, arguments: bytes, *, flush: bool = True) -> None:
        self._frame(_METHOD, channel, struct.pack(">HH", class_id, method_id) + arguments, flush=flush)

    def _frame(self, kind: int, channel: int, payload: bytes, *, flush: bool) -> None:
        self._waiting += struct.pack(">BHI", kind, channel, len(payload)) + payload + _END
        if flush:
            waiting, self._waiting = self._waiting, b""
            self._socket.sendall(waiting)
