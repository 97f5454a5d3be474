"""The settings file: the first one found going up from the current directory, palermo.toml or pyproject.toml."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from palermo.errors import SettingInvalid

#: Every form in which the table [tool], or [tool.palermo], may begin in a pyproject.toml.
_MENTIONED = re.compile(rb"""tool["']?\s*(\]|=|\.\s*["']?palermo)""")


def from_file() -> Iterator[tuple[str, str, Any]]:
    """The settings in the settings file: source, name, value."""
    try:
        start = Path.cwd()
    except OSError:  # the current directory has been removed
        return
    for directory in (start, *start.parents):
        for path, inside in ((directory / "palermo.toml", ()), (directory / "pyproject.toml", ("tool", "palermo"))):
            table = _table(path, inside)
            if table is not None:
                yield from ((str(path), name, _anchored(name, value, directory)) for name, value in table.items())
                return


def _table(path: Path, inside: Iterable[str]) -> Mapping[str, Any] | None:
    """The table of settings in a file; None if the file is not there or has none."""
    if not os.path.isfile(path):  # returns False where we may not even look, unlike Path.is_file
        return None
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingInvalid(f"settings file {path} cannot be read: {error.strerror}.") from None
    if inside and not _MENTIONED.search(data):
        return None
    import tomllib  # only for those who have settings in a file: it takes longer to import than all else here

    try:
        found: Any = tomllib.loads(data.decode())
    except ValueError as error:  # not UTF-8, or not TOML
        if inside and b"tool.palermo" not in data:
            return None  # another tool's broken file is for that tool to report
        raise SettingInvalid(f"settings file {path} is not TOML: {error}. Mend it.") from None
    for name in inside:
        found = found.get(name) if isinstance(found, Mapping) else None
        if found is None:
            return None
    if not isinstance(found, Mapping):
        raise SettingInvalid(f"tool.palermo in {path} is not a table. Write [tool.palermo].")
    return found


def _anchored(name: str, value: Any, directory: Path) -> Any:
    """A setting from a file: a relative path in it counts from the file, wherever below it the program starts."""
    if name == "url" and isinstance(value, str) and value.startswith("sqlite:///"):
        path = value.removeprefix("sqlite:///")
        if path and not path.startswith(("/", ":memory:")):
            return f"sqlite:///{quote(directory.as_posix())}/{path}"
    if name == "web_users" and isinstance(value, str) and value not in ("", "none"):
        return str(directory / value)
    return value
