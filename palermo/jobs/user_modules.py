"""Imports the user's modules, and says why one of them cannot be imported: in one line, and with the user's frames.

The frames are a note of the error (PEP 678). The command line prints notes above the line.
"""

import importlib
import os
import sys
from collections.abc import Iterable
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from palermo.core.failure import MAX_STACK_TRACE, cut_middle
from palermo.errors import SettingInvalid
from palermo.jobs.modules import expand
from palermo.settings.settings import make_imports_importable

if TYPE_CHECKING:
    from traceback import TracebackException

E = TypeVar("E", bound=Exception)

#: The folder of Palermo's own code.
_OWN = os.path.dirname(os.path.dirname(__file__)) + os.sep


def import_modules(modules: Iterable[str]) -> None:
    """Import the modules that these names and patterns mean, with the current directory importable.

    Raises SettingInvalid for one that cannot be imported.
    """
    given = tuple(modules)
    if given:
        sys.path.insert(0, "")
        make_imports_importable()
    for module in expand(given):
        try:
            importlib.import_module(module)
        except Exception as error:  # what a user's module does when imported may raise anything
            text = f"module {module!r} cannot be imported: {describe(error)}{import_advice(module, error)}"
            raise with_user_frames(SettingInvalid(text), error) from error


def import_advice(name: str, error: BaseException) -> str:
    """What to do about a name that is no module's, or that of a module which is not there; else nothing."""
    if name.endswith(".py") or "/" in name:
        module = ".".join(part for part in name.removesuffix(".py").split("/") if part.strip("."))
        return f". Name the module, and not its file: {module}"
    if isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]:
        return ". Start in the folder that holds it, or install it"
    return ""


def describe(error: BaseException) -> str:
    """An error in one line: its class, its text, and the place in the user's code where it was raised."""
    text = " ".join(str(error).split())
    trace, place = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        # An error that our code raises is about the line of the user's that called it.
        if not _is_ours(trace.tb_frame) and not file.startswith("<frozen") and file != importlib.__file__:
            place = f" ({file}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(error).__name__}{': ' if text else ''}{text}{place}"


def with_user_frames(told: E, error: BaseException) -> E:
    """The error `told`, with the traceback of `error` as a note, if there are frames of the user's in it."""
    if text := user_traceback(error):
        told.add_note(text)
    return told


def user_traceback(error: BaseException) -> str:
    """The traceback of an error without the frames of Palermo and of the import system; "" if no others are in it."""
    from traceback import TracebackException  # for errors only

    whole = TracebackException.from_exception(error)
    found = _drop_frames(whole)
    lines = whole.format() if found else whole.format_exception_only() if isinstance(error, SyntaxError) else ()
    return cut_middle("".join(lines).rstrip(), MAX_STACK_TRACE)


def _drop_frames(whole: "TracebackException | None") -> bool:
    """Drop the frames that are not the user's, also of the causes; returns whether any are left."""
    if whole is None:
        return False
    kept = [
        frame
        for frame in whole.stack
        if not frame.filename.startswith(("<frozen", _OWN)) and frame.filename != importlib.__file__
    ]
    whole.stack[:] = kept
    return bool(kept) | _drop_frames(whole.__cause__) | _drop_frames(whole.__context__)


def _is_ours(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] == "palermo" and not module.startswith("palermo.demo.")
