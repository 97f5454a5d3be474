"""The frames between parent, template and slots: four bytes of length, big-endian, and as many bytes.

What the parent writes is a pickled tuple, since nothing else writes there. What comes back
from processes that run user code is never unpickled: SUCCESS, or a JSON object. Anything
else is Garbage, and the process that sent it is treated as crashed.
"""

import asyncio
import json
import pickle
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any, cast

from palermo.core.failure import Failure
from palermo.core.lifecycle import Batched, Cancelled, Dropped, Interrupted, Raised, Result, Retrying, Succeeded
from palermo.core.message import NO_HEADERS, Message, made
from palermo.core.outcome import MAX_RESULT, Value
from palermo.core.retry import is_delay
from palermo.errors import PalermoError

HEADER = 4

#: The whole frame a slot sends for a job that returned: the common case costs no parsing.
SUCCESS = b"\x00\x00\x00\x01+"

#: The most a slot may send: a result, and what JSON adds to it. A failure is 18 kB and its JSON at most six times that.
MAX_REPLY = 8 * MAX_RESULT

_READ = 65_536

#: What BlockingPipe.read gives for a frame that has not come in time.
LATE: tuple[Any, ...] = ("late",)

#: How the kernel takes a duration: seconds and microseconds.
_TIMEVAL = struct.Struct("@ll")

#: What every frame has of its message, in this order.
_USUAL = ("id", "queue", "job", "body", "content_type", "created_at", "preview")
_usual = attrgetter(*_USUAL)

#: What else running it may need, besides the headers that Palermo does not know and its companions; sent by name where
#: it is there.
_RARE = (
    "content_encoding",
    "arguments",
    "retries",
    "policy_retries",
    "defect",
    "timeout",
    "expires_at",
    "max_retries",
    "retrying_since",
    "keep_result",
    "lock_for",
    "tenant",
)

#: A message that was given no more than this, and has none of those headers, is all in the usual part.
_NOTHING_RARE = frozenset(one.name for one in fields(Message)).difference(_RARE, ["companions"])


class Garbage(PalermoError):
    """Bytes that are no frame, or a frame that means nothing."""


def pack(value: tuple[Any, ...]) -> bytes:
    """A frame from the parent."""
    payload = pickle.dumps(value, 5)
    return len(payload).to_bytes(HEADER, "big") + payload


def pack_message(kind: str, message: Message, *more: Any) -> bytes:
    """A frame that hands a message to a slot: what running it needs, as plain values."""
    return pack((kind, _fields(message), *more))


def _fields(message: Message) -> tuple[Any, ...]:
    plain = not message.extra and _NOTHING_RARE.issuperset(vars(message))
    return *_usual(message), None if plain else _rare(message)


def _rare(message: Message) -> dict[str, Any]:
    found = {name: value for name in _RARE if (value := getattr(message, name)) not in (None, "")}
    if message.extra:
        found["extra"] = dict(message.extra)
    if message.companions:
        found["companions"] = tuple(map(_fields, message.companions))
    return found


def unpack_message(sent: tuple[Any, ...]) -> Message:
    """The message that pack_message packed, without what only the broker needs."""
    id, queue, job, body, content_type, created_at, preview, rare = sent
    found = {
        "id": id,
        "queue": queue,
        "job": job,
        "body": body,
        "content_type": content_type,
        "created_at": created_at,
        "preview": preview,
        "extra": NO_HEADERS,
        "properties": NO_HEADERS,
    }
    if rare:
        found |= rare
        if "companions" in rare:
            found["companions"] = tuple(map(unpack_message, rare["companions"]))
    return made(found)


def pack_reply(value: dict[str, Any]) -> bytes:
    """A frame to the parent."""
    payload = json.dumps(value).encode()
    return len(payload).to_bytes(HEADER, "big") + payload


def unpack_reply(payload: bytes) -> dict[str, Any]:
    """What pack_reply packed. Raises Garbage."""
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        raise Garbage(f"{payload[:40]!r} is not JSON") from None
    if not isinstance(value, dict):
        raise Garbage(f"{payload[:40]!r} is not a JSON object")
    return value


def pack_result(result: Result | Batched, **more: Any) -> bytes:
    """The frame that tells the parent how a job went, with `more` beside it."""
    match result:
        case Succeeded(skipped=False, value=None, refused="") if not more:
            return SUCCESS
        case Batched(results):
            return pack_reply({"batch": [plain(each) for each in results], **more})
        case _:
            return pack_reply({**plain(result), **more})


def plain(result: Result) -> dict[str, Any]:
    """A result as JSON has it."""
    match result:
        case Succeeded(skipped, value, refused):
            kept = {} if value is None else {"result": value.to_plain()}
            return {"skipped": skipped, **kept, **({"refused": refused} if refused else {})}
        case Raised(failure):
            return {"failure": _plain(failure)}
        case Retrying(failure, delay):
            return {"retry_in": delay, "because": None if failure is None else _plain(failure)}
        case Dropped(reason):
            return {"dropped": reason}
        case Interrupted():
            return {"interrupted": True}
        case Cancelled():
            return {"cancelled": True}


def unpack_results(reply: Mapping[str, Any]) -> Result | Batched | None:
    """What `pack_result` wrote; None for what is no result."""
    match reply:
        case {"batch": list(parts)}:
            results = [unpack_result(part) for part in parts if isinstance(part, dict)]
            whole = tuple(
                each for each in results if each is not None and not isinstance(each, Interrupted | Cancelled)
            )
            return Batched(whole) if len(whole) == len(parts) else None
    return unpack_result(reply)


def unpack_result(reply: Mapping[str, Any]) -> Result | None:
    """What `plain` wrote; None for what is no result."""
    match reply:
        case {"failure": dict(values)} if failure := _failure(values):
            return Raised(failure)
        case {"retry_in": float() | int() as delay, "because": None} if is_delay(delay):
            return Retrying(None, float(delay))
        case {"retry_in": float() | int() as delay, "because": dict(values)} if is_delay(delay):
            failure = _failure(values)
            return None if failure is None else Retrying(failure, float(delay))
        case {"dropped": str(reason)}:
            return Dropped(reason)
        case {"skipped": bool(skipped), "result": dict(plain)}:
            value = Value.from_plain(plain)
            return None if value is None else Succeeded(skipped, value)
        case {"skipped": bool(skipped), "refused": str(refused)}:
            return Succeeded(skipped, refused=refused)
        case {"skipped": bool(skipped)}:
            return Succeeded(skipped)
        case {"interrupted": True}:
            return Interrupted()
        case {"cancelled": True}:
            return Cancelled()
    return None


def judged(answer: Result | Batched, failure: Failure) -> Result | Batched:
    """What becomes of a job that failed in this way, by the answer of the slot that was asked."""
    if isinstance(answer, Batched):
        return Batched(tuple(_judged(each, failure) for each in answer.results))
    return _judged(answer, failure)


def _judged(answer: Result, failure: Failure) -> Result:
    match answer:
        case Retrying(Failure(), delay):
            return Retrying(failure, delay)
        case Dropped():
            return answer
    return Raised(failure)


def _plain(failure: Failure) -> dict[str, Any]:
    return {name: getattr(failure, name) for name in Failure.__slots__}


def _failure(values: Mapping[str, Any]) -> Failure | None:
    match values:
        case {"exception_class": str(), "message": str(), "stack_trace": str(), "failed_at": int()}:
            return Failure(**{name: values[name] for name in Failure.__slots__})
    return None


class Frames:
    """Cuts a stream of bytes into the payloads of its frames."""

    __slots__ = ("_data", "_limit", "_wanted")

    def __init__(self, limit: int | None = None) -> None:
        self._data = bytearray()
        #: How many bytes the first frame has that is not whole, as far as its header says.
        self._wanted = HEADER
        self._limit = limit

    @property
    def empty(self) -> bool:
        """Whether every byte so far belonged to a whole frame."""
        return not self._data

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that these bytes complete. Raises Garbage for a frame above the limit."""
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
                raise Garbage(f"a frame of {size} bytes")
            end = start + HEADER + size
            if length < end:
                self._wanted = HEADER + size
                break
            found.append(data[start + HEADER : end])
            start = end
        if start < length:
            self._data += data[start:]
        return found


def load(payload: bytes) -> tuple[Any, ...]:
    """What `pack` packed; for children, since nobody but their parent writes to them."""
    return pickle.loads(payload)  # type: ignore[no-any-return]


class BlockingPipe:
    """A child's end: it has nothing to do but wait for the next frame."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._data = b""
        self._patience: float | None = None

    def fileno(self) -> int:
        """The descriptor, to wait for."""
        return self._socket.fileno()

    def read(self, within: float | None = None) -> tuple[Any, ...] | None:
        """The next frame from the parent, or None if the parent is gone.

        LATE if none has begun within so many seconds. Then the rest of one may take as long as it does.
        """
        data = self._data
        if not data:
            if within != self._patience:
                self._wait_for(within)
            try:
                data = self._socket.recv(_READ)
            except BlockingIOError:
                return LATE
        end = HEADER + int.from_bytes(data[:HEADER], "big")
        if len(data) < HEADER or len(data) < end:
            self._wait_for(None)
            return self._rest(data)
        self._data = data[end:]
        return pickle.loads(data[HEADER:end])  # type: ignore[no-any-return]

    def _rest(self, data: bytes) -> tuple[Any, ...] | None:
        while len(data) < HEADER:
            more = self._socket.recv(_READ) if data else b""
            if not more:
                return None
            data += more
        # A body of megabytes: read the rest into its place instead of gluing pieces together.
        whole = bytearray(HEADER + int.from_bytes(data[:HEADER], "big"))
        whole[: len(data)] = data
        view, filled = memoryview(whole), len(data)
        while filled < len(whole):
            count = self._socket.recv_into(view[filled:])
            if not count:
                return None
            filled += count
        self._data = b""
        return pickle.loads(view[HEADER:])  # type: ignore[no-any-return]

    def _wait_for(self, within: float | None) -> None:
        """Have the kernel end a wait after so many seconds: to ask it before each one costs a system call a job."""
        self._patience = within
        seconds = within or 0.0
        limit = _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1_000_000))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)

    def write(self, frame: bytes) -> None:
        """Send a whole frame."""
        self._socket.sendall(frame)


class SlotPipe(asyncio.Protocol):
    """The parent's end of a slot's pair. The transport buffers what the slot has not read yet."""

    def __init__(
        self,
        on_success: Callable[[bytes], None],
        on_reply: Callable[[dict[str, Any]], None],
        on_end: Callable[[str], None],
    ) -> None:
        self._on_success = on_success
        self._on_reply = on_reply
        self._on_end = on_end
        self._frames: Frames | None = None
        self._transport: asyncio.Transport
        self._why = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not an isinstance check: uvloop's is no subclass.
        self._transport = cast(asyncio.Transport, transport)

    def write(self, frame: bytes) -> None:
        """Send a whole frame; a pair that has ended says so by `on_end`, not here."""
        self._transport.write(frame)

    def data_received(self, data: bytes) -> None:
        if data == SUCCESS and self._frames is None:
            self._on_success(b"")
            return
        frames = self._frames or Frames(MAX_REPLY)
        try:
            for payload in frames.feed(data):
                if payload[:1] == b"+":
                    self._on_success(payload[1:])
                else:
                    self._on_reply(unpack_reply(payload))
        except Garbage as error:
            self.abort(f"sent garbage: {error}")
            return
        self._frames = None if frames.empty else frames

    def abort(self, why: str) -> None:
        """End the pair because of what the slot did."""
        self._why = why
        self._transport.abort()

    def close(self) -> None:
        """Tell the slot that there is nothing more to do."""
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._on_end(self._why)
