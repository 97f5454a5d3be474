"""`dataclass` as the standard library has it, at a tenth of its price: nothing is compiled before it is needed.

The library writes six functions as text for each frozen class, and compiles them as the class is made. A worker
imports a hundred such classes before its first job, and makes instances of thirty. Here all classes share the
functions that differ in nothing but names, and `__init__` is written when the first instance is made. What else the
library does is left to it: fields(), replace() and patterns work as ever. A type checker sees the library's own.
"""

import dataclasses
import operator
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, fields
from functools import partial
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        cls=None, /, *, frozen=False, slots=False, kw_only=False, eq=True, order=False, repr=True
    ):  # the types are the library's
        """The library's decorator, for classes of one kind of parameter each and without InitVar."""
        if cls is None:
            return partial(dataclass, frozen=frozen, slots=slots, kw_only=kw_only, eq=eq, order=order, repr=repr)
        # A class that defines __eq__ alone has None for __hash__, which is none of its own.
        own = {name for name in ("__init__", "__repr__", "__eq__", "__hash__") if vars(cls).get(name) is not None}
        made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)
        functions = {"__init__": _unwritten(made, frozen=frozen)}
        if repr:
            functions["__repr__"] = _repr
        if eq:
            functions |= _compared(made, order=order)
            functions["__hash__"] = _hash(made) if frozen else None
        if frozen:
            functions |= _FROZEN | (_COPIED if slots else {})
        for name, function in functions.items():
            if name not in own:
                setattr(made, name, function)
        return made


def prepare(*classes: type) -> None:
    """Write the `__init__` of these now: before a fork, so that the processes share it, and none has a compiler."""
    for cls in classes:
        cls.__init__ = _write_init(cls, frozen="__setattr__" in vars(cls))  # type: ignore[misc]


def _unwritten(cls: type, *, frozen: bool) -> Callable[..., None]:
    """An `__init__` that writes the true one, and puts that in its place."""

    def __init__(self: object, *args: Any, **kwargs: Any) -> None:
        written = _write_init(cls, frozen=frozen)
        cls.__init__ = written  # type: ignore[misc]
        written(self, *args, **kwargs)

    return __init__


def _write_init(cls: type, *, frozen: bool) -> Callable[..., None]:
    known: dict[str, Any] = {"_set": object.__setattr__, "_MISSING": MISSING}
    parameters, lines = ["self"], []
    for each in fields(cls):
        name, value = each.name, each.name
        if each.kw_only and "*" not in parameters:
            parameters.append("*")
        if each.default is not MISSING:
            known[f"_default_{name}"] = each.default
            parameters.append(f"{name}=_default_{name}")
        elif each.default_factory is not MISSING:
            known[f"_make_{name}"] = each.default_factory
            parameters.append(f"{name}=_MISSING")
            value = f"_make_{name}() if {name} is _MISSING else {name}"
        else:
            parameters.append(name)
        lines.append(_setting(cls, name, value, known) if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    exec(f"def __init__({', '.join(parameters)}):\n  " + "\n  ".join(lines or ["pass"]), known)
    written: Callable[..., None] = known["__init__"]
    written.__qualname__ = f"{cls.__qualname__}.__init__"
    written.__module__ = cls.__module__
    return written


def _setting(cls: type, name: str, value: str, known: dict[str, Any]) -> str:
    """The line that sets a field of a frozen instance: by its slot, which is the quicker, if it has one."""
    slot = getattr(cls, name, None)
    if not isinstance(slot, MemberDescriptorType):
        return f"_set(self, {name!r}, {value})"
    known[f"_set_{name}"] = slot.__set__
    return f"_set_{name}(self, {value})"


def _values(names: list[str]) -> Callable[[object], tuple[Any, ...]]:
    """The values of these fields, as one tuple."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _compared(cls: type, *, order: bool) -> dict[str, Callable[[Any, Any], Any]]:
    values = _values([each.name for each in fields(cls) if each.compare])

    def by(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
        def compared(self: object, other: object) -> Any:
            return compare(values(self), values(other)) if other.__class__ is self.__class__ else NotImplemented

        return compared

    operators = ("__eq__", "__lt__", "__le__", "__gt__", "__ge__") if order else ("__eq__",)
    return {name: by(getattr(operator, name)) for name in operators}


def _hash(cls: type) -> Callable[[object], int]:
    hashed = [each.name for each in fields(cls) if (each.compare if each.hash is None else each.hash)]
    values = _values(hashed)
    return lambda self: hash(values(self))


def _repr(self: Any) -> str:
    shown = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({shown})"


def _refuse_to_set(self: object, name: str, value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: object, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for each, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)


_FROZEN = {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}

#: With slots, what lets a frozen instance be copied and pickled all the same.
_COPIED = {"__getstate__": _state, "__setstate__": _restore}
