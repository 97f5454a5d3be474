"""Jobs whose module plugs in a serializer of its own."""

from collections.abc import Mapping
from pathlib import Path

import palermo
from palermo.client.client import default_client


class Reversed:
    """Text, backwards."""

    name = "reversed"
    media_type = "text/x-reversed"
    safe = True

    def dumps(self, value: object) -> bytes:
        return repr(value)[::-1].encode()

    def loads(self, data: bytes, classes: Mapping[str, type]) -> object:
        return data.decode()[::-1].split("|")


default_client().serializers.register(Reversed())


@palermo.job
def notes(path: str, text: str) -> None:
    Path(path).write_text(text)
