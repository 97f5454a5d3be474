"""The forms of the replies of leaders: a reply as JSON on the wire, in one part or in several, and back."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from palermo.brokers.rabbitmq.amqp.rpc import Part
from palermo.core.message import Message
from palermo.core.unique_keys import message_to_plain

Plain = Mapping[str, Any]

#: Rows in one part of a reply.
_ROWS = 1_000


def to_plain_json(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, list):
        return [to_plain_json(one) for one in value]
    if isinstance(value, Message):
        return message_to_plain(value)
    return value.to_plain() if hasattr(value, "to_plain") else value


class Reply(Struct, frozen=True):
    """The form of a reply on the wire: `write` makes its parts, of which the last has values, and `read` reads them."""

    write: Callable[[Any], list[Part]]
    read: Callable[[Sequence[Part]], Any]


def reply_of_values(write: Callable[[Any], dict[str, Any]], read: Callable[[Plain], Any]) -> Reply:
    """A reply of one part."""
    return Reply(lambda reply: [Part(write(reply))], lambda parts: read(parts[-1].values or {}))


def reply_of_one(name: str, read: Callable[[Any], Any], write: Callable[[Any], Any] = to_plain_json) -> Reply:
    """A reply of one value."""
    return reply_of_values(lambda reply: {name: write(reply)}, lambda plain: read(plain[name]))


def reply_of_rows(name: str, read: Callable[[Any], Any], write: Callable[[Any], Any] = to_plain_json) -> Reply:
    """A reply that is a list, in parts of some rows."""

    def to_parts(reply: list[Any]) -> list[Part]:
        rows = [write(row) for row in reply]
        return [*(Part({name: rows[start : start + _ROWS]}) for start in range(0, len(rows), _ROWS)), Part({})]

    return Reply(to_parts, lambda parts: [read(row) for part in parts for row in (part.values or {}).get(name, ())])
