"""Filters for failed jobs, finished jobs and actions, as they stand in addresses and in the API's bodies.

The query of a search, words and chips such as `queue:mail`, becomes the same filters.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from fastapi import Depends
from msgspec import Struct, field
from starlette.requests import Request

from palermo.contract import clock
from palermo.core.conditions import check_condition
from palermo.core.failure import printable
from palermo.core.text import nearest
from palermo.core.times import parse_duration, parse_instant, parse_time, unix_seconds
from palermo.errors import OptionInvalid
from palermo.history.filters import STATES, AuditFilter, HistoryFilter
from palermo.inspector.failed_filter import FailedFilter
from palermo.webui.site import Refused

#: The names of all filters, as in an address.
FAILED = FailedFilter.__struct_fields__
HISTORY = HistoryFilter.__struct_fields__
AUDIT = AuditFilter.__struct_fields__

_TIMES = ("since", "until")
_FLAGS = ("requeued",)
_DURATIONS = ("longer", "shorter")

#: The limit for instants. A job of another program may say anything about when it failed, within 64 bits.
_LAST = 2.0**62

F = TypeVar("F")


class RequestedFilter(Struct, Generic[F], frozen=True):
    """The filter in an address."""

    filter: F
    #: The texts as they were written, to be shown in the form.
    written: dict[str, str]

    @property
    def query(self) -> str:
        """The query of an address. Times stay as they were written, so a link for "the last hour" stays one."""
        return urlencode([(name, text) for name, text in self.written.items() if text])


def failed_filter(given: Mapping[str, str | None]) -> FailedFilter:
    """The filter that these texts ask for, each as it is given; None is none. Raises Refused (422), OptionInvalid."""
    at = clock.now()
    texts = {name: printable(text) for name in FAILED if (text := given.get(name)) is not None}
    values: dict[str, str | float] = {
        name: _instant(text, name, at) if name in _TIMES else _flag(text, name) if name in _FLAGS else text
        for name, text in texts.items()
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
    """The filter for failed jobs in these texts of an address. Blank texts are ignored. Raises Refused (422)."""
    written = {name: field_text(name, given.get(name)) for name in FAILED}
    return RequestedFilter(failed_filter({name: text or None for name, text in written.items()}), written)


def field_text(name: str, text: str | None) -> str:
    """The text in the field of a filter; "" for none and for blanks. A name loses the blanks around it, `text` not."""
    given = printable((text or "")[:1_000])
    return given if name == "text" and not given.isspace() else given.strip()


def history_filter(given: Mapping[str, str | None]) -> RequestedFilter[HistoryFilter]:
    """The filter for finished jobs in these texts. Blank texts are ignored. Raises Refused (422)."""
    written, values = _read(given, HISTORY)
    try:
        return RequestedFilter(HistoryFilter(**values), written)  # type: ignore[arg-type]
    except OptionInvalid as error:
        raise Refused(422, str(error)) from None


def audit_filter(given: Mapping[str, str | None]) -> RequestedFilter[AuditFilter]:
    """The filter for actions in these texts. Blank texts are ignored. Raises Refused (422)."""
    written, values = _read(given, AUDIT)
    return RequestedFilter(AuditFilter(**values), written)  # type: ignore[arg-type]


def only_one(**names: str | None) -> dict[str, str]:
    """The queue, job or worker that statistics are of; empty for all. Raises Refused (422) if there are several."""
    chosen = {by: name for by, name in names.items() if name}
    if len(chosen) > 1:
        raise Refused(422, f"statistics are of one queue, job or worker, and not of {' and '.join(chosen)} at once.")
    return chosen


#: The most seconds of statistics from one instant to another: that part of the journal is read for the page.
_MOST_RANGE = 86_400.0


def time_range(since: str | None, until: str | None) -> tuple[float, float] | None:
    """The range of time that an address asks for, in Unix seconds; None for none.

    Each is an instant with a zone or a duration ago; without `until` the range ends now. Raises Refused (422).
    """
    if not since and not until:
        return None
    if not since:
        raise Refused(422, "until is given without since: give both, or since alone for a range up to now.")
    now = float(int(clock.now()))
    first, last = _instant(since, "since", now), _instant(until, "until", now) if until else now
    if not first < min(last, now):
        raise Refused(
            422, f"nothing can be counted from {since[:40]} to {(until or 'now')[:40]}: since must be earlier."
        )
    if last - first > _MOST_RANGE:
        raise Refused(422, "a range has 24 hours at most: for more, choose a day, a week or a month.")
    return first, min(last, now)


# -- the names in an address


def check_names(request: Request, more: Iterable[str] = ()) -> None:
    """Raise Refused (422) for a name in an address that neither its handler nor `more` knows.

    Without it more would be chosen than was meant.
    """
    known = [*_declared(request.scope["route"].dependant), *more]
    for name in request.query_params:
        if name not in known:
            takes = f"takes {', '.join(known)}" if known else "takes nothing"
            raise Refused(422, f"there is no parameter {name[:80]!r}.{nearest(name, known)} This address {takes}.")


async def check_query(request: Request) -> None:
    """For addresses of the API: raise Refused (422) for a name as above, and OptionInvalid for a blank value."""
    check_names(request)
    for name, value in request.query_params.multi_items():
        check_condition(name, value)


def known_names(*more: str) -> Any:
    """A dependency for the address of a list: raises Refused (422) for a name as above. `more` is read without it."""

    async def check(request: Request) -> None:
        check_names(request, (*more, "ask"))  # `ask` opens a dialog of a page

    return Depends(check)


def _declared(dependant: Any) -> Iterator[str]:
    """The names that a handler declares, and those of what it depends on."""
    yield from (each.alias for each in dependant.query_params)
    for other in dependant.dependencies:
        yield from _declared(other)


# -- the query of a search

#: The chips of a search, each with an example and with what it means, for people.
CHIPS: Mapping[str, tuple[str, str]] = {
    "queue": ("mail", "the queue's name; * stands for any letters"),
    "job": ("SendReceipt", "a part of the job's name"),
    "error": ("Timeout", "a part of the name of the error's class"),
    "worker": ("*@web-1", "the worker's id, or with * all workers of a machine"),
    "tenant": ("acme", "the tenant's name"),
    "state": ("failed", "failed, retrying, scheduled, waiting, running, done, discarded or cancelled"),
    "older": ("1h", "it failed, ended, started or else was enqueued longer ago, or before 2026-12-01T09:00Z"),
    "newer": ("15m", "the same, less long ago"),
}

#: The states that a search knows, and the names that the API has for two of them.
SEARCHED_STATES = ("failed", "retrying", "scheduled", "waiting", "running", "done", "discarded", "cancelled")
_SAME_STATES = {"pending": "waiting", "working": "running"}

#: A word of a query: a chip, text in quotes, or text without a blank.
_WORD = re.compile(r'(?:(?P<name>[a-z]+):)?(?:"(?P<quoted>[^"]*)"|(?P<bare>\S+))')


class SearchQuery(Struct, frozen=True, kw_only=True):
    """What a search asks for: all of its words, as one text, and all of its chips."""

    #: The words, with one blank between them; "" for none.
    text: str = ""
    #: The chips, each with its value as it was written.
    chips: Mapping[str, str] = field(default_factory=dict)
    #: Unix seconds: at `since` or later, and at `until` or before.
    since: float | None = None
    until: float | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing is asked for."""
        return not self.text and not self.chips

    def without(self, name: str = "") -> str:
        """The query as text, without one chip, or without its words."""
        chips = [f"{each}:{quoted(value)}" for each, value in self.chips.items() if each != name]
        text = f'"{self.text}"' if ":" in self.text else self.text
        return " ".join([*chips, *([text] if text and name else [])])

    def failed(self) -> RequestedFilter[FailedFilter]:
        """The filter of failed jobs that means the same."""
        return requested_failed_filter(self._texts("queue", "job", "error", "worker", "tenant"))

    def history(self) -> RequestedFilter[HistoryFilter]:
        """The filter of finished jobs that means the same, but for the tenant, which the journal does not hold."""
        state = self.chips.get("state", "")
        texts = self._texts("queue", "job", "error", "worker")
        return history_filter(
            texts | {"state": state if state in STATES and state not in ("failed", "retrying") else ""}
        )

    def _texts(self, *names: str) -> dict[str, str]:
        known = {name: value for name in names if (value := self.chips.get(name))}
        times = {"since": self.chips.get("newer", ""), "until": self.chips.get("older", "")}
        return {"text": self.text, **known, **times}


def search_query(written: str) -> SearchQuery:
    """The query that a text means: words and chips. Raises Refused (422) for a chip that is unknown or has no value."""
    words: list[str] = []
    chips: dict[str, str] = {}
    for found in _WORD.finditer(printable(written)):
        name, value = found["name"], (found["quoted"] or found["bare"] or "").strip()
        if name is None and found["bare"] and value.endswith(":") and value[:-1] in CHIPS:
            raise Refused(
                422, f"{value} has no value. Write {value}{CHIPS[value[:-1]][0]}, without a blank, for example."
            )
        if name is None:
            words.append(value)
        elif name == "pid" or value.startswith("//"):  # a worker's id; https://…
            words.append(found[0])
        elif name not in CHIPS:
            raise Refused(
                422,
                f"there is no filter {name + ':'!r}.{nearest(name, CHIPS)} The filters are {', '.join(CHIPS)}."
                f' To search for the text itself, write it in quotes: "{found[0].replace(chr(34), "")}".',
            )
        elif name in chips:
            raise Refused(422, f"{name}: is there twice, and a job has one. Write * for any letters in a name.")
        elif not value:
            raise Refused(422, f"{name}: has no value. Write {name}:{CHIPS[name][0]}, for example.")
        else:
            chips[name] = value
    if "state" in chips:
        state = chips["state"] = _SAME_STATES.get(chips["state"], chips["state"])
        if state not in SEARCHED_STATES:
            raise Refused(422, f"state:{state[:40]} is no state. The states are {', '.join(SEARCHED_STATES)}.")
    at = clock.now()
    since, until = (_instant(chips[name], name, at) if name in chips else None for name in ("newer", "older"))
    return SearchQuery(text=" ".join(filter(None, words)), chips=chips, since=since, until=until)


def quoted(value: str) -> str:
    """The value of a chip, in quotes if it has a blank."""
    return f'"{value}"' if " " in value else value


def _read(given: Mapping[str, str | None], names: tuple[str, ...]) -> tuple[dict[str, str], dict[str, str | float]]:
    written = {name: field_text(name, given.get(name)) for name in names}
    # Whole seconds, so that requests for the same address within a second can share one count.
    now = float(int(clock.now()))
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
        return unix_seconds(parse_instant(value))
    except ValueError as error:
        raise Refused(422, f"{name}: {error}") from None


def due_of(value: str | float | None, name: str) -> float | None:
    """Unix seconds of the instant from or until which jobs are due: as above, or a duration from now.

    Raises Refused (422), OptionInvalid.
    """
    if not isinstance(value, str):
        return None if value is None else unix_seconds(value)
    try:
        return unix_seconds(parse_time(value, clock.now(), ago=False))
    except ValueError as error:
        raise Refused(422, f"{name}: {error}") from None


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
            # An unquoted plus sign in an address arrives as a blank.
            moment = parse_time(text.replace(" ", "+") if text.count(" ") == 1 else text, now, ago=True)
    except (ValueError, OverflowError):
        raise Refused(
            422, f"{name} is {text[:40]!r}: write a duration ago, such as 90s, 5m or 2d, or 2026-12-01T09:00Z."
        ) from None
    if not -_LAST < moment < _LAST:
        raise Refused(422, f"{name} is {text[:40]!r}, which no clock shows.")
    return moment
