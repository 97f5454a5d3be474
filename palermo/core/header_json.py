"""Header values as JSON, without loss.

JSON has text, numbers, booleans, None, lists and objects. All other values of an AMQP field table are written as
`{"$": kind, "v": …}`. A user's own object with a key "$" is written that way too, so that it can't be mistaken for a
tag.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from msgspec.structs import replace

from palermo.core.message import NO_HEADERS, HeaderValue, Message, Opaque, from_wire
from palermo.errors import EncodeError, StoreInvalid

TAG = "$"

#: Python refuses to parse or print a decimal number of more than 4,300 digits; hexadecimal has no such limit.
_WORD = 1 << 64

#: Types whose values are written unchanged.
_FLAT = frozenset({str, bool, float, type(None)})


def to_json(value: HeaderValue, path: str = "") -> Any:
    """The value as JSON values. Raises EncodeError, which names the path to the part that headers don't support."""
    match value:
        case None | bool() | str() | float():
            return value
        case int():
            return value if -_WORD < value < _WORD else _tagged("int", hex(value))
        case Mapping():
            for key in value:
                if not isinstance(key, str):
                    raise EncodeError(f"header {path or '(top)'} has a key {key!r} that is not a string.")
            plain = {
                key: item if type(item) in _FLAT else to_json(item, f"{path}[{key!r}]") for key, item in value.items()
            }
            return _tagged("dict", list(plain.items())) if TAG in plain else plain
        case list() | tuple():
            return [to_json(item, f"{path}[{position}]") for position, item in enumerate(value)]
        case Opaque():
            return _tagged("opaque", b64encode(value).decode())
        case bytes() | bytearray():
            return _tagged("bytes", b64encode(value).decode())
        case datetime():
            return _tagged("datetime", value.isoformat())
        case Decimal():
            return _tagged("decimal", str(value))
        case _:
            raise EncodeError(
                f"header {path} is of type {type(value).__name__}, which a header cannot hold. Pass it as an argument"
                " or as text."
            )


def _tagged(kind: str, value: Any) -> dict[str, Any]:
    return {TAG: kind, "v": value}


def from_json(value: Any) -> HeaderValue:
    """The inverse of `to_json`. Raises KeyError, TypeError or ValueError for an invalid tag."""
    match value:
        case dict():
            return untagged({key: from_json(item) for key, item in value.items()})
        case list():
            return [from_json(item) for item in value]
    return value


def untagged(found: dict[str, Any]) -> HeaderValue:
    """The value of a JSON object whose parts are already converted. Raises the errors of `from_json`."""
    match found.get(TAG):
        case None:
            return found
        case "dict":
            return dict(found["v"])
        case "opaque":
            return Opaque(b64decode(found["v"]))
        case "bytes":
            return b64decode(found["v"])
        case "datetime":
            return datetime.fromisoformat(found["v"])
        case "decimal":
            try:
                return Decimal(found["v"])
            except ArithmeticError:
                raise ValueError(f"{found['v']!r} is not a decimal number") from None
        case "int":
            return int(found["v"], 16)
        case kind:
            raise ValueError(f"unknown kind {kind!r}")


#: One encoder for all calls: json.dumps creates a new one for each call with non-default options.
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def dumps(values: Mapping[str, HeaderValue]) -> str:
    """The headers as ASCII text. Raises EncodeError, which names the path to the invalid value."""
    try:
        return _ENCODER.encode(to_json(values))
    except RecursionError:
        raise EncodeError("the headers are nested too deeply, or contain themselves.") from None


def loads(text: str) -> dict[str, HeaderValue]:
    """The inverse of `dumps`. Raises StoreInvalid."""
    try:
        values = json.loads(text, object_hook=untagged if f'"{TAG}"' in text else None)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise StoreInvalid(f"the headers of a message cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise StoreInvalid("the headers of a message are not an object")
    return values


#: The header with the unreadable text, and its maximum length.
UNREADABLE = "unreadable-headers"
_MOST_UNREADABLE = 4_000


def read(text: Any) -> tuple[dict[str, HeaderValue], str]:
    """Read what `dumps` wrote. Returns the headers, and "" or an error's description.

    Invalid text, which another program has written, becomes one header, UNREADABLE. Its job is delivered, and fails.
    """
    try:
        values = loads(text)
        if "\\u" in text:
            json.dumps(values, ensure_ascii=False, default=str).encode()  # lone surrogates can't be passed on
        return values, ""
    except StoreInvalid as error:
        wrong = str(error)
    except UnicodeEncodeError as error:
        wrong = f"the headers of a message cannot be read: {error}"
    shown = text.decode(errors="backslashreplace") if isinstance(text, bytes) else str(text)
    return {UNREADABLE: shown.encode(errors="backslashreplace").decode()[:_MOST_UNREADABLE]}, wrong


def message_with(headers: Any, properties: Any, **others: Any) -> Message:
    """Like `from_wire`, with headers and properties as JSON text. `defect` describes unreadable ones."""
    found, wrong = read(headers)
    more, also_wrong = read(properties) if properties else (NO_HEADERS, "")
    message = from_wire(headers=found, properties=NO_HEADERS if also_wrong else more, **others)
    if wrong or also_wrong:
        return replace(message, defect="; ".join(filter(None, (wrong, also_wrong, message.defect))))
    return message
