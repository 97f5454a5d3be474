"""Header values as JSON text, without loss.

JSON has text, numbers, booleans, None, lists and objects; the rest of what an AMQP field
table may hold is written as `{"$": kind, "v": …}`. An object of the user's own that has a
key "$" is written that way too, so nothing can be mistaken for a tag.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from palermo.core.message import HeaderValue
from palermo.errors import EncodeError, StoreInvalid

_TAG = "$"

#: Python refuses to read or write a decimal number of more than 4,300 digits; hexadecimal has no such limit.
_WORD = 1 << 64

#: One for all: json.dumps makes a new one for each call that is not its default.
_ENCODER = json.JSONEncoder(separators=(",", ":"))

#: Written as they are.
_FLAT = frozenset({str, bool, float, type(None)})


def dumps(values: Mapping[str, HeaderValue]) -> str:
    """The values as ASCII text. Raises EncodeError, naming the way to the value that cannot be written."""
    try:
        return _ENCODER.encode(_plain(values, ""))
    except RecursionError:
        raise EncodeError("the headers are nested too deeply, or contain themselves.") from None


def loads(text: str) -> dict[str, HeaderValue]:
    """The values that dumps wrote."""
    try:
        values = json.loads(text, object_hook=_untagged if f'"{_TAG}"' in text else None)
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
        raise StoreInvalid(
            f"the headers of a message cannot be read: {error}. Was the file changed by hand?"
        ) from error
    if not isinstance(values, dict):
        raise StoreInvalid("the headers of a message are not an object. Was the file changed by hand?")
    return values


def _plain(value: HeaderValue, path: str) -> Any:
    match value:
        case None | bool() | str() | float():
            return value
        case int():
            return value if -_WORD < value < _WORD else _tagged("int", hex(value))
        case Mapping():
            for key in value:
                if not isinstance(key, str):
                    raise EncodeError(f"header {path or '(top)'} has a key {key!r} that is not text.")
            plain = {
                key: item if type(item) in _FLAT else _plain(item, f"{path}[{key!r}]") for key, item in value.items()
            }
            return _tagged("dict", list(plain.items())) if _TAG in plain else plain
        case list() | tuple():
            return [_plain(item, f"{path}[{position}]") for position, item in enumerate(value)]
        case bytes() | bytearray():
            return _tagged("bytes", b64encode(value).decode())
        case datetime():
            return _tagged("datetime", value.isoformat())
        case Decimal():
            return _tagged("decimal", str(value))
        case _:
            raise EncodeError(
                f"header {path} is {type(value).__name__}, which no header can hold."
                " Put it into the arguments, or make it text."
            )


def _tagged(kind: str, value: Any) -> dict[str, Any]:
    return {_TAG: kind, "v": value}


def _untagged(found: dict[str, Any]) -> HeaderValue:
    match found.get(_TAG):
        case None:
            return found
        case "dict":
            return dict(found["v"])
        case "bytes":
            return b64decode(found["v"])
        case "datetime":
            return datetime.fromisoformat(found["v"])
        case "decimal":
            return Decimal(found["v"])
        case "int":
            return int(found["v"], 16)
        case kind:
            raise ValueError(f"unknown kind {kind!r}")
