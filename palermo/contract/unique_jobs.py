"""The unique jobs that workers announce, for programs that enqueue them without their code.

A worker announces its unique jobs when it starts, and the broker keeps the announcement permanently. So a program that
only knows a job's name computes the same key from its arguments as a program with the code.
"""

import inspect
import math
from collections.abc import Mapping
from typing import Any, Self

from palermo.contract.stored_records import read_record
from palermo.core.plain import Plain
from palermo.core.unique_keys import Key

#: The options that give a job a key, and their additional options; see palermo.jobs.options.ManyOptions.
KEYED_BY = ("unique", "dedupe", "debounce", "throttle")
KEY_OPTIONS = (*KEYED_BY, "on_duplicate", "unique_key")

#: The types of parameter defaults that can be announced.
_PLAIN = (type(None), bool, int, float, str)


class UniqueJob(Plain, frozen=True, kw_only=True, rename={"name": "job"}):
    """A job that is declared unique, debounced or throttled, as known without its code."""

    #: The wire name.
    name: str
    #: The KEY_OPTIONS that it declares, without keys that are functions.
    options: Mapping[str, Any]
    #: Whether a function in its code computes the key.
    keyed_by_code: bool = False
    #: For each parameter its name, kind and default value, if any, to which arguments are bound. None if a default
    #: value can't be announced.
    parameters: tuple[tuple[Any, ...], ...] | None = None

    def __post_init__(self) -> None:
        _ = self.signature  # raises ValueError or TypeError for invalid parameters

    @classmethod
    def of(cls, name: str, options: Mapping[str, Any], signature: inspect.Signature) -> Self:
        """The job with this signature, and with those of these options that are among KEY_OPTIONS."""
        key = options.get("unique_key")
        said = {option: value for option, value in options.items() if value is not None and not callable(value)}
        return cls(name=name, options=said, keyed_by_code=callable(key), parameters=_parameters(signature))

    @property
    def signature(self) -> inspect.Signature | None:
        """The signature, without annotations; None if unknown."""
        if self.parameters is None:
            return None
        return inspect.Signature([_parameter(*one) for one in self.parameters])

    @classmethod
    def from_stored(cls, name: str | bytes, stored: Any) -> Self | None:
        """The job in a stored text; None, with a warning, if it cannot be read."""
        remedy = "start a worker with its code"
        return read_record(cls.from_plain, stored, what="the announcement of a unique job", name=name, remedy=remedy)


def stored_key(name: str, stored: Any) -> Key:
    """The key of unique jobs in a stored text; a free one, with a warning, if it cannot be read."""
    return read_record(Key.from_plain, stored, what="a key", name=name, remedy="it is treated as free") or Key(
        name=name
    )


def _parameters(signature: inspect.Signature) -> tuple[tuple[Any, ...], ...] | None:
    found = list[tuple[Any, ...]]()
    for one in signature.parameters.values():
        if one.default is one.empty:
            found.append((one.name, int(one.kind)))
        elif type(one.default) in _PLAIN and not (isinstance(one.default, float) and not math.isfinite(one.default)):
            found.append((one.name, int(one.kind), one.default))
        else:
            return None
    return tuple(found)


def _parameter(name: str, kind: int, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect._ParameterKind(kind), default=default)
