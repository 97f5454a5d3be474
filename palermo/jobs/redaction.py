"""Hides values in arguments: those whose names match the setting web_redact, wherever they are nested.

`unmasked` puts hidden values in their places again, in arguments that a form sends back.
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

#: Stands in the place of a hidden value. A form that sends it back means the value that it stands for.
MASK = "••••••"

R = TypeVar("R", bound=Row)
W = TypeVar("W", bound=WorkerRow)


def masked_row(row: R, patterns: Sequence[str], names: Sequence[str] | None = None) -> R:
    """A job's row as it may be shown, with some values hidden.

    Named arguments go by their names, values of mappings by their keys, and positional arguments by
    the signature's names if the job's code is imported here. If the arguments cannot be decoded, and the preview
    or the signature holds such a name, the whole preview is hidden. `names` are the signature's if the caller
    knows them.
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
    """A JSON value as it may be shown: values of mappings go by their keys."""
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
    """Whether a value of this name is hidden."""
    return any(fnmatchcase(name.casefold(), pattern.casefold()) for pattern in patterns)


def _words(text: str) -> list[str]:
    return "".join(char if char.isalnum() or char in "_-" else " " for char in text).split()


def parameters(job: str | None) -> Sequence[str]:
    """The names of a job's parameters; none if its code is not imported here."""
    definition = registry.find(job) if job else None
    return [] if definition is None else list(definition.signature.parameters)


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


def masked_worker(row: W, patterns: Sequence[str]) -> W:
    """A worker's row as it may be shown: the same for the jobs that it runs."""
    return cast(W, {**row, "jobs": [masked_row(job, patterns) for job in row["jobs"]]})


def unmasked(edited: Any, original: Any) -> Any:
    """The edited value, with each mask that was left in it replaced by the original at the same key or index.

    Raises ArgumentsInvalid for a mask without a value behind it: it was moved, or the original is not known.
    """
    match edited:
        case str() if edited == MASK:
            if original == MASK:
                raise ArgumentsInvalid(f"these arguments still hold {MASK}: replace it with the hidden values.")
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
