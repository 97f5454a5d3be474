"""The arguments for people: one line of at most 100 characters.

Made at every enqueue, so it looks at no more of a value than can be shown: what a part leaves of
the room is all that the next part gets.
"""

from collections.abc import Iterable, Mapping, Sequence

PREVIEW = 100

#: Whose repr is short, and raises nothing.
_SHORT = frozenset({float, bool, type(None)})


def preview(args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    """The arguments as they would be written in a call, cut at 100 characters with "..." behind."""
    parts: list[str] = []
    room = _add_items(parts, args, PREVIEW)
    if kwargs:
        _add_named(parts, ((f"{name}=", value) for name, value in kwargs.items()), room)
    text = ", ".join(parts)
    return text if len(text) <= PREVIEW else text[:PREVIEW] + "..."


def brief(value: object, room: int = PREVIEW) -> str:
    """``repr(value)``, but not much longer than the room there is for it, in characters."""
    kind = type(value)
    if kind in _SHORT:
        return repr(value)
    if isinstance(value, (str, bytes, bytearray)):
        return repr(value[: PREVIEW + 1])
    if isinstance(value, (dict, list, tuple, set, frozenset)) and len(value) > PREVIEW:
        return f"<{kind.__name__} of {len(value)}>"
    if isinstance(value, dict):
        parts: list[str] = []
        _add_named(parts, ((f"{brief(key, room)}: ", item) for key, item in value.items()), room)
        return "{" + ", ".join(parts) + "}"
    if isinstance(value, list):
        parts = []
        _add_items(parts, value, room)
        return "[" + ", ".join(parts) + "]"
    try:
        return repr(value)[: PREVIEW + 1]
    except Exception:  # a user's __repr__ may raise anything; a preview must not stop an enqueue
        return f"<{kind.__name__}>"


def _add_items(parts: list[str], items: Iterable[object], room: int) -> int:
    """Add what there is room for, and something more; returns what room is left, below 0 for none."""
    for item in items:
        text = brief(item, room)
        parts.append(text)
        room -= len(text) + 2
        if room < 0:
            break
    return room


def _add_named(parts: list[str], named: Iterable[tuple[str, object]], room: int) -> None:
    if room < 0:
        return
    for name, value in named:
        text = name + brief(value, room)
        parts.append(text)
        room -= len(text) + 2
        if room < 0:
            break
