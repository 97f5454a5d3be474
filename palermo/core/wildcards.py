"""Wildcards in the names that a filter gives: `*`, `?` and `[…]`."""

from fnmatch import fnmatchcase


def fits(name: str, pattern: str) -> bool:
    """Whether a name equals the pattern or fits it."""
    return name == pattern or fnmatchcase(name, pattern)
