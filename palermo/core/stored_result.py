"""A job's return value as the journal keeps it: serialized, and within a limit."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from palermo.core.message import JSON

#: The most bytes that the setting max_result may allow: a batch of a few such values still fits one message.
MAX_RESULT = 512 * 1024


@dataclass(frozen=True, slots=True)
class StoredResult:
    """A value that a serializer has written."""

    #: Media type of the serializer.
    content_type: str
    body: bytes

    def to_plain(self) -> dict[str, str]:
        """The value as JSON values: the field `result` of a record."""
        if self.content_type == JSON:
            return {"content_type": JSON, "text": self.body.decode(errors="replace")}
        return {"content_type": self.content_type, "base64": base64.b64encode(self.body).decode()}

    @classmethod
    def from_plain(cls, plain: object) -> "StoredResult | None":
        """The value that to_plain described; None for anything else."""
        match plain:
            case {"content_type": str(content_type), "text": str(text)}:
                return cls(content_type, text.encode(errors="replace"))
            case {"content_type": str(content_type), "base64": str(text)}:
                try:
                    return cls(content_type, base64.b64decode(text, validate=True))
                except ValueError:
                    return None
        return None


def why_not_stored(value: StoredResult, limit: int) -> str:
    """The reason, for people, why a value is not kept; "" if it is. `limit` is in bytes."""
    size = len(value.body)
    if size <= limit:
        return ""
    return (
        f"the result measures {size:,} bytes and the setting max_result allows {limit:,}."
        " Store the data elsewhere and return a reference to it, or raise the limit."
    )


def result_of_record(record: Mapping[str, Any]) -> StoredResult | None:
    """The value in a record of kind `succeeded`."""
    return StoredResult.from_plain(record.get("result"))
