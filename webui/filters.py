"""Filters of jobs and of actions as they are in addresses and in the API's bodies."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from fastapi import Depends
from msgspec import Struct
from starlette.requests import Request

from palermo.contract import clock
from palermo.core.conditions import check_condition
from palermo.core.failure import printable
from palermo.core.text import nearest
from palermo.core.times import parse_instant, unix_seconds
from palermo.views.filter import NAMES, AuditFilter, JobFilter, filter_of, parse_moment, written
from palermo.webui.site import Refused

#: The conditions on failed jobs and on finished ones, by their names in an address, and those on actions.
FAILED = (*NAMES, "text", "since", "until", "group", "requeued")
HISTORY = ("queue", "job", "error", "worker", "state", "text", "since", "until", "longer", "shorter")
AUDIT = AuditFilter.__struct_fields__

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


def asked_filter(given: Mapping[str, str | float | bool | None]) -> JobFilter:
    """The filter that these values ask for, each as it is given; None is none. Raises OptionInvalid."""
    return filter_of({name: _text(value) for name, value in given.items() if value is not None}, _now())


def _text(value: str | float | bool) -> str:
    """The value of a condition, as it is written in a filter; a number is an instant in Unix seconds."""
    match value:
        case str():
            return printable(value)
        case bool():
            return str(value).lower()
        case _:
            return f"@{value!r}"


def filter_query(filter: JobFilter, **more: object) -> str:
    """The filter with exact instants, and the values in `more`, as the query of an address."""
    return urlencode([*((name, value) for name, value in more.items() if value not in (None, "")), *written(filter)])


def requested_filter(given: Mapping[str, str], names: Iterable[str]) -> RequestedFilter[JobFilter]:
    """The filter for jobs in these texts of an address. Blank texts are ignored. Raises OptionInvalid."""
    texts = {name: field_text(name, given.get(name)) for name in names}
    return RequestedFilter(filter_of({name: text for name, text in texts.items() if text}, _now()), texts)


def field_text(name: str, text: str | None) -> str:
    """The text in the field of a filter; "" for none and for blanks. A name loses the blanks around it, `text` not."""
    given = printable((text or "")[:1_000])
    return given if name == "text" and not given.isspace() else given.strip()


def audit_filter(given: Mapping[str, str | None]) -> RequestedFilter[AuditFilter]:
    """The filter for actions in these texts. Blank texts are ignored. Raises OptionInvalid."""
    texts = {name: field_text(name, given.get(name)) for name in AUDIT}
    asked = {name: text for name, text in texts.items() if text}
    return RequestedFilter(filter_of(asked, _now(), AuditFilter), texts)


def only_one(**names: str | None) -> dict[str, str]:
    """The queue, job or worker that statistics are of; empty for all. Raises Refused (422) if there are several."""
    chosen = {by: name for by, name in names.items() if name}
    if len(chosen) > 1:
        raise Refused(422, f"choose a queue, a job or a worker for statistics, not {' and '.join(chosen)} at once.")
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
    now = _now()
    first, last = parse_moment(since, "since", now), parse_moment(until, "until", now) if until else now
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


def _now() -> float:
    # Whole seconds, so that requests for the same address within a second can share one count.
    return float(int(clock.now()))


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
