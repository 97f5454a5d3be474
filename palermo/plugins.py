"""What is installed that plugs into Palermo, by entry points; and which version of Palermo itself is.

It is looked for once in a process: a worker would do it five times, and its slots find it in their memory. And it is
looked for here, in the folders that installers leave beside the packages: importlib.metadata takes longer to
import and to answer than anything else in a worker's start. It is asked where there is more than folders.
"""

import os
import pkgutil
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.machinery import PathFinder
from typing import Any, NamedTuple


class Plugin(NamedTuple):
    """One entry point."""

    name: str
    #: `package.module:attribute`.
    value: str

    def load(self) -> Any:
        """What it names. Raises ImportError or AttributeError."""
        return pkgutil.resolve_name(self.value)


def installed(group: str) -> Sequence[Plugin]:
    """What plugs in here, such as `palermo.brokers`; what is installed after the first look is not among it."""
    return _all().get(group, ())


@cache
def version() -> str:
    """Palermo's own version. Raises importlib.metadata.PackageNotFoundError where it runs without being installed."""
    for package, folder in _folders().items() if _has_folders_alone() else ():
        if package == "palermo":
            for line in (_text(folder, "METADATA") or _text(folder, "PKG-INFO")).splitlines():
                if line.startswith("Version:"):
                    return line.partition(":")[2].strip()
    from importlib import metadata

    return metadata.version("palermo")


@cache
def _all() -> dict[str, list[Plugin]]:
    found: dict[str, list[Plugin]] = {}
    if not _has_folders_alone():
        from importlib.metadata import entry_points

        points: Any = entry_points()  # of one class before Python 3.12, of another since
        return {
            group: [Plugin(point.name, _target(point.value)) for point in points.select(group=group)]
            for group in points.groups
        }
    for folder in _folders().values():
        text = _text(folder, "entry_points.txt")
        if "palermo." in text:
            for group, plugin in _read(text):
                found.setdefault(group, []).append(plugin)
    return found


def _has_folders_alone() -> bool:
    """Whether packages are nowhere but in folders: neither in archives nor where finders of others look."""
    others = any(hasattr(finder, "find_distributions") for finder in sys.meta_path if finder is not PathFinder)
    return not others and not any(place.endswith(".egg") or os.path.isfile(place) for place in sys.path)


@cache
def _folders() -> dict[str, str]:
    """What installers left about each package, by its name: the first of those that are there twice."""
    found: dict[str, str] = {}
    for place in sys.path:
        try:
            names = os.listdir(place or ".")
        except OSError:
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                package = re.sub(r"[-_.]+", "_", os.path.splitext(name)[0].partition("-")[0]).lower()
                found.setdefault(package, os.path.join(place, name))
    return found


def _text(folder: str, name: str) -> str:
    """What a file says; "" if there is none."""
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def _read(text: str) -> Iterator[tuple[str, Plugin]]:
    """The entries of one such file, by their groups."""
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1]
        elif line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            yield group, Plugin(name.strip(), _target(value))


def _target(value: str) -> str:
    """What an entry names, without the extras that it may want."""
    return value.partition("[")[0].strip()
