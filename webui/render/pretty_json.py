"""Arguments formatted for reading: JSON over several lines, in pieces that a page colours."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

#: The most characters of one value that a page shows. The API has all of it.
MAX_SHOWN = 100_000

# A string may end at the end of the whole text, where it was cut. Otherwise the search would begin again at each quote
# in it.
_TOKEN = re.compile(
    r'(?P<key>"(?:[^"\\]|\\.)*")(?=\s*:)|(?P<text>"(?:[^"\\]|\\.)*(?:"|\\?\Z))|(?P<number>-?\d[\d.eE+-]*)|(?P<word>true|false|null)'
)

#: A list or an object stays on one line if the line has at most this many characters.
_SHORT = 72


@dataclass(frozen=True, slots=True)
class PrettyJson:
    """The text of a value, whole and in pieces of (kind, text). The kind is "" for text without a colour."""

    text: str
    #: Whether the text was too long and was cut.
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


def pretty_json(value: Any) -> PrettyJson:
    """The value as indented JSON, with short lists and objects on one line."""
    text = _written(value, 0)
    return PrettyJson(text[:MAX_SHOWN], len(text) > MAX_SHOWN)


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
