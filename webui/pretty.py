"""Arguments as they are read: JSON over several lines, in pieces that a page colours."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

#: Characters of one value that a page shows; all of it is in the API.
MAX_SHOWN = 100_000

_TOKEN = re.compile(
    r'(?P<key>"(?:[^"\\]|\\.)*")(?=\s*:)|(?P<text>"(?:[^"\\]|\\.)*")|(?P<number>-?\d[\d.eE+-]*)|(?P<word>true|false|null)'
)

#: A list or an object whose text is shorter stays on one line.
_SHORT = 72


@dataclass(frozen=True, slots=True)
class Pretty:
    """A value's text, whole and in pieces of (kind, text); the kind is "" where nothing is to be coloured."""

    text: str
    #: Whether the text was too long and lacks its end.
    cut: bool

    def pieces(self) -> Iterator[tuple[str, str]]:
        end = 0
        for found in _TOKEN.finditer(self.text):
            if found.start() > end:
                yield "", self.text[end : found.start()]
            yield found.lastgroup or "", found[0]
            end = found.end()
        if end < len(self.text):
            yield "", self.text[end:]


def pretty(value: Any) -> Pretty:
    """The value as indented JSON; short lists and objects on one line."""
    text = _written(value, 0)
    return Pretty(text[:MAX_SHOWN], len(text) > MAX_SHOWN)


def _written(value: Any, indent: int) -> str:
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + indent <= _SHORT or not isinstance(value, dict | list) or not value:
        return line
    pad = " " * (indent + 2)
    if isinstance(value, list):
        inside = [pad + _written(item, indent + 2) for item in value]
        return "[\n" + ",\n".join(inside) + "\n" + " " * indent + "]"
    inside = [
        f"{pad}{json.dumps(key, ensure_ascii=False)}: {_written(item, indent + 2)}" for key, item in value.items()
    ]
    return "{\n" + ",\n".join(inside) + "\n" + " " * indent + "}"
