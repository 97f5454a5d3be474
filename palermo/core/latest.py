"""Dicts that keep only their latest entries, so that their size is bounded."""

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def remember(kept: dict[K, V], key: K, value: V, *, most: int) -> None:
    """Make this the latest entry. If there are more than `most`, drop the oldest one."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > most:
        del kept[next(iter(kept))]
