"""Filters of what the journal tells, as people and programs write them: in addresses."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Generic, TypeVar
from urllib.parse import urlencode

from palermo.config import parse_duration
from palermo.core.failure import printable
from palermo.errors import OptionInvalid
from palermo.history.filters import AuditFilter, HistoryFilter
from palermo.webui.errors import Refused
from palermo.webui.failed.asking import instant_of

#: The names of all filters, as they stand in an address.
HISTORY = tuple(field.name for field in fields(HistoryFilter))
AUDIT = tuple(field.name for field in fields(AuditFilter))

_TIMES = ("since", "until")
_DURATIONS = ("longer", "shorter")

F = TypeVar("F")


@dataclass(frozen=True, slots=True)
class Asked(Generic[F]):
    """What an address asks for."""

    filter: F
    #: The same as it was written, to be shown in the form.
    written: dict[str, str]

    @property
    def query(self) -> str:
        """As an address has it; times stay as they were written, so that a link for "the last hour" stays one."""
        return urlencode([(name, text) for name, text in self.written.items() if text])


def history_asked(given: Mapping[str, str | None]) -> Asked[HistoryFilter]:
    """Which finished jobs these texts ask for; what is empty asks for nothing. Raises Refused (422)."""
    written, values = _read(given, HISTORY)
    try:
        return Asked(HistoryFilter(**values), written)  # type: ignore[arg-type]
    except OptionInvalid as error:
        raise Refused(422, str(error)) from None


def audit_asked(given: Mapping[str, str | None]) -> Asked[AuditFilter]:
    """Which actions these texts ask for. Raises Refused (422)."""
    written, values = _read(given, AUDIT)
    return Asked(AuditFilter(**values), written)  # type: ignore[arg-type]


def _read(given: Mapping[str, str | None], names: tuple[str, ...]) -> tuple[dict[str, str], dict[str, str | float]]:
    written = {name: printable((given.get(name) or "")[:1_000]).strip() for name in names}
    # To the second, so that what was counted for an address is of use when it is asked for again.
    now = float(int(time.time()))
    values: dict[str, str | float] = {}
    for name, text in written.items():
        if text:
            values[name] = (
                instant_of(text, name, now) if name in _TIMES else _seconds(text, name) if name in _DURATIONS else text
            )
    return written, values


def _seconds(text: str, name: str) -> float:
    try:
        return parse_duration(text)
    except ValueError:
        raise Refused(422, f"{name} is {text[:40]!r}: write a duration such as 0.5s, 90s, 5m or 1h30m.") from None
