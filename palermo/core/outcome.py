"""What a job returned, as the journal keeps it: serialized, and within a limit."""

import base64
from collections.abc import Mapping
from typing import Any

from palermo.core.message import JSON
from palermo.core.values import dataclass

#: The most that the setting max_result may allow, in bytes: a batch of a few such is still one message.
MAX_RESULT = 512 * 1024


@dataclass(frozen=True, slots=True)
class Value:
    """A value that a serializer has written."""

    #: Media type of the serializer.
    content_type: str
    body: bytes

    def to_plain(self) -> dict[str, str]:
        """As values that JSON has: the field `result` of a record."""
        if self.content_type == JSON:
            return {"content_type": JSON, "text": self.body.decode(errors="replace")}
        return {"content_type": self.content_type, "base64": base64.b64encode(self.body).decode()}

    @classmethod
    def from_plain(cls, plain: object) -> "Value | None":
        """The value that to_plain described; None for what describes none."""
        match plain:
            case {"content_type": str(content_type), "text": str(text)}:
                return cls(content_type, text.encode(errors="replace"))
            case {"content_type": str(content_type), "base64": str(text)}:
                try:
                    return cls(content_type, base64.b64decode(text, validate=True))
                except ValueError:
                    return None
        return None


def check_size(value: Value, limit: int) -> str:
    """Why a value is not kept, for people; "" if it is. `limit` is in bytes."""
    size = len(value.body)
    if size <= limit:
        return ""
    return (
        f"the result measures {size:,} bytes and the setting max_result allows {limit:,}."
        " Store the data elsewhere and return a reference to it, or raise the limit."
    )


def kept(record: Mapping[str, Any]) -> Value | None:
    """The value in a record of kind `succeeded`."""
    return Value.from_plain(record.get("result"))
