"""Imports the user's modules, and says in one line why one of them cannot be imported."""

import importlib
import sys
from collections.abc import Iterable
from types import FrameType

from palermo.errors import SettingInvalid
from palermo.jobs.modules import expand
from palermo.settings.settings import make_imports_importable


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
            raise SettingInvalid(
                f"module {module!r} cannot be imported: {describe(error)}{import_advice(module, error)}"
            ) from error


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


def _is_ours(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] == "palermo" and not module.startswith("palermo.demo.")
