"""msgpack: smaller and quicker than JSON, with bytes and any dict keys of its own.

Python's other values travel as extension type 80, whose payload is the msgpack array
[kind, value, dotted name of a class or ""]. msgpack's own timestamp is read, as UTC.
"""

from collections.abc import Mapping
from functools import partial
from types import NoneType
from typing import Any, Final

from palermo.errors import DecodeError
from palermo.serializers.tags import MAX_DEPTH, Format, is_plain, restored, tagged, too_deep

#: The extension type of a tag: "P".
EXTENSION: Final = 80


def _wrap(kind: str, value: object, name: str) -> object:
    import msgpack

    return msgpack.ExtType(EXTENSION, _pack([kind, value, name]))


def _pack(value: object) -> bytes:
    import msgpack

    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


_SCALARS: Final = frozenset({str, int, float, bool, NoneType, bytes})

_FORMAT: Final = Format(
    name="msgpack",
    scalars=_SCALARS,
    keys=_SCALARS,
    least=-(2**63),
    most=2**64 - 1,
    finite=False,
    reserved="",
    wrap=_wrap,
)


class MsgpackSerializer:
    """msgpack with bin and str types apart; importing this module does not import msgpack."""

    name = "msgpack"
    media_type = "application/msgpack"
    safe = True

    def dumps(self, value: object) -> bytes:
        if is_plain(value, _FORMAT):
            try:
                return _pack(value)
            except (ValueError, OverflowError):  # half of a surrogate pair, or a number of more than 64 bits
                pass
        return _pack(tagged(value, _FORMAT))

    def loads(self, data: bytes, classes: Mapping[str, type]) -> object:
        try:
            value = _unpack(data, classes)
        except RecursionError as error:
            raise DecodeError(f"the body is nested more than {MAX_DEPTH} deep.") from error
        except (ValueError, TypeError, OverflowError) as error:  # TypeError: a list as the key of a map
            raise DecodeError(f"the body is not msgpack: {type(error).__name__}: {error}") from error
        if too_deep(value):
            raise DecodeError(f"the body is nested more than {MAX_DEPTH} deep.")
        return value


def _unpack(data: bytes, classes: Mapping[str, type]) -> Any:
    import msgpack

    # strict_map_key would refuse every key but text and bytes.
    return msgpack.unpackb(data, strict_map_key=False, timestamp=3, ext_hook=partial(_restored, classes=classes))


def _restored(code: int, data: bytes, *, classes: Mapping[str, type]) -> object:
    import msgpack

    if code != EXTENSION:
        return msgpack.ExtType(code, data)
    tag = _unpack(data, classes)
    if not isinstance(tag, list) or len(tag) != 3:
        raise DecodeError("the body has an extension of type 80 that is no tag of Palermo: [kind, value, class].")
    return restored(tag[0], tag[1], tag[2], classes)
