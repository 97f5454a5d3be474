"""Frames between a worker's parent and its children: a length of four bytes (big-endian), followed by that many bytes.

The parent sends pickled tuples, which its children can trust. Processes that run user code send SUCCESS or a `FromSlot`
in msgpack, which is validated as it is decoded. The parent never unpickles anything from them. An InvalidFrame makes
the parent treat the sending process as crashed.

A frame to a slot contains only the message fields needed to run the job.
"""

import json
import pickle
from operator import attrgetter
from typing import Annotated, Any

from msgspec import DecodeError, Meta, Struct, ValidationError, msgpack, to_builtins

from palermo.core.failure import printable
from palermo.core.lifecycle import MAX_RESULT, RunResult
from palermo.core.message import MAX_SAVED, OPTION_FIELDS, Message
from palermo.core.workflow import MAX_ADDED
from palermo.errors import PalermoError

HEADER = 4

#: The complete frame for a successful job. This common case needs no parsing.
SUCCESS = b"\x00\x00\x00\x01+"

#: Maximum size of a reply in bytes: the results of a job or batch, and workflow steps. A failure has at most 70 kB.
MAX_REPLY = 8 * MAX_RESULT + MAX_ADDED


class InvalidFrame(PalermoError):
    """An unknown frame, or bytes that aren't a frame."""


def pack(value: tuple[Any, ...]) -> bytes:
    payload = pickle.dumps(value, 5)
    return len(payload).to_bytes(HEADER, "big") + payload


def load(payload: bytes) -> tuple[Any, ...]:
    """Return the tuple that `pack` packed. Only for children, which trust their parent."""
    return pickle.loads(payload)  # type: ignore[no-any-return]


def pack_reply(value: dict[str, Any]) -> bytes:
    payload = json.dumps(value).encode()
    return len(payload).to_bytes(HEADER, "big") + payload


class FrameBuffer:
    """Splits a byte stream into the payloads of its frames."""

    __slots__ = ("_data", "_limit", "_wanted")

    def __init__(self, limit: int | None = None) -> None:
        self._data = bytearray()
        #: Length of the first incomplete frame, or of its header until that is complete.
        self._wanted = HEADER
        self._limit = limit

    @property
    def empty(self) -> bool:
        """Whether all bytes so far belong to complete frames."""
        return not self._data

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payloads of the frames that these bytes complete. Raises InvalidFrame for a frame above the
        limit.
        """
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


#: The message fields in every frame, in order.
_USUAL = ("id", "queue", "job", "body", "content_type", "created_at", "preview")
_usual = attrgetter(*_USUAL)

#: Other fields that a run may need, sent by name if set, apart from unknown headers and companions.
_RARE = (
    "content_encoding",
    "arguments",
    "retries",
    "policy_retries",
    "defect",
    "expires_at",
    "retrying_since",
    "saved",
    *OPTION_FIELDS.values(),
)

_rare = attrgetter("extra", "companions", *_RARE)
_NOTHING_RARE = _rare(Message(id="", queue="", job=""))


def fields_of(message: Message) -> tuple[Any, ...]:
    return *_usual(message), None if _rare(message) == _NOTHING_RARE else _rare_fields(message)


def _rare_fields(message: Message) -> dict[str, Any]:
    found = {name: value for name in _RARE if (value := getattr(message, name)) not in (None, "")}
    if message.extra:
        found["extra"] = dict(message.extra)
    if message.companions:
        found["companions"] = tuple(map(fields_of, message.companions))
    return found


def unpack_message(sent: tuple[Any, ...]) -> Message:
    """Return the message with the fields from `fields_of`, which lacks fields that only the broker needs."""
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


#: Limits per run: number of lines, characters per line, and characters of a progress text.
MAX_LINES, MAX_LINE, MAX_TEXT = 1_000, 1_000, 200

#: Replaces the first line above MAX_LINES.
NO_MORE = f"more than {MAX_LINES:,} lines, the rest is not kept"

#: Maximum length of a description of changes, which may contain long paths, and of a stack, in characters.
_MAX_CHANGES, MAX_STACK = 2_000, 100_000


class Report(Struct, frozen=True):
    """The progress, log lines and saved state reported by a slot's job."""

    #: From 0 to 1; None if only a text was reported.
    fraction: Annotated[float, Meta(ge=0, le=1)] | None = None
    text: Annotated[str, Meta(max_length=MAX_TEXT)] = ""
    #: Whether the report contains progress.
    moved: bool = False
    lines: Annotated[tuple[Annotated[str, Meta(max_length=MAX_LINE)], ...], Meta(max_length=MAX_LINES + 1)] = ()
    #: None if the job has saved nothing since the last report.
    saved: Annotated[str, Meta(max_length=MAX_SAVED)] | None = None


class Ready(Struct, frozen=True, tag=True):
    """The process is ready for jobs."""


class Stack(Struct, frozen=True, tag=True):
    """The stack of a slot's job; "" if the slot is idle."""

    slot: int
    text: Annotated[str, Meta(max_length=MAX_STACK)]


class Reported(Struct, frozen=True, tag=True):
    """A slot's job reports progress, log lines or saved state."""

    slot: int
    report: Report


class Ended(Struct, frozen=True, tag=True):
    """The job of a slot has ended."""

    slot: int
    result: RunResult


class Changed(Struct, frozen=True, tag=True):
    """Jobs have changed the process in the described way."""

    changes: Annotated[str, Meta(max_length=_MAX_CHANGES)]


#: The frames that a process with slots may send.
FromSlot = Ready | Stack | Reported | Ended | Changed

_encoder = msgpack.Encoder()
_decoder: msgpack.Decoder[FromSlot] = msgpack.Decoder(FromSlot)


def pack_answer(answer: FromSlot) -> bytes:
    """Return a frame from a slot to the parent."""
    try:
        payload = _encoder.encode(answer)
    except UnicodeEncodeError:  # a job's text may contain lone surrogates
        payload = _encoder.encode(_printable(to_builtins(answer, builtin_types=(bytes,))))
    return len(payload).to_bytes(HEADER, "big") + payload


def _printable(value: Any) -> Any:
    match value:
        case str():
            return printable(value)
        case dict():
            return {name: _printable(each) for name, each in value.items()}
        case list() | tuple():
            return [_printable(each) for each in value]
    return value


def unpack_answer(payload: bytes) -> FromSlot:
    """Return the answer in a frame from a process that runs user code. Raises InvalidFrame."""
    try:
        return _decoder.decode(payload)
    except (DecodeError, ValidationError, RecursionError) as error:
        raise InvalidFrame(f"{payload[:40]!r}: {error}") from None


def changed(changes: str) -> bytes:
    """Return the frame that reports a job's changes to its process."""
    return pack_answer(Changed(changes[:_MAX_CHANGES]))
