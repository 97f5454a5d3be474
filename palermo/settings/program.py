"""The settings that a program's own configuration holds, such as `PALERMO` in the settings of a Django project."""

from collections.abc import Iterator, Mapping
from typing import Any

#: By source: the name that errors give it, and its settings.
_declared: dict[str, dict[str, Any]] = {}


def declare_settings(source: str, values: Mapping[str, Any]) -> None:
    """Have `Settings.load` find these: stronger than a settings file, weaker than variables. Replaces the source's."""
    _declared[source] = dict(values)


def from_program() -> Iterator[tuple[str, str, Any]]:
    """The declared settings: source, name, value."""
    for source, values in list(_declared.items()):
        yield from ((source, name, value) for name, value in values.items())
