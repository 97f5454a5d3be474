"""Arguments that nobody is shown: values whose names match the setting web_redact, wherever they are nested."""

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from palermo.core.preview import preview
from palermo.jobs import registry
from palermo.rows import Row

#: What stands in the place of a value. A form that sends it back means the value it stands for.
MASK = "••••••"


def shown(row: Row, patterns: Sequence[str]) -> Row:
    """A job's row as it may be shown.

    Named arguments go by their names, keys of mappings by theirs, and positional ones by
    the signature's where the job's code is imported here. Of arguments that cannot be decoded the preview
    goes as a whole if it holds such a name.
    """
    args, kwargs, text = row["args"], row["kwargs"], row["preview"]
    if args is None or kwargs is None:
        hidden = isinstance(text, str) and any(_hidden(word, patterns) for word in _words(text))
        return {**row, "preview": MASK} if hidden else row
    bare = arguments_shown(row, patterns)
    if bare == row:
        return row
    return {**bare, "preview": preview(bare["args"], bare["kwargs"])}


def arguments_shown(row: Row, patterns: Sequence[str]) -> Row:
    """The same for a row without a preview, as a recurring job has one."""
    args, kwargs = row["args"], row["kwargs"]
    if args is None or kwargs is None:
        return row
    names = _parameters(row["job"])
    masked = [
        MASK if place < len(names) and _hidden(names[place], patterns) else _masked(value, patterns)
        for place, value in enumerate(args)
    ]
    return {**row, "args": masked, "kwargs": _masked(kwargs, patterns)}


def value_shown(value: Any, patterns: Sequence[str]) -> Any:
    """What a job returned as it may be shown: keys of mappings go by their names."""
    return _masked(value, patterns)


def unmasked(edited: Any, original: Any) -> Any:
    """What somebody edited, with the originals where they left a mask: at the same place, by key and by index."""
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


def is_masked(value: Any) -> bool:
    """Whether something in it is hidden."""
    return json.dumps(MASK)[1:-1] in json.dumps(value, default=str)


def _masked(value: Any, patterns: Sequence[str]) -> Any:
    match value:
        case dict():
            return {
                key: MASK if _hidden(str(key), patterns) else _masked(item, patterns) for key, item in value.items()
            }
        case list():
            return [_masked(item, patterns) for item in value]
        case _:
            return value


def _hidden(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name.casefold(), pattern.casefold()) for pattern in patterns)


def _words(text: str) -> list[str]:
    return "".join(char if char.isalnum() or char in "_-" else " " for char in text).split()


def _parameters(job: str | None) -> Sequence[str]:
    definition = registry.find(job) if job else None
    return [] if definition is None else list(definition.signature.parameters)
