"""Header values as JSON text, written and read without loss by the rules of palermo.core.header_json."""

import json
from collections.abc import Mapping

from palermo.core.header_json import TAG, to_json, untagged
from palermo.core.message import HeaderValue
from palermo.errors import EncodeError, StoreInvalid

#: One encoder for all calls: json.dumps makes a new one for each call with other options than its defaults.
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def dumps(values: Mapping[str, HeaderValue]) -> str:
    """The values as ASCII text. Raises EncodeError, which names the path to the value that cannot be written."""
    try:
        return _ENCODER.encode(to_json(values))
    except RecursionError:
        raise EncodeError("the headers are nested too deeply, or contain themselves.") from None


def loads(text: str) -> dict[str, HeaderValue]:
    """The values that `dumps` wrote."""
    try:
        values = json.loads(text, object_hook=untagged if f'"{TAG}"' in text else None)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise StoreInvalid(
            f"the headers of a message cannot be read: {error}. Was the file changed by hand?"
        ) from error
    if not isinstance(values, dict):
        raise StoreInvalid("the headers of a message are not an object. Was the file changed by hand?")
    return values
