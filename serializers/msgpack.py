"""The msgpack serializer: smaller and faster than JSON, with bytes and any type of dict keys.

Other Python types become maps, as in JSON, but marked by extension type 80 ("P") without a payload: that key has the
kind, and the keys "value" and "class" the rest. msgpack's own timestamp is read, as UTC.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import NoneType
from typing import Any, Final

from palermo.contract.serialization import FOR_DISPLAY
from palermo.errors import DecodeError
from palermo.serializers.tags import MAX_DEPTH, Format, display_map, is_plain, restored, tagged, too_deep

# The payload doesn't contain the value, as usual, because each level would need a nested unpacker with 1,024 places on
# the C stack: 200 levels were a segmentation fault.
EXTENSION: Final = 80

#: The marker key in bytes: ext 8, length 0, type 80.
_MARK: Final = b"\xc7\x00P"


def _wrap(kind: str, value: object, name: str) -> object:
    import msgpack

    mark = msgpack.ExtType(EXTENSION, b"")
    return {mark: kind, "class": name, "value": value} if name else {mark: kind, "value": value}


def _pack(value: object) -> bytes:
    import msgpack

    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


_SCALARS: Final[frozenset[type]] = frozenset({str, int, float, bool, NoneType, bytes})

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
    """msgpack with separate bin and str types. msgpack is imported on first use."""

    name = "msgpack"
    media_type = "application/msgpack"
    safe = True

    def dumps(self, value: object) -> bytes:
        if is_plain(value, _FORMAT):
            try:
                return _pack(value)
            except (ValueError, OverflowError):  # half of a surrogate pair, or an integer of more than 64 bits
                pass
        return _pack(tagged(value, _FORMAT))

    def loads(self, data: bytes, classes: Mapping[str, type]) -> object:
        import msgpack

        hook = partial(_restored, mark=msgpack.ExtType(EXTENSION, b""), classes=classes) if _MARK in data else None
        hooks = (
            {"object_pairs_hook": partial(_display_map, hook=hook)} if classes is FOR_DISPLAY else {"object_hook": hook}
        )
        try:
            # strict_map_key would reject all keys except text and bytes.
            value = msgpack.unpackb(data, strict_map_key=False, timestamp=3, **hooks)
        except RecursionError as error:
            raise DecodeError(f"the body is nested more than {MAX_DEPTH} levels deep.") from error
        except (ValueError, TypeError, OverflowError) as error:  # TypeError: a list as a key
            raise DecodeError(f"the body is not msgpack: {type(error).__name__}: {error}") from error
        if too_deep(value):
            raise DecodeError(f"the body is nested more than {MAX_DEPTH} levels deep.")
        return value


def _display_map(pairs: list[tuple[Any, Any]], *, hook: Callable[[dict[Any, Any]], object] | None) -> object:
    found = display_map(pairs)
    return hook(found) if hook is not None and isinstance(found, dict) else found


def _restored(found: dict[Any, Any], *, mark: object, classes: Mapping[str, type]) -> object:
    if mark not in found:
        return found
    if "value" not in found or not found.keys() <= {mark, "class", "value"}:
        raise DecodeError("the body contains a map that Palermo did not write. One of its keys has extension type 80.")
    return restored(found[mark], found["value"], found.get("class"), classes)
