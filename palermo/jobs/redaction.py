"""Hides argument values whose names match the `web_redact` setting, at any depth."""

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

#: Replaces a hidden value. In an edited form it stands for the original value.
MASK = "••••••"

R = TypeVar("R", bound=Row)
W = TypeVar("W", bound=WorkerRow)


def masked_row(row: R, patterns: Sequence[str], names: Sequence[str] | None = None) -> R:
    """Return a job's row with hidden values masked.

    Keyword arguments are matched by name, mapping values by key, and positional arguments by parameter name if the
    job's code is imported here. If the arguments can't be decoded, and the preview or the signature contains a hidden
    name, the whole preview is masked. `names` are the parameter names, if known to the caller.
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
    """Like `masked_row`, for a row without a preview, such as that of a recurring job."""
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
    """Return a JSON value with the values of hidden keys masked."""
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
    return any(fnmatchcase(name.casefold(), pattern.casefold()) for pattern in patterns)


def _words(text: str) -> list[str]:
    return "".join(char if char.isalnum() or char in "_-" else " " for char in text).split()


def parameters(job: str | None) -> Sequence[str]:
    """Return the names of a job's parameters; empty if its code isn't imported here."""
    definition = registry.find(job) if job else None
    return [] if definition is None else list(definition.signature.parameters)


def masked_preview(message: Message, serializers: Serializers, patterns: Sequence[str]) -> str | None:
    """Return a message's preview with hidden values masked, as its row shows it. Searches read no other part of the
    arguments.
    """
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
    """Return a worker's row with hidden values masked in its running jobs."""
    return cast(W, {**row, "jobs": [masked_row(job, patterns) for job in row["jobs"]]})


def unmasked(edited: Any, original: Any) -> Any:
    """Return an edited value with each mask replaced by the original value at the same key or index.

    Raises ArgumentsInvalid for a mask without an original value, which was moved or is unknown.
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
