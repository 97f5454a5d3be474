"""Hides values in messages and in workers' rows; palermo.jobs.redaction says which values.

`unmasked` puts hidden values in their places again, in arguments that a form sends back.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from palermo.contract.rows import MAX_SHOWN, Row, arguments_of, as_json
from palermo.contract.serialization import Serializers
from palermo.core.arguments import preview
from palermo.core.message import Message
from palermo.errors import ArgumentsInvalid
from palermo.jobs.redaction import MASK, masked_row


def masked_preview(message: Message, serializers: Serializers, patterns: Sequence[str]) -> str | None:
    """The preview of a message as its row shows it. A search looks through nothing else of its arguments."""
    if not patterns:
        return message.preview
    args, kwargs = arguments_of(message, serializers, max_bytes=MAX_SHOWN) or (None, None)
    bare = message.preview
    if bare is None and args is not None and kwargs is not None:
        bare = preview(args, kwargs)
    row = {"job": message.job, "args": as_json(args), "kwargs": as_json(kwargs), "preview": bare}
    text: str | None = masked_row(row, patterns)["preview"]
    return text


def masked_worker(row: Row, patterns: Sequence[str]) -> Row:
    """A worker's row as it may be shown: the same for the jobs that it runs."""
    return {**row, "jobs": [masked_row(job, patterns) for job in row["jobs"]]}


def unmasked(edited: Any, original: Any) -> Any:
    """The edited value, with each mask that was left in it replaced by the original at the same key or index.

    Raises ArgumentsInvalid for a mask without a value behind it: it was moved, or the original is not known.
    """
    match edited:
        case str() if edited == MASK:
            if original == MASK:
                raise ArgumentsInvalid(f"these arguments still hold {MASK}: write the hidden values in their places.")
            return original
        case Mapping():
            fields = original if isinstance(original, Mapping) else {}
            return {key: unmasked(value, fields.get(key, value)) for key, value in edited.items()}
        case list():
            items = original if isinstance(original, list | tuple) else ()
            rest = [*items, *edited[len(items) :]]
            return [unmasked(value, before) for value, before in zip(edited, rest, strict=False)]
        case _:
            return edited
