"""The place where a job or a hook was written: it tells code that is written twice from code that is executed twice.

A program may execute the same module again: `importlib.reload` does, and so does a notebook whose cell runs again.
"""

import inspect
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct


class Origin(Struct, frozen=True, eq=False):
    """The place of a function or class in the source, and the execution of its module that made it."""

    #: The file of its module, or the module's name if that has no file.
    file: str
    #: Its name in the module.
    name: str
    #: The file and the line of its source; line 0 if that is not known.
    source: tuple[str, int]
    #: The variables of its module.
    space: Mapping[str, Any]
    #: The module's spec, or the file of a script: another object after each reload. None in a shell and a notebook.
    loaded: object

    @classmethod
    def of(cls, code: Any) -> "Origin":
        """The origin of a function, a class, or another callable object."""
        space = variables_of(code)
        return cls(
            str(space.get("__file__") or space.get("__name__")),
            getattr(code, "__qualname__", "") or repr(code),
            _source(code),
            space,
            space.get("__spec__") or space.get("__file__"),
        )

    @property
    def place(self) -> str:
        """The place, for people."""
        line = self.source[1]
        return f"{self.name} in {f'line {line} of ' if line else ''}{self.file}"

    def is_same_name(self, other: "Origin") -> bool:
        """Whether both have one name in one module, whatever executed it."""
        return (self.file, self.name) == (other.file, other.name)

    def is_written_beside(self, other: "Origin") -> bool:
        """Whether one execution of one file has made both, in different lines.

        False for what is typed into a shell or a notebook, where the new takes the place of the old.
        """
        executed_once = self.space is other.space and self.loaded is not None and self.loaded is other.loaded
        return executed_once and self.source[0] == other.source[0] and self.source[1] != other.source[1]


def variables_of(code: Any) -> Mapping[str, Any]:
    """The variables of the module where a function, a class or another callable object was written."""
    if isinstance(code, types.FunctionType):
        inner: Any = inspect.unwrap(code)  # a wrapper has the globals of the module that it was written in
        found: Mapping[str, Any] = getattr(inner, "__globals__", code.__globals__)
        return found
    name = getattr(code, "__module__", "") or ""
    module = sys.modules.get(name)
    return vars(module) if module else {"__name__": name}


def _source(code: Any) -> tuple[str, int]:
    methods = list(vars(code).values()) if isinstance(code, type) else [inspect.unwrap(code)]
    written = next((found for each in methods if (found := getattr(each, "__code__", None)) is not None), None)
    if written is None:
        return "", 0
    # From Python 3.13 on a class knows its line; before, the line of its first method stands for it.
    return written.co_filename, getattr(code, "__firstlineno__", written.co_firstlineno)


def signature_of(code: Callable[..., Any]) -> inspect.Signature:
    """The signature of a function or class, also if an annotation names what only a type checker imports.

    From Python 3.14 on such a name need not be quoted; asking for the annotations raises NameError unless it may stay.
    """
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(code, annotation_format=Format.FORWARDREF)
    return inspect.signature(code)
