"""The frames between parent, template and slots: four bytes of length, big-endian, and as many bytes.

The parent sends pickled tuples, which its children can trust. Processes that run user code send SUCCESS or a JSON
object, and the parent never unpickles what they send. Anything else is an InvalidFrame, and the parent treats the
process that sent it as crashed.
"""

import json
import pickle
from typing import Any

from palermo.core.lifecycle import MAX_RESULT
from palermo.errors import PalermoError

HEADER = 4

#: The whole frame that a slot sends for a job that returned: this common case costs no parsing.
SUCCESS = b"\x00\x00\x00\x01+"

#: The most bytes of a reply: a result, and what JSON adds to it. A failure is 18 kB, its JSON at most six times that.
MAX_REPLY = 8 * MAX_RESULT


class InvalidFrame(PalermoError):
    """Bytes that are no frame, or a frame without a meaning."""


def pack(value: tuple[Any, ...]) -> bytes:
    """A frame from the parent."""
    payload = pickle.dumps(value, 5)
    return len(payload).to_bytes(HEADER, "big") + payload


def load(payload: bytes) -> tuple[Any, ...]:
    """The tuple that `pack` packed. Only for children: nobody but their parent writes to them."""
    return pickle.loads(payload)  # type: ignore[no-any-return]


def pack_reply(value: dict[str, Any]) -> bytes:
    """A frame to the parent."""
    payload = json.dumps(value).encode()
    return len(payload).to_bytes(HEADER, "big") + payload


def unpack_reply(payload: bytes) -> dict[str, Any]:
    """The object that pack_reply packed. Raises InvalidFrame."""
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        raise InvalidFrame(f"{payload[:40]!r} is not JSON") from None
    if not isinstance(value, dict):
        raise InvalidFrame(f"{payload[:40]!r} is not a JSON object")
    return value


class FrameBuffer:
    """Cuts a stream of bytes into the payloads of its frames."""

    __slots__ = ("_data", "_limit", "_wanted")

    def __init__(self, limit: int | None = None) -> None:
        self._data = bytearray()
        #: The bytes that the first incomplete frame will have, as far as its header is known.
        self._wanted = HEADER
        self._limit = limit

    @property
    def empty(self) -> bool:
        """Whether every byte so far belonged to a whole frame."""
        return not self._data

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads of the frames that these bytes complete. Raises InvalidFrame for a frame above the limit."""
        if self._data:
            self._data += data
            if len(self._data) < self._wanted:
                return []
            data, self._data = bytes(self._data), bytearray()
        found: list[bytes] = []
        start, length = 0, len(data)
        self._wanted = HEADER
        while length - start >= HEADER:
            size = int.from_bytes(data[start : start + HEADER], "big")
            if self._limit is not None and size > self._limit:
                raise InvalidFrame(f"a frame of {size} bytes")
            end = start + HEADER + size
            if length < end:
                self._wanted = HEADER + size
                break
            found.append(data[start + HEADER : end])
            start = end
        if start < length:
            self._data += data[start:]
        return found
