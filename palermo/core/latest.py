"""Dicts that keep only their latest entries, so that their size is bounded."""

from typing import TypeVar

V = TypeVar("V")


def remember(kept: dict[str, V], key: str, value: V, *, most: int) -> None:
    """Make this the latest entry. If there are more than `most`, drop the oldest one."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > most:
        del kept[next(iter(kept))]
