"""The origin of a job or hook, which distinguishes a second definition from a repeated execution of the first.

A module may be executed more than once, for example by `importlib.reload` or by running a notebook cell again.
"""

import inspect
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct


class Origin(Struct, frozen=True, eq=False):
    """The source location of a function or class, and which execution of its module created it."""

    #: The file of its module, or the module's name if it has no file.
    file: str
    #: Its name in the module.
    name: str
    #: The file and line of its source; line 0 if unknown.
    source: tuple[str, int]
    #: The variables of its module.
    space: Mapping[str, Any]
    #: The module's spec, or the file of a script. It is a new object after each reload, and None in a shell or
    #: notebook.
    loaded: object

    @classmethod
    def of(cls, code: Any) -> "Origin":
        """Return the origin of a function, a class, or another callable object."""
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
        """The location as text for error messages."""
        line = self.source[1]
        return f"{self.name} in {f'line {line} of ' if line else ''}{self.file}"

    def is_same_name(self, other: "Origin") -> bool:
        """Whether both have the same name in the same module, in any execution."""
        return (self.file, self.name) == (other.file, other.name)

    def is_written_beside(self, other: "Origin") -> bool:
        """Whether both were created on different lines of one file in the same execution.

        False in a shell or notebook, where a new definition replaces the old one.
        """
        executed_once = self.space is other.space and self.loaded is not None and self.loaded is other.loaded
        return executed_once and self.source[0] == other.source[0] and self.source[1] != other.source[1]


def variables_of(code: Any) -> Mapping[str, Any]:
    """Return the global variables of the module that defines a callable object."""
    if isinstance(code, types.FunctionType):
        inner: Any = inspect.unwrap(code)  # a wrapper has the globals of its own module
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
    # Before Python 3.13 classes have no line number, so the line of the first method is used.
    return written.co_filename, getattr(code, "__firstlineno__", written.co_firstlineno)


def signature_of(code: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function or class, even if an annotation is imported only for type checkers.

    From Python 3.14 on, such an annotation needs no quotes, and evaluating it raises NameError.
    """
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(code, annotation_format=Format.FORWARDREF)
    return inspect.signature(code)
