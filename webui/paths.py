"""Addresses: names of queues and ids of jobs in them, whatever characters they have.

A server hands over a path that is decoded already, in which the slash of a name and one
between parts look alike. So the guard makes the path anew from the raw one, with slashes
of names left encoded, and the convertor `name` decodes each part once the route is found.
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
    """The root of an application in another, and the path in it, with `%` and `/` of names left encoded.

    Raises PathInvalid.
    """
    root: str = scope.get("root_path", "").rstrip("/")
    parts = [_decoded(part) for part in _raw(scope).split("/")]
    above = root.split("/") if root else [""]
    if root and parts[: len(above)] == above:
        parts = ["", *parts[len(above) :]]
    return root, "/".join(part.replace("%", "%25").replace("/", "%2F") for part in parts) or "/"


def moved(root: str, path: str) -> dict[str, Any]:
    """What a scope says of paths when the application's root is this, and the path in it that."""
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
