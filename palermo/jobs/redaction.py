"""Hides argument values whose names match the setting web_redact, at any depth.

`unmasked` restores hidden values in arguments that a form sends back.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, TypeVar, cast

from palermo.contract.row_types import WorkerRow
from palermo.contract.rows import MAX_SHOWN, Row, arguments_of, as_json
from palermo.contract.serialization import Serializers
from palermo.core.arguments import preview
from palermo.core.message import Message
from palermo.errors import ArgumentsInvalid
from palermo.jobs import registry

#: Replaces a hidden value. In a form it stands for the original value.
MASK = "••••••"

R = TypeVar("R", bound=Row)
W = TypeVar("W", bound=WorkerRow)


def masked_row(row: R, patterns: Sequence[str], names: Sequence[str] | None = None) -> R:
    """A job's row with hidden values masked.

    Keyword arguments are matched by name, mapping values by key, and positional arguments by parameter name if the
    job's code is imported here. If the arguments cannot be decoded, and the preview or the signature contains such a
    name, the whole preview is hidden. `names` are the parameter names if the caller has them.
    """
    args, kwargs, text = row["args"], row["kwargs"], row["preview"]
    if headers := row.get("headers"):
        row = cast(R, {**row, "headers": masked_value(headers, patterns)})
    if args is None or kwargs is None:
        words = [*_words(text), *(parameters(row["job"]) if names is None else names)] if isinstance(text, str) else []
        return cast(R, {**row, "preview": MASK}) if any(is_hidden(word, tuple(patterns)) for word in words) else row
    bare = masked_arguments(row, patterns, names)
    if bare == row:
        return row
    return cast(R, {**bare, "preview": preview(bare["args"], bare["kwargs"])})


def masked_arguments(row: R, patterns: Sequence[str], names: Sequence[str] | None = None) -> R:
    """The same for a row without a preview, such as that of a recurring job."""
    args, kwargs = row["args"], row["kwargs"]
    if args is None or kwargs is None:
        return row
    names = parameters(row["job"]) if names is None else names
    masked = [
        MASK if place < len(names) and is_hidden(names[place], tuple(patterns)) else masked_value(value, patterns)
        for place, value in enumerate(args)
    ]
    return cast(R, {**row, "args": masked, "kwargs": masked_value(kwargs, patterns)})


def masked_value(value: Any, patterns: Sequence[str]) -> Any:
    """A JSON value with hidden mapping values masked, by key."""
    match value:
        case dict():
            wanted = tuple(patterns)
            return {
                key: MASK if is_hidden(str(key), wanted) else masked_value(item, patterns)
                for key, item in value.items()
            }
        case list():
            return [masked_value(item, patterns) for item in value]
        case _:
            return value


@lru_cache(maxsize=4_096)
def is_hidden(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a value with this name is hidden."""
    return any(fnmatchcase(name.casefold(), pattern.casefold()) for pattern in patterns)


def _words(text: str) -> list[str]:
    return "".join(char if char.isalnum() or char in "_-" else " " for char in text).split()


def parameters(job: str | None) -> Sequence[str]:
    """The names of a job's parameters; empty if its code is not imported here."""
    definition = registry.find(job) if job else None
    return [] if definition is None else list(definition.signature.parameters)


def masked_preview(message: Message, serializers: Serializers, patterns: Sequence[str]) -> str | None:
    """The preview of a message as its row shows it. It is the only part of the arguments that a search reads."""
    if not patterns:
        return message.preview
    args, kwargs = arguments_of(message, serializers, max_bytes=MAX_SHOWN) or (None, None)
    bare = message.preview
    if bare is None and args is not None and kwargs is not None:
        bare = preview(args, kwargs)
    row = {"job": message.job, "args": as_json(args), "kwargs": as_json(kwargs), "preview": bare}
    text: str | None = masked_row(row, patterns)["preview"]
    return text


def masked_worker(row: W, patterns: Sequence[str]) -> W:
    """A worker's row with hidden values masked in the jobs that it runs."""
    return cast(W, {**row, "jobs": [masked_row(job, patterns) for job in row["jobs"]]})


def unmasked(edited: Any, original: Any) -> Any:
    """The edited value, with each remaining mask replaced by the original at the same key or index.

    Raises ArgumentsInvalid for a mask without an original value, because it was moved or the original is unknown.
    """
    match edited:
        case str() if edited == MASK:
            if original == MASK:
                raise ArgumentsInvalid(f"these arguments still contain {MASK}. Replace it with the hidden values.")
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
