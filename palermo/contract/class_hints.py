"""The dataclasses and enums in a job's type hints, by dotted name: a body may be decoded to these."""

import sys
import typing
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any


def dotted_name(thing: Any) -> str:
    """`module.QualName` of a class or function, the same in every process.

    An object defined in `__main__` gets its module's path: shop.tasks for `python -m shop.tasks`, tasks for `python
    shop/tasks.py`.
    """
    module = str(thing.__module__)
    if module == "__main__":
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec is not None else PurePath(file).stem if file else module
    return f"{module}.{thing.__qualname__}"


def classes_in(hints: Iterable[object]) -> dict[str, type]:
    """The dataclasses and enums in type hints, by dotted name: a job may be given these.

    Searches unions, generics, Annotated, NewType, Literal and the fields of dataclasses and typed dicts. The hints must
    be evaluated, as by `typing.get_type_hints`. A class whose own hints can't be evaluated, for example because of an
    import under TYPE_CHECKING, is included without its fields.
    """
    found: dict[str, type] = {}
    seen: dict[int, object] = {}  # By id, since a hint may be unhashable. The hints are kept so that no id is reused.
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
