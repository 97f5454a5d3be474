"""Hides arguments from view: the values whose names match the setting web_redact, wherever they are nested.

`unmasked` puts hidden values in their places again, in arguments that a form sends back.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from palermo.contract.rows import MAX_SHOWN, Row, arguments_of, as_json
from palermo.contract.serialization import Serializers
from palermo.core.arguments import preview
from palermo.core.message import Message
from palermo.jobs import registry

#: Stands in the place of a hidden value. A form that sends it back means the value that it stands for.
MASK = "••••••"


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


def masked_row(row: Row, patterns: Sequence[str]) -> Row:
    """A job's row as it may be shown, with some values hidden.

    Named arguments go by their names, values of mappings by their keys, and positional arguments by
    the signature's names if the job's code is imported here. If the arguments cannot be decoded, and the preview
    or the signature holds such a name, the whole preview is hidden.
    """
    args, kwargs, text = row["args"], row["kwargs"], row["preview"]
    if args is None or kwargs is None:
        words = [*_words(text), *_parameters(row["job"])] if isinstance(text, str) else []
        return {**row, "preview": MASK} if any(is_hidden(word, tuple(patterns)) for word in words) else row
    bare = masked_arguments(row, patterns)
    if bare == row:
        return row
    return {**bare, "preview": preview(bare["args"], bare["kwargs"])}


def masked_worker(row: Row, patterns: Sequence[str]) -> Row:
    """A worker's row as it may be shown: the same for the jobs that it runs."""
    return {**row, "jobs": [masked_row(job, patterns) for job in row["jobs"]]}


def masked_arguments(row: Row, patterns: Sequence[str]) -> Row:
    """The same for a row without a preview, such as that of a recurring job."""
    args, kwargs = row["args"], row["kwargs"]
    if args is None or kwargs is None:
        return row
    names = _parameters(row["job"])
    masked = [
        MASK if place < len(names) and is_hidden(names[place], tuple(patterns)) else masked_value(value, patterns)
        for place, value in enumerate(args)
    ]
    return {**row, "args": masked, "kwargs": masked_value(kwargs, patterns)}


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


def _parameters(job: str | None) -> Sequence[str]:
    definition = registry.find(job) if job else None
    return [] if definition is None else list(definition.signature.parameters)


def unmasked(edited: Any, original: Any) -> Any:
    """The edited value, with each mask that was left in it replaced by the original at the same key or index."""
    match edited, original:
        case str(), _ if edited == MASK:
            return original
        case Mapping(), Mapping():
            return {key: unmasked(value, original.get(key, value)) for key, value in edited.items()}
        case list(), list() | tuple():
            rest = [*original, *edited[len(original) :]]
            return [unmasked(value, before) for value, before in zip(edited, rest, strict=False)]
        case _:
            return edited
