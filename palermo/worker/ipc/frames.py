"""The frames between parent, template and slots: four bytes of length, big-endian, and as many bytes.

The parent sends pickled tuples, which its children can trust. Processes that run user code send SUCCESS or a JSON
object, and the parent never unpickles what they send. Anything else is an InvalidFrame, and the parent treats the
process that sent it as crashed.

To a slot goes the message of a job, with only the fields that running it needs. Back come the job's progress and log
lines, its result, and the changes that it left in its process; all that is checked when it is unpacked.
"""

import json
import pickle
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from msgspec import Struct

from palermo.core.failure import Failure
from palermo.core.lifecycle import (
    MAX_RESULT,
    BatchResult,
    Cancelled,
    Dropped,
    Interrupted,
    Raised,
    Result,
    Retrying,
    StoredResult,
    Succeeded,
)
from palermo.core.message import OPTION_FIELDS, Message
from palermo.core.times import is_delay
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


#: The fields that every frame has of its message, in this order.
_USUAL = ("id", "queue", "job", "body", "content_type", "created_at", "preview")
_usual = attrgetter(*_USUAL)

#: The other fields that running it may need, besides its unknown headers and its companions. They are sent by name, if
#: they are set.
_RARE = (
    "content_encoding",
    "arguments",
    "retries",
    "policy_retries",
    "defect",
    "expires_at",
    "retrying_since",
    *OPTION_FIELDS.values(),
)

_rare = attrgetter("extra", "companions", *_RARE)
_NOTHING_RARE = _rare(Message(id="", queue="", job=""))


def fields_of(message: Message) -> tuple[Any, ...]:
    """What a frame to a slot tells of a message: the fields that running it needs."""
    return *_usual(message), None if _rare(message) == _NOTHING_RARE else _rare_fields(message)


def _rare_fields(message: Message) -> dict[str, Any]:
    found = {name: value for name in _RARE if (value := getattr(message, name)) not in (None, "")}
    if message.extra:
        found["extra"] = dict(message.extra)
    if message.companions:
        found["companions"] = tuple(map(fields_of, message.companions))
    return found


def unpack_message(sent: tuple[Any, ...]) -> Message:
    """The message whose fields `fields_of` gave, without the fields that only the broker needs."""
    id, queue, job, body, content_type, created_at, preview, rare = sent
    found = {
        "id": id,
        "queue": queue,
        "job": job,
        "body": body,
        "content_type": content_type,
        "created_at": created_at,
        "preview": preview,
    }
    if rare:
        found |= rare
        if "companions" in rare:
            found["companions"] = tuple(map(unpack_message, rare["companions"]))
    return Message(**found)


#: The most characters of a description of changes: paths may be long.
_MAX_CHANGES = 2_000


def pack_changes(changes: str) -> bytes:
    """The frame that tells the parent which changes a job has left in its process."""
    return pack_reply({"changed": changes[:_MAX_CHANGES]})


def unpack_changes(reply: Mapping[str, Any]) -> str:
    """The changes that `pack_changes` packed; "" for another reply. It comes from a process that runs user code."""
    match reply:
        case {"changed": str(changes), **rest} if not rest and len(changes) <= _MAX_CHANGES:
            return changes
    return ""


def pack_result(result: Result | BatchResult, **more: Any) -> bytes:
    """The frame that tells the parent the result of a run, with the fields `more`."""
    match result:
        case Succeeded(skipped=False, value=None, refused="") if not more:
            return SUCCESS
        case BatchResult(results):
            return pack_reply({"batch": [result_to_plain(each) for each in results], **more})
        case _:
            return pack_reply({**result_to_plain(result), **more})


def result_to_plain(result: Result) -> dict[str, Any]:
    """A result as values for JSON."""
    match result:
        case Succeeded(skipped, value, refused):
            kept = {} if value is None else {"result": value.to_plain()}
            return {"skipped": skipped, **kept, **({"refused": refused} if refused else {})}
        case Raised(failure):
            return {"failure": _failure_to_plain(failure)}
        case Retrying(failure, delay):
            return {"retry_in": delay, "because": None if failure is None else _failure_to_plain(failure)}
        case Dropped(reason):
            return {"dropped": reason}
        case Interrupted():
            return {"interrupted": True}
        case Cancelled():
            return {"cancelled": True}


def unpack_results(reply: Mapping[str, Any]) -> Result | BatchResult | None:
    """The result that `pack_result` wrote; None if the reply is no result."""
    match reply:
        case {"batch": list(parts)}:
            results = [unpack_result(part) for part in parts if isinstance(part, dict)]
            whole = tuple(
                each for each in results if each is not None and not isinstance(each, Interrupted | Cancelled)
            )
            return BatchResult(whole) if len(whole) == len(parts) else None
    return unpack_result(reply)


def unpack_result(reply: Mapping[str, Any]) -> Result | None:
    """The result that `result_to_plain` wrote; None if the reply is no result."""
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
            value = StoredResult.from_plain(plain)
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


def _failure_to_plain(failure: Failure) -> dict[str, Any]:
    return {name: getattr(failure, name) for name in Failure.__struct_fields__}


def _failure(values: Mapping[str, Any]) -> Failure | None:
    match values:
        case {"exception_class": str(), "message": str(), "stack_trace": str(), "failed_at": int()}:
            return Failure(**{name: values[name] for name in Failure.__struct_fields__})
    return None


#: The most lines of a run, the most characters of a line, and the most characters of a progress text.
MAX_LINES, MAX_LINE, MAX_TEXT = 1_000, 1_000, 200

#: The line that stands in place of the first line above MAX_LINES.
NO_MORE = f"more than {MAX_LINES:,} lines, the rest is not kept"


class Report(Struct, frozen=True):
    """The progress and the log lines that a slot reported of its job at one time."""

    #: From 0 to 1; None if the job gave only the text.
    fraction: float | None = None
    text: str = ""
    #: Whether the report has a progress at all.
    moved: bool = False
    lines: tuple[str, ...] = ()


def unpack_report(reply: Mapping[str, Any]) -> Report | None:
    """The report that `Reporter` sent; None if the reply is no report. It comes from a process that runs user code."""
    match reply:
        case {"report": {"lines": list(lines), "progress": None}} if _are_lines(lines):
            return Report(lines=tuple(lines))
        case {"report": {"lines": list(lines), "progress": [None | float() | int() as fraction, str(text)]}} if (
            _are_lines(lines) and (fraction is None or 0 <= fraction <= 1) and len(text) <= MAX_TEXT
        ):
            return Report(fraction, text, moved=True, lines=tuple(lines))
    return None


def _are_lines(lines: list[Any]) -> bool:
    return len(lines) <= MAX_LINES + 1 and all(isinstance(line, str) and len(line) <= MAX_LINE for line in lines)
