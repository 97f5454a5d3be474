"""Convert values to JSON values and back, for a broker's store and for communication between processes.

Law: a value is written by the names of its fields, and validated when it is read; fields unknown to this version are
ignored. No class writes or reads its fields by hand.
"""

import base64
from collections.abc import Mapping
from typing import Any, Self, TypedDict

from msgspec import Struct, convert, to_builtins

from palermo.core.header_json import from_json, to_json
from palermo.core.message import NO_HEADERS, Message, from_wire, to_headers


class Plain(Struct, frozen=True):
    """A value that can be converted to JSON values."""

    def to_plain(self) -> Any:
        """The value as a JSON object, or as an array if the class is `array_like`."""
        return to_builtins(self)

    @classmethod
    def from_plain(cls, plain: Any) -> Self:
        """The inverse of `to_plain`. Raises one of palermo.contract.stored_records.UNREADABLE for invalid values."""
        return convert(plain, cls)


class PlainWithMessages(Plain, frozen=True):
    """A value with messages, which are written as their headers; empty fields are left out."""

    def to_plain(self) -> Any:
        # Fast path: RabbitMQ's leader reads and writes a key at each enqueue, and flat values need no conversion.
        fields = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return {
            name: one if one.__class__ in _FLAT else _written(one)
            for name, one in fields
            if one is not None and one != ()
        }

    @classmethod
    def from_plain(cls, plain: Any) -> Self:
        return convert(_with_messages(plain), cls)


#: Types that JSON has unchanged, and containers.
_FLAT, _NESTED = frozenset({str, int, float, bool}), frozenset({dict, list})


def _written(value: Any) -> Any:
    match value:
        case Message():
            return message_to_plain(value)
        case Plain():
            return value.to_plain()
        case tuple():
            return [_written(one) for one in value]
        case frozenset():
            return sorted(value)
        case _:
            return value


def _with_messages(plain: Any) -> Any:
    match plain:
        case {"headers": _, "body": _}:
            return message_from_plain(plain)
        case dict():
            return {name: _with_messages(one) if one.__class__ in _NESTED else one for name, one in plain.items()}
        case list():
            return [_with_messages(one) for one in plain]
        case _:
            return plain


class _Properties(TypedDict, total=False):
    """The AMQP properties that travel with a job."""

    priority: int
    timestamp: int
    correlation_id: str
    reply_to: str
    type: str
    app_id: str


def message_to_plain(message: Message) -> dict[str, Any]:
    """A message as JSON values."""
    plain = {
        "id": message.id,
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "headers": to_json(to_headers(message)),
        "body": base64.b64encode(message.body).decode(),
    }
    return {**plain, "properties": dict(message.properties)} if message.properties else plain


def message_from_plain(plain: Mapping[str, Any]) -> Message:
    """The inverse of `message_to_plain`. Raises an error of palermo.contract.stored_records.UNREADABLE."""
    id, content_type, content_encoding = convert(
        (plain["id"], plain["content_type"], plain["content_encoding"]), tuple[str, str, str]
    )
    return from_wire(
        message_id=id,
        content_type=content_type,
        content_encoding=content_encoding,
        headers=from_json(plain["headers"]) or NO_HEADERS,
        body=base64.b64decode(plain["body"]),
        taken_from=None,
        new_id=lambda: id,
        properties=convert(plain["properties"], _Properties) if "properties" in plain else NO_HEADERS,
    )
