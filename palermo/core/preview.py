"""A preview of a job's arguments for people: one line of at most 100 characters.

It is made at every enqueue, so it looks at no more of a value than can be shown: each part gets only
the room that the parts before it left.
"""

from collections.abc import Iterable, Mapping, Sequence

PREVIEW = 100

#: The types whose repr is short and raises nothing; the same holds for whole numbers below _SHORT_INT.
_SHORT = frozenset({float, bool, type(None)})
_SHORT_INT = 10**18


def preview(args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    """The arguments as they would be written in a call, cut at 100 characters with "..." behind."""
    parts, room = _items(args, PREVIEW)
    for name, value in kwargs.items():
        if room < 0:
            break
        text = f"{name}={brief(value, room)}"
        parts.append(text)
        room -= len(text) + 2
    text = ", ".join(parts)
    return text if len(text) <= PREVIEW else text[:PREVIEW] + "..."


def brief(value: object, room: int = PREVIEW) -> str:
    """``repr(value)``, but not much longer than the room there is for it, in characters."""
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
    except Exception:  # a user's __repr__ may raise anything; a preview must not stop an enqueue
        return f"<{kind.__name__}>"


def _items(items: Iterable[object], room: int) -> tuple[list[str], int]:
    """The texts of as many items as there is room for, and the room that is left then; below 0 for none."""
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
        # Short texts are written in place: nearly all keys are short texts, and many values.
        name = repr(key) if type(key) is str and len(key) <= PREVIEW else brief(key)
        short = type(item) is str and len(item) <= PREVIEW
        text = f"{name}: {repr(item) if short else brief(item, room)}"
        parts.append(text)
        room -= len(text) + 2
        if room < 0:
            break
    return parts
