"""Pack a job's arguments into one value to serialize, unpack them, and preview them for display.

docs/internals/wire.md, "Arguments", has the format.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from palermo.errors import ArgumentsInvalid, DecodeError

BOTH = "both"


def pack(args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[object, str]:
    """One value for all arguments, and its `arguments` header.

    The value is a list of positional arguments, a dict of named ones, or a dict of both if a call has both.
    """
    if args and kwargs:
        return {"args": list(args), "kwargs": dict(kwargs)}, BOTH
    if kwargs:
        return dict(kwargs), ""
    return list(args), ""


def check_arguments(args: object, kwargs: object) -> None:
    """Raise ArgumentsInvalid unless these are a sequence of arguments and a mapping by name.

    A string is refused although it is a sequence: its characters would become the arguments.
    """
    if not isinstance(args, Sequence) or isinstance(args, (str, bytes, bytearray)):
        raise ArgumentsInvalid(f'"args" is {repr(args)[:80]}, of type {type(args).__name__}; give a list or a tuple.')
    if not isinstance(kwargs, Mapping):
        raise ArgumentsInvalid(f'"kwargs" is {repr(kwargs)[:80]}, of type {type(kwargs).__name__}; give a dict.')


def single(args: Sequence[object], kwargs: Mapping[str, object], job: str) -> tuple[object, str]:
    """Like `pack`, for a job declared with arguments="one": its single argument unchanged. Raises ArgumentsInvalid."""
    given = [*args, *kwargs.values()]
    if len(given) != 1:
        raise ArgumentsInvalid(
            f'{job} is declared with arguments="one", but got {len(given)} arguments. Pass exactly one.'
        )
    return given[0], ""


def unpack(value: object, arguments: str, *, one: bool = False) -> tuple[list[object], dict[str, object]]:
    """The positional and the keyword arguments in a decoded body.

    `arguments` is the message's header of that name. `one` is for jobs declared with arguments="one", which get any
    body as their single argument.

    Raises DecodeError for an unknown header value, or a body whose shape doesn't match the header.
    """
    if one:
        return [value], {}
    if value.__class__ is list and not arguments:  # nearly all bodies
        return cast("list[object]", value), {}
    match arguments:
        case "both":
            if isinstance(value, dict) and value.keys() <= {"args", "kwargs"}:
                args, kwargs = value.get("args", []), value.get("kwargs", {})
                if (
                    isinstance(args, (list, tuple))
                    and isinstance(kwargs, dict)
                    and all(isinstance(k, str) for k in kwargs)
                ):
                    return list(args), dict(kwargs)
            raise DecodeError('the header "arguments" is "both", but the body is not {"args": [...], "kwargs": {...}}.')
        case "":
            pass
        case _:
            raise DecodeError(f'the header "arguments" is {arguments[:40]!r}; it must be absent or "both".')
    match value:
        case None:
            return [], {}
        case list() | tuple():
            return list(value), {}
        case dict() if all(isinstance(name, str) for name in value):
            return [], dict(value)
        case _:
            return [value], {}


#: Maximum length of a preview, and the end of a longer one.
PREVIEW, _CUT = 100, "..."

#: Types whose repr is short and raises nothing. Integers below _SHORT_INT are handled in the same way.
_SHORT = frozenset({float, bool, type(None)})
_SHORT_INT = 10**18


def preview(args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    """The arguments as in a call, on one line of at most 100 characters; "..." marks cut ones.

    Reads only as much of a value as fits, because every enqueue makes a preview.
    """
    parts, room = _items(args, PREVIEW)
    for name, value in kwargs.items():
        if room < 0:
            break
        text = f"{name}={brief(value, room)}"
        parts.append(text)
        room -= len(text) + 2
    text = ", ".join(parts)
    return text if len(text) <= PREVIEW else text[: PREVIEW - len(_CUT)] + _CUT


#: The words for the value in the serializers' error texts.
_ROOTS = ("args", "kwargs", "value")


def about(text: str, name: str) -> str:
    """Replace the word for the value in a serializer's error text by this name."""
    for root in _ROOTS:
        if text.startswith((root + "[", root + " ")):
            return name + text.removeprefix(root)
    return text


def brief(value: object, room: int = PREVIEW) -> str:
    """``repr(value)``, cut to about `room` characters."""
    kind = type(value)
    if kind is str:
        return repr(value[: PREVIEW + 1])  # type: ignore[index]
    if kind in _SHORT or (kind is int and -_SHORT_INT < value < _SHORT_INT):  # type: ignore[operator]
        return repr(value)
    if kind is dict and len(value) <= PREVIEW:  # type: ignore[arg-type]
        return "{" + ", ".join(_fields(value, room)) + "}"  # type: ignore[arg-type]
    if isinstance(value, (str, bytes, bytearray)):
        return repr(value[: PREVIEW + 1])
    if isinstance(value, (dict, list, tuple, set, frozenset)) and len(value) > PREVIEW:
        return f"<{kind.__name__} of {len(value)}>"
    if isinstance(value, dict):
        return "{" + ", ".join(_fields(value, room)) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_items(value, room)[0]) + "]"
    try:
        return repr(value)[: PREVIEW + 1]
    except Exception:  # a user's __repr__ may raise anything, which must not stop an enqueue
        return f"<{kind.__name__}>"


def _items(items: Iterable[object], room: int) -> tuple[list[str], int]:
    """The texts of as many items as fit, and the remaining room, which is negative if some don't fit."""
    parts: list[str] = []
    for item in items:
        text = brief(item, room)
        parts.append(text)
        room -= len(text) + 2
        if room < 0:
            break
    return parts, room


def _fields(items: Mapping[object, object], room: int) -> list[str]:
    parts: list[str] = []
    for key, item in items.items():
        # Short texts are inlined: nearly all keys and many values are short texts.
        name = repr(key) if type(key) is str and len(key) <= PREVIEW else brief(key)
        short = type(item) is str and len(item) <= PREVIEW
        text = f"{name}: {repr(item) if short else brief(item, room)}"
        parts.append(text)
        room -= len(text) + 2
        if room < 0:
            break
    return parts
