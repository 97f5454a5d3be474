"""Dataclasses and enums on the wire: which of them a job may be given, their names, and a stand-in for display."""

import sys
import typing
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from enum import Enum
from pathlib import PurePath
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True)
class Unrestored:
    """A dataclass or enum value decoded only to be shown: its class stays a name. A large set is one too.

    Serializing it writes what was read, so that arguments can be shown, changed in part, and sent again.
    """

    #: "dataclass" or "enum"; "set", "frozenset" or "dict" for a value that could take long to make.
    kind: str
    #: The dotted name of the class; "" for a value that is neither dataclass nor enum.
    name: str
    #: A dataclass's fields by name; the name of an enum's member (a Flag's number); a list of members, or of pairs.
    value: object

    def __repr__(self) -> str:
        if isinstance(self.value, list) and not self.name:
            return f"<{self.kind} of {len(self.value)}>"
        if isinstance(self.value, dict):
            return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.value.items())})"
        return f"{self.name}.{self.value}"


#: Pass it as `classes` to `Serializer.loads`: then dataclasses and enums come back as Unrestored.
FOR_DISPLAY: Mapping[str, type] = MappingProxyType({})

NO_CLASSES: Mapping[str, type] = MappingProxyType({})


def dotted_name(thing: Any) -> str:
    """`module.QualName` of a class or function, the same in every process.

    A thing defined in `__main__` is named by its module's path: shop.tasks for
    `python -m shop.tasks`, tasks for `python shop/tasks.py`.
    """
    module = str(thing.__module__)
    if module == "__main__":
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec is not None else PurePath(file).stem if file else module
    return f"{module}.{thing.__qualname__}"


def classes_in(hints: Iterable[object]) -> dict[str, type]:
    """The dataclasses and enums that type hints name, by dotted name: a job may be given these.

    Looks into unions, generics, Annotated, NewType, Literal and the fields of dataclasses and typed dicts.
    The hints must be evaluated, as `typing.get_type_hints` returns them. If the hints of a class's fields
    cannot be evaluated (a name imported under TYPE_CHECKING), its fields are left out.
    """
    found: dict[str, type] = {}
    seen: dict[int, object] = {}  # by id, since a hint need not be hashable; it is kept, since an id may be used again
    waiting = list(hints)
    while waiting:
        hint = waiting.pop()
        if id(hint) in seen:
            continue
        seen[id(hint)] = hint
        waiting += typing.get_args(hint)
        if isinstance(hint, Enum):
            waiting.append(type(hint))
        elif isinstance(hint, type):
            if is_dataclass(hint) or issubclass(hint, Enum):
                found[dotted_name(hint)] = hint
            if is_dataclass(hint) or typing.is_typeddict(hint):
                with suppress(NameError, TypeError, AttributeError):
                    waiting += typing.get_type_hints(hint).values()
        else:
            # The type behind a generic, a NewType and a `type` statement.
            named = (getattr(hint, name, None) for name in ("__origin__", "__supertype__", "__value__"))
            waiting += [each for each in named if each is not None]
    return found
