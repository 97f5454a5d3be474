"""The arguments for people: one line of at most 100 characters."""

from collections.abc import Iterable, Mapping, Sequence

PREVIEW = 100


def preview(args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    """The arguments as they would be written in a call, cut at 100 characters with "..." behind.

    Cheap for large values: no more of any of them is formatted than can be shown.
    """
    parts: list[str] = []
    room = PREVIEW
    for name, value in [*(("", value) for value in args), *kwargs.items()]:
        if room < 0:
            break
        text = f"{name}={brief(value)}" if name else brief(value)
        parts.append(text)
        room -= len(text) + 2
    text = ", ".join(parts)
    return text if len(text) <= PREVIEW else text[:PREVIEW] + "..."


def brief(value: object) -> str:
    """``repr(value)``, but never much longer than a preview."""
    match value:
        case str() | bytes() | bytearray():
            return repr(value[: PREVIEW + 1])
        case list() | tuple() | set() | frozenset() | dict() if len(value) > PREVIEW:
            return f"<{type(value).__name__} of {len(value)}>"
        case list():
            return "[" + _joined(brief(item) for item in value) + "]"
        case dict():
            return "{" + _joined(f"{brief(key)}: {brief(item)}" for key, item in value.items()) + "}"
        case _:
            try:
                return repr(value)[: PREVIEW + 1]
            except Exception:  # a user's __repr__ may raise anything; a preview must not stop an enqueue
                return f"<{type(value).__name__}>"


def _joined(parts: Iterable[str]) -> str:
    shown: list[str] = []
    room = PREVIEW
    for part in parts:
        shown.append(part)
        room -= len(part) + 2
        if room < 0:
            break
    return ", ".join(shown)
