"""The signature of a function or class."""

import inspect
import sys
from collections.abc import Callable
from typing import Any


def signature_of(code: Callable[..., Any]) -> inspect.Signature:
    """The signature of a function or class, also if an annotation names what only a type checker imports.

    From Python 3.14 on such a name need not be quoted; asking for the annotations raises NameError unless it may stay.
    """
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(code, annotation_format=Format.FORWARDREF)
    return inspect.signature(code)
