"""Check at registration, rather than at the first job, that an object is a serializer or a compression."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from palermo.errors import OptionInvalid


class _Part(NamedTuple):
    """A required member of a serializer or a compression."""

    fits: Callable[[Any], bool]
    must: str


def check_serializer(serializer: object) -> None:
    """Raise OptionInvalid, which names the wrong or missing member, unless an object is a Serializer."""
    _check(serializer, "serializer", _SERIALIZER)


def check_compression(compression: object) -> None:
    """Raise OptionInvalid unless an object is a Compression."""
    _check(compression, "compression", _COMPRESSION)


def _check(plugin: object, what: str, parts: Mapping[str, _Part]) -> None:
    absent = object()
    wrong: list[str] = []
    for name, part in parts.items():
        value = getattr(plugin, name, absent)
        if value is absent:
            wrong.append(f"it has no {name}, which must be {part.must}")
        elif not part.fits(value):
            shown = "" if callable(value) else f" {value!r:.80}"
            wrong.append(f"its {name}{shown} must be {part.must}")
    if wrong:
        kind, advice = (plugin, " Give an instance, not the class.") if isinstance(plugin, type) else (type(plugin), "")
        raise OptionInvalid(f"{kind.__module__}.{kind.__qualname__} is not a {what}: {'; '.join(wrong)}.{advice}")


#: Characters with a special meaning in lists of names and in media types.
_MARKS = set(" ,;/")


def _is_word(text: object) -> bool:
    return isinstance(text, str) and text.isprintable() and text == text.lower() != "" and not set(text) & _MARKS


def _is_media_type(text: object) -> bool:
    return isinstance(text, str) and "/" in text and all(map(_is_word, text.split("/")))


def _takes(count: int) -> Callable[[Any], bool]:
    """A check that a value can be called with this number of arguments."""

    def fits(method: object) -> bool:
        if not callable(method):
            return False
        try:
            inspect.signature(method).bind(*range(count))
        except TypeError:
            return False
        except ValueError:  # a function in C may not expose its parameters
            return True
        return True

    return fits


_NAME = _Part(_is_word, "one word in lower case")

_SERIALIZER = {
    "name": _NAME,
    "media_type": _Part(_is_media_type, "text such as 'application/x-own': lower case, without parameters"),
    "safe": _Part(
        lambda safe: isinstance(safe, bool), "True if loads cannot run code chosen by the bytes, otherwise False"
    ),
    "dumps": _Part(_takes(1), "a method dumps(value) that returns bytes"),
    "loads": _Part(_takes(2), "a method loads(data, classes) that returns the value"),
}

_COMPRESSION = {
    "name": _NAME,
    "compress": _Part(_takes(1), "a method compress(data) that returns bytes"),
    "decompress": _Part(_takes(2), "a method decompress(data, limit) that returns bytes"),
}
