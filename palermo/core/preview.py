"""The arguments for people: one line of at most 100 characters.

Made at every enqueue, so it looks at no more of a value than can be shown: what a part leaves of
the room is all that the next part gets.
"""

from collections.abc import Iterable, Mapping, Sequence

PREVIEW = 100


def preview(args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    """The arguments as they would be written in a call, cut at 100 characters with "..." behind."""
    named = [("", value) for value in args]
    named += [(f"{name}=", value) for name, value in kwargs.items()]
    text = _joined(named, PREVIEW)
    return text if len(text) <= PREVIEW else text[:PREVIEW] + "..."


def brief(value: object, room: int = PREVIEW) -> str:
    """``repr(value)``, but not much longer than the room there is for it, in characters."""
    if isinstance(value, str | bytes | bytearray):
        return repr(value[: PREVIEW + 1])
    if isinstance(value, dict | list | tuple | set | frozenset) and len(value) > PREVIEW:
        return f"<{type(value).__name__} of {len(value)}>"
    if isinstance(value, dict):
        return "{" + _joined(((f"{brief(key, room)}: ", item) for key, item in value.items()), room) + "}"
    if isinstance(value, list):
        return "[" + _joined((("", item) for item in value), room) + "]"
    try:
        return repr(value)[: PREVIEW + 1]
    except Exception:  # a user's __repr__ may raise anything; a preview must not stop an enqueue
        return f"<{type(value).__name__}>"


def _joined(named: Iterable[tuple[str, object]], room: int) -> str:
    parts: list[str] = []
    for name, value in named:
        text = name + brief(value, room)
        parts.append(text)
        room -= len(text) + 2
        if room < 0:
            break
    return ", ".join(parts)
