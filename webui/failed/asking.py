"""Filters as people and programs write them: in addresses and in the API's bodies."""

import time
from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from urllib.parse import urlencode

from palermo.config import parse_duration
from palermo.core.failure import printable
from palermo.filters import FailedFilter
from palermo.webui.errors import Refused

#: The names of all filters, as they stand in an address.
FILTERS = tuple(field.name for field in fields(FailedFilter))

_TIMES = ("since", "until")

#: What a foreign job may say of when it failed has no sense, but 64 bits.
_LAST = 2.0**62


def filter_of(asked: Mapping[str, str | None], *, now: float | None = None) -> FailedFilter:
    """The filter that these texts ask for; what is empty asks for nothing. Raises Refused (422)."""
    at = time.time() if now is None else now
    given = {name: printable(text).strip() for name in FILTERS if (text := asked.get(name))}
    values: dict[str, str | float] = {
        name: instant_of(text, name, at) if name in _TIMES else text for name, text in given.items() if text
    }
    return FailedFilter(**values)  # type: ignore[arg-type]


def instant_of(text: str, name: str, now: float) -> float:
    """Unix seconds: of an instant with a zone, of Unix seconds behind an @, or of a duration ago. Raises Refused."""
    try:
        if text.startswith("@"):
            moment = float(text[1:])
        else:
            try:
                moment = now - parse_duration(text)
            except ValueError:
                # A plus sign in an address is a blank.
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


def query_of(filter: FailedFilter, **more: object) -> str:
    """The filter, with exact instants, as the query of an address; with what else stands there."""
    values: list[tuple[str, object]] = [(name, value) for name, value in more.items() if value not in (None, "")]
    for name in FILTERS:
        value = getattr(filter, name)
        if value is not None:
            values.append((name, f"@{value:.0f}" if name in _TIMES else value))
    return urlencode(values)
