"""Filters for failed jobs, finished jobs and actions, as they stand in addresses and in the API's bodies."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Generic, TypeVar
from urllib.parse import urlencode

from palermo.core.failure import printable
from palermo.core.times import parse_duration, unix_seconds
from palermo.errors import OptionInvalid
from palermo.history.filters import AuditFilter, HistoryFilter
from palermo.inspector.failed_filter import FailedFilter
from palermo.webui.site import Refused

#: The names of all filters, as in an address.
FAILED = tuple(field.name for field in fields(FailedFilter))
HISTORY = tuple(field.name for field in fields(HistoryFilter))
AUDIT = tuple(field.name for field in fields(AuditFilter))

_TIMES = ("since", "until")
_FLAGS = ("requeued",)
_DURATIONS = ("longer", "shorter")

#: The limit for instants. A job of another program may say anything about when it failed, within 64 bits.
_LAST = 2.0**62

F = TypeVar("F")


@dataclass(frozen=True, slots=True)
class RequestedFilter(Generic[F]):
    """The filter in an address."""

    filter: F
    #: The texts as they were written, to be shown in the form.
    written: dict[str, str]

    @property
    def query(self) -> str:
        """The query of an address. Times stay as they were written, so a link for "the last hour" stays one."""
        return urlencode([(name, text) for name, text in self.written.items() if text])


def failed_filter(given: Mapping[str, str | None], *, now: float | None = None) -> FailedFilter:
    """The filter that these texts ask for. Empty texts are ignored. Raises Refused (422)."""
    at = time.time() if now is None else now
    texts = {name: printable(text).strip() for name in FAILED if (text := given.get(name))}
    values: dict[str, str | float] = {
        name: _instant(text, name, at) if name in _TIMES else _flag(text, name) if name in _FLAGS else text
        for name, text in texts.items()
        if text
    }
    return FailedFilter(**values)  # type: ignore[arg-type]


def failed_query(filter: FailedFilter, **more: object) -> str:
    """The filter with exact instants, and the values in `more`, as the query of an address."""
    values: list[tuple[str, object]] = [(name, value) for name, value in more.items() if value not in (None, "")]
    for name in FAILED:
        value = getattr(filter, name)
        if value is not None:
            written = f"@{value:.0f}" if name in _TIMES else str(value).lower() if name in _FLAGS else value
            values.append((name, written))
    return urlencode(values)


def requested_failed_filter(given: Mapping[str, str]) -> RequestedFilter[FailedFilter]:
    """The filter for failed jobs in these texts of an address. Raises Refused (422)."""
    written = {name: given.get(name, "")[:1_000].strip() for name in FAILED}
    return RequestedFilter(failed_filter(written), written)


def history_filter(given: Mapping[str, str | None]) -> RequestedFilter[HistoryFilter]:
    """The filter for finished jobs in these texts. Empty texts are ignored. Raises Refused (422)."""
    written, values = _read(given, HISTORY)
    try:
        return RequestedFilter(HistoryFilter(**values), written)  # type: ignore[arg-type]
    except OptionInvalid as error:
        raise Refused(422, str(error)) from None


def audit_filter(given: Mapping[str, str | None]) -> RequestedFilter[AuditFilter]:
    """The filter for actions in these texts. Raises Refused (422)."""
    written, values = _read(given, AUDIT)
    return RequestedFilter(AuditFilter(**values), written)  # type: ignore[arg-type]


def _read(given: Mapping[str, str | None], names: tuple[str, ...]) -> tuple[dict[str, str], dict[str, str | float]]:
    written = {name: printable((given.get(name) or "")[:1_000]).strip() for name in names}
    # Whole seconds, so that requests for the same address within a second can share one count.
    now = float(int(time.time()))
    values: dict[str, str | float] = {}
    for name, text in written.items():
        if text:
            values[name] = (
                _instant(text, name, now) if name in _TIMES else _seconds(text, name) if name in _DURATIONS else text
            )
    return written, values


def _flag(text: str, name: str) -> bool:
    if text not in ("true", "false"):
        raise Refused(422, f"{name} is {text[:40]!r}: write true or false.")
    return text == "true"


def instant_of(value: str | float, name: str) -> float:
    """Unix seconds of an instant in a body: ISO 8601 with a zone, or Unix seconds.

    Raises Refused (422), OptionInvalid.
    """
    if not isinstance(value, str):
        return unix_seconds(value)
    try:
        return unix_seconds(datetime.fromisoformat(value))
    except ValueError:
        raise Refused(422, f"{name} is {value[:40]!r}, no instant such as 2026-12-01T09:00Z.") from None


def _seconds(text: str, name: str) -> float:
    try:
        return parse_duration(text)
    except ValueError:
        raise Refused(422, f"{name} is {text[:40]!r}: write a duration such as 0.5s, 90s, 5m or 1h30m.") from None


def _instant(text: str, name: str, now: float) -> float:
    """Unix seconds of a text: an instant with a zone, `@` and Unix seconds, or a duration ago. Raises Refused."""
    try:
        if text.startswith("@"):
            moment = float(text[1:])
        else:
            try:
                moment = now - parse_duration(text)
            except ValueError:
                # An unquoted plus sign in an address arrives as a blank.
                found = datetime.fromisoformat(text.replace(" ", "+") if text.count(" ") == 1 else text)
                if found.tzinfo is None:
                    raise ValueError(text) from None
                moment = found.timestamp()
    except (ValueError, OverflowError):
        raise Refused(
            422, f"{name} is {text[:40]!r}: write a duration ago, such as 90s, 5m or 2d, or 2026-12-01T09:00Z."
        ) from None
    if not -_LAST < moment < _LAST:
        raise Refused(422, f"{name} is {text[:40]!r}, which no clock shows.")
    return moment
