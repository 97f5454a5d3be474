"""Packs a job's arguments into one value to serialize, and unpacks them again: docs/internals/wire.md, "Arguments"."""

from collections.abc import Mapping, Sequence
from typing import cast

from palermo.errors import ArgumentsInvalid, DecodeError

BOTH = "both"


def pack(args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[object, str]:
    """One value that holds the arguments, and the `arguments` header that goes with it.

    The value is a list of positional arguments, a dict of named ones, or a dict of both where a call has both.
    """
    if args and kwargs:
        return {"args": list(args), "kwargs": dict(kwargs)}, BOTH
    if kwargs:
        return dict(kwargs), ""
    return list(args), ""


def single(args: Sequence[object], kwargs: Mapping[str, object], job: str) -> tuple[object, str]:
    """Like `pack`, for a job declared with arguments="one": its single argument as it is. Raises ArgumentsInvalid."""
    given = [*args, *kwargs.values()]
    if len(given) != 1:
        raise ArgumentsInvalid(f'{job} is declared with arguments="one" and was given {len(given)}; pass exactly one.')
    return given[0], ""


def unpack(value: object, arguments: str, *, one: bool = False) -> tuple[list[object], dict[str, object]]:
    """The positional and the named arguments in a decoded body.

    `arguments` is the message's header of that name. `one` is for jobs declared with
    arguments="one", which get the body as their single argument whatever it is.

    Raises DecodeError for an unknown header value, or a body that does not have the shape that the header promises.
    """
    if one:
        return [value], {}
    if value.__class__ is list and not arguments:  # nearly all bodies
        return cast("list[object]", value), {}
    match arguments:
        case "both":
            if isinstance(value, dict) and value.keys() <= {"args", "kwargs"}:
                args, kwargs = value.get("args", []), value.get("kwargs", {})
                if (
                    isinstance(args, (list, tuple))
                    and isinstance(kwargs, dict)
                    and all(isinstance(k, str) for k in kwargs)
                ):
                    return list(args), dict(kwargs)
            raise DecodeError('header arguments is "both", but the body is not {"args": [...], "kwargs": {...}}.')
        case "":
            pass
        case _:
            raise DecodeError(f'header arguments is {arguments[:40]!r}; it may be absent or "both".')
    match value:
        case None:
            return [], {}
        case list() | tuple():
            return list(value), {}
        case dict() if all(isinstance(name, str) for name in value):
            return [], dict(value)
        case _:
            return [value], {}
