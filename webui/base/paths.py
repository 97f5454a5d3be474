"""Paths that hold names of queues and ids of jobs, with any characters in them.

The server passes a path that is already decoded: a slash in a name looks like a slash between
parts. So the guard builds the path again from the raw one and leaves slashes in names encoded.
The convertor `palermo` decodes each part after the route is found.
"""

from typing import Any
from urllib.parse import quote, unquote

from starlette.convertors import Convertor, register_url_convertor
from starlette.types import Scope


class PathInvalid(ValueError):
    """A path that is not UTF-8."""


class NameConvertor(Convertor[str]):
    """One part of a path that is a name, percent-encoded."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return unquote(value)

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


register_url_convertor("palermo", NameConvertor())


def split(scope: Scope) -> tuple[str, str]:
    """The root under which the application is mounted, and the path in it, with `%` and `/` of names left encoded.

    Raises PathInvalid.
    """
    root: str = scope.get("root_path", "").rstrip("/")
    parts = [_decoded(part) for part in _raw(scope).split("/")]
    above = root.split("/") if root else [""]
    if root and parts[: len(above)] == above:
        parts = ["", *parts[len(above) :]]
    return root, "/".join(part.replace("%", "%25").replace("/", "%2F") for part in parts) or "/"


def moved(root: str, path: str) -> dict[str, Any]:
    """The path entries of a scope for this root and this path in the application."""
    return {"root_path": root, "path": root + path, "raw_path": (quote(root) + quote(path, safe="/%")).encode()}


def _raw(scope: Scope) -> str:
    raw: bytes | None = scope.get("raw_path")
    if raw is None:
        return quote(scope["path"])
    return raw.partition(b"?")[0].decode("latin-1")


def _decoded(part: str) -> str:
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise PathInvalid("the address is not UTF-8") from None
