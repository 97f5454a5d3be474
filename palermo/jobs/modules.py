"""The modules that contain a program's jobs, and the search in them for a job that isn't declared yet.

Security limit of the search: a message imports a module only if that module is below one that the user named, is a
Python file in that package, and contains the word palermo in its source. Its parent packages are imported too. A
message therefore can't import the standard library, another package, or a script next to the jobs.

An import error is reported in one line. The user's frames are attached as a note (PEP 678), which the command line
prints above that line.
"""

import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import TYPE_CHECKING, TypeVar

from palermo.core.failure import MAX_STACK_TRACE, cut_middle
from palermo.errors import JobNotFound, SettingInvalid
from palermo.settings.settings import make_imports_importable

if TYPE_CHECKING:
    from traceback import TracebackException

_WILDCARDS = "*?["

#: A source file without this word declares no job.
_MENTIONED = b"palermo"


def expand(given: Iterable[str]) -> tuple[str, ...]:
    """Return the modules that these names and patterns match, without duplicates.

    `shop.*` matches the package shop and all modules below it, at any depth; `shop.*.tasks` matches modules below it
    whose names end in `.tasks`. Modules named `__main__` never match, because they are programs. Only the packages
    before the first wildcard are imported. Raises SettingInvalid for a pattern without a match.
    """
    found: dict[str, None] = {}
    for name in given:
        meant = _matching(name) if _is_pattern(name) else (name,)
        found.update(dict.fromkeys(meant))
    return tuple(found)


class JobModules:
    """The modules that the user named, and the search for undeclared jobs below them."""

    def __init__(self, given: Iterable[str]) -> None:
        """`given` are names and patterns, as for `expand`."""
        self._given = tuple(given)

    def load(self, job: str) -> None:
        """Import the module that may declare this job, if it exists within the limit.

        Raises JobNotFound if the import fails.
        """
        parts = job.split(".")
        if not all(part.isidentifier() and not part.startswith("__") for part in parts):
            return
        for length in range(len(parts) - 1, 0, -1):
            module = ".".join(parts[:length])
            if not self._within(module):
                return
            spec = _find(module)
            if spec is None:
                continue
            if module not in sys.modules and _may_declare_jobs(spec):
                _import(module, job)
            return

    def _within(self, module: str) -> bool:
        return any(
            fnmatchcase(module, given) if _is_pattern(given) else module.startswith(f"{given}.")
            for given in self._given
        )


def _is_pattern(name: str) -> bool:
    return any(character in name for character in _WILDCARDS)


def _matching(pattern: str) -> Iterator[str]:
    parts = pattern.split(".")
    root = ".".join(parts[: next(n for n, part in enumerate(parts) if _is_pattern(part))])
    if not root:
        raise SettingInvalid(
            f"the module pattern {pattern!r} does not begin with a package. Write, for example, 'shop.*'."
        )
    spec = _find(root)
    if spec is None or spec.submodule_search_locations is None:
        what = "there is no such module" if spec is None else f"{root} is a module, not a package"
        raise SettingInvalid(f"the module pattern {pattern!r} matches no module: {what}.")
    meant = [name for name in _below(root, spec.submodule_search_locations) if fnmatchcase(name, pattern)]
    if pattern == f"{root}.*":
        meant.insert(0, root)
    if not meant:
        raise SettingInvalid(f"the module pattern {pattern!r} matches no module below {root}.")
    yield from meant


def _below(package: str, locations: Sequence[str]) -> Iterator[str]:
    """Yield the names of all modules below a package, without importing them."""
    for module in sorted(iter_modules(locations, f"{package}."), key=lambda each: each.name):
        if module.name.rpartition(".")[2].startswith("__"):
            continue
        yield module.name
        if module.ispkg and (spec := PathFinder.find_spec(module.name, locations)) is not None:
            yield from _below(module.name, spec.submodule_search_locations or ())


def _find(module: str) -> ModuleSpec | None:
    """Return a module's spec without importing the module or its parents; None if it doesn't exist."""
    top, *names = module.split(".")
    try:
        spec = find_spec(top)
    except ValueError:  # the module has no spec because a program created it
        return None
    for name in names:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(f"{spec.name}.{name}", spec.submodule_search_locations)
    return spec


def _may_declare_jobs(spec: ModuleSpec) -> bool:
    loader = spec.loader
    try:
        return isinstance(loader, SourceFileLoader) and _MENTIONED in loader.get_data(loader.path)
    except OSError:
        return False


def _import(module: str, job: str) -> None:
    try:
        importlib.import_module(module)
    except BaseException as error:  # an import runs user code, which may even call sys.exit()
        raise JobNotFound(
            f"no job {job!r} in this worker: module {module!r}, which may declare it, cannot be imported:"
            f" {type(error).__name__}: {error}"
        ) from error


# -- import them, and report failed imports

E = TypeVar("E", bound=Exception)

#: The folder of Palermo's own code.
_OWN = os.path.dirname(os.path.dirname(__file__)) + os.sep


def import_modules(modules: Iterable[str]) -> None:
    """Import the modules that these names and patterns match, with the current directory on the path.

    Raises SettingInvalid if a module can't be imported.
    """
    given = tuple(modules)
    if given:
        sys.path.insert(0, "")
        make_imports_importable()
    for module in expand(given):
        try:
            importlib.import_module(module)
        except Exception as error:  # a user's module may raise anything
            text = f"module {module!r} cannot be imported: {describe(error)}{import_advice(module, error)}"
            raise with_user_frames(SettingInvalid(text), error) from error


def import_advice(name: str, error: BaseException) -> str:
    """Return advice for an invalid module name or a missing module, or ""."""
    if name.endswith(".py") or "/" in name:
        module = ".".join(part for part in name.removesuffix(".py").split("/") if part.strip("."))
        return f". Give the module name instead of the file: {module}"
    if isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]:
        return ". Start in the folder that contains it, or install it"
    return ""


def describe(error: BaseException) -> str:
    """Describe an error in one line: its class, its text, and the line of the user's code that raised it."""
    from traceback import walk_tb  # for errors only

    # If Palermo raised the error, name the user's line that called it.
    lines = ((frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__))
    places = [f" ({file}, line {line})" for file, line in lines if _is_users(file)]
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' if text else ''}{text}{places[-1] if places else ''}"


def with_user_frames(reported: E, error: BaseException) -> E:
    """Return the error `reported` with the user's frames of `error`, if any, as a note."""
    if text := user_traceback(error):
        reported.add_note(text)
    return reported


def user_traceback(error: BaseException) -> str:
    """Return a traceback without frames of Palermo and the import system; "" if no frames are left."""
    from traceback import TracebackException  # for errors only

    whole = TracebackException.from_exception(error)
    found = _drop_frames(whole)
    lines = whole.format() if found else whole.format_exception_only() if isinstance(error, SyntaxError) else ()
    return cut_middle("".join(lines).rstrip(), MAX_STACK_TRACE)


def _drop_frames(whole: "TracebackException | None") -> bool:
    """Remove frames outside the user's code, also from the causes. Returns whether any are left."""
    if whole is None:
        return False
    kept = whole.stack[:] = [frame for frame in whole.stack if _is_users(frame.filename)]
    return bool(kept) | _drop_frames(whole.__cause__) | _drop_frames(whole.__context__)


def _is_users(file: str) -> bool:
    return not file.startswith(("<frozen", _OWN)) and file != importlib.__file__
