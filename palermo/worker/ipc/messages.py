"""Packs messages of jobs into frames for a slot: only the fields that running the job needs."""

from dataclasses import fields
from operator import attrgetter
from typing import Any

from palermo.core.message import NO_HEADERS, Message, make_message
from palermo.worker.ipc.frames import pack

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
    "timeout",
    "expires_at",
    "max_retries",
    "retrying_since",
    "keep_result",
    "lock_for",
    "tenant",
)

#: A message whose set fields are all among these, and that has no unknown headers, needs only the usual part.
_NOTHING_RARE = frozenset(one.name for one in fields(Message)).difference(_RARE, ["companions"])


def pack_message(kind: str, message: Message, *more: Any) -> bytes:
    """A frame that hands a message to a slot, with the fields that running it needs."""
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
    """The message that pack_message packed, without the fields that only the broker needs."""
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
    return make_message(found)
