"""Classes on the wire: which a job may be given, how they are named, and what stands for one that is only looked at."""

import sys
import typing
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from enum import Enum
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

from palermo.core.values import dataclass


@dataclass(frozen=True, slots=True)
class Unrestored:
    """A dataclass or enum value that was only looked at: its class stays a name.

    Serializing it writes what was read, so that arguments can be shown, changed in part, and sent again.
    """

    #: "dataclass" or "enum".
    kind: str
    #: The dotted name of the class.
    name: str
    #: The fields by name, or the name of the enum's member (the number, for a Flag).
    value: object

    def __repr__(self) -> str:
        if isinstance(self.value, dict):
            return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.value.items())})"
        return f"{self.name}.{self.value}"


#: Given as `classes` to `Serializer.loads`, makes dataclasses and enums come back as Unrestored.
LOOKING: Mapping[str, type] = MappingProxyType({})

NO_CLASSES: Mapping[str, type] = MappingProxyType({})


def dotted_name(thing: Any) -> str:
    """`module.QualName` of a class or function, as every process knows it.

    What is defined in `__main__` is named by its module's path: shop.tasks for
    `python -m shop.tasks`, tasks for `python shop/tasks.py`.
    """
    module = str(thing.__module__)
    if module == "__main__":
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec is not None else PurePath(file).stem if file else module
    return f"{module}.{thing.__qualname__}"


def classes_in(hints: Iterable[object]) -> dict[str, type]:
    """The dataclasses and enums that type hints name, by dotted name: those a job may be given.

    Looks into unions, generics, Annotated, NewType, Literal and the fields of dataclasses and typed dicts.
    Hints are evaluated ones, as `typing.get_type_hints` returns them; where a field's own
    cannot be evaluated (a name imported under TYPE_CHECKING) the fields of its class are left out.
    """
    found: dict[str, type] = {}
    seen: dict[int, object] = {}  # by id, since a hint need not be hashable, and kept, since an id may come again
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
            # What a generic, a NewType and a `type` statement stand for.
            named = (getattr(hint, name, None) for name in ("__origin__", "__supertype__", "__value__"))
            waiting += [each for each in named if each is not None]
    return found
