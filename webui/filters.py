"""Filters of jobs and of actions in addresses and in API bodies."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Generic, TypeVar
from urllib.parse import urlencode

from fastapi import Depends, Query
from msgspec import Struct
from starlette.requests import Request

from palermo.contract import clock
from palermo.core.conditions import check_condition
from palermo.core.failure import printable
from palermo.core.text import nearest
from palermo.core.times import parse_instant, unix_seconds
from palermo.views.filter import AuditFilter, Chip, JobFilter, chips, filter_of, parse_moment, written
from palermo.webui import tuning
from palermo.webui.site import Refused

#: The address parameters that select a list's rows. Charts add the instants to such an address.
LISTED = ("filter", "since", "until")
_BOUNDS = LISTED[1:]

#: The filter characters that are not encoded in an address, so that it stays readable.
READABLE = ":=*,@/"

#: The number of the page of a list, as addresses of pages and of the API have it.
PageNumber = Annotated[int, Query(alias="page", ge=1, le=1_000_000_000, description="Page number, from 1.")]

F = TypeVar("F", bound=JobFilter | AuditFilter)


class ListFilter(Struct, Generic[F], frozen=True):
    """The filter in the address of a list."""

    filter: F
    #: Its conditions as written, so that a link for "the last hour" stays one.
    chips: tuple[Chip, ...]

    @property
    def text(self) -> str:
        """The filter as it was written."""
        return " ".join(map(str, self.chips))

    @property
    def query(self) -> str:
        """The filter as the query of an address; "" without conditions."""
        return _query(self.chips)

    @property
    def time(self) -> dict[str, str]:
        """The time bounds as written; "" for none."""
        written = {chip.name: chip.value for chip in self.chips}
        return {name: written.get(name, "") for name in _BOUNDS}

    @property
    def timeless(self) -> str:
        """The filter as written, without the time bounds."""
        return " ".join(str(chip) for chip in self.chips if chip.name not in _BOUNDS)

    def without(self, chip: Chip) -> str:
        """The query of an address without one of the conditions."""
        return _query(each for each in self.chips if each != chip)

    def having(self, **conditions: str) -> str:
        """The query of an address in which these conditions replace those with the same names."""
        kept = [chip for chip in self.chips if chip.name not in conditions]
        return _query([*kept, *(Chip(name, value) for name, value in conditions.items() if value)])


def list_filter(given: Mapping[str, str]) -> ListFilter[JobFilter]:
    """The filter in the query of the address of a list of jobs. Blank texts are ignored. Raises OptionInvalid."""
    return _list_filter(given, JobFilter)


def state_filter(given: Mapping[str, str]) -> ListFilter[JobFilter]:
    """The same for a list of jobs in one state. Raises Refused (422) for a filter with a state, and OptionInvalid."""
    asked = list_filter(given)
    if asked.filter.state:
        raise Refused(422, f"all jobs of this list have the same state. Remove state:{asked.filter.state}.")
    return asked


def audit_filter(given: Mapping[str, str]) -> ListFilter[AuditFilter]:
    """The filter in the query of the address of a list of actions. Raises OptionInvalid."""
    return _list_filter(given, AuditFilter)


def _list_filter(given: Mapping[str, str], kind: type[F]) -> ListFilter[F]:
    texts = {name: printable(given.get(name, "")).strip() for name in LISTED}
    texts = {name: text for name, text in texts.items() if text}
    asked = filter_of(texts, _now(), kind)
    instants = (Chip(name, text) for name, text in texts.items() if name != "filter")
    return ListFilter(asked, (*chips(texts.get("filter", ""), kind), *instants))


def filter_query(filter: JobFilter) -> str:
    """The filter with exact instants as the query of an address; "" for one without conditions."""
    return _query(Chip("" if name == "text" else name, value) for name, value in written(filter))


def _query(chips: Iterable[Chip]) -> str:
    text = " ".join(map(str, chips))
    return urlencode({"filter": text}, safe=READABLE) if text else ""


def asked_filter(given: Mapping[str, str | float | bool | None]) -> JobFilter:
    """The filter with these conditions, without those that are None. Raises OptionInvalid."""
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


def asked_actions(given: Mapping[str, str | None]) -> AuditFilter:
    """The same for actions. Raises OptionInvalid."""
    return filter_of({name: printable(text) for name, text in given.items() if text is not None}, _now(), AuditFilter)


def only_one(**names: str | None) -> dict[str, str]:
    """The queue, job or worker of the statistics; empty for all. Raises Refused (422) if there are several."""
    chosen = {by: name for by, name in names.items() if name}
    if len(chosen) > 1:
        raise Refused(422, f"statistics are for one queue, job or worker, not for a {' and a '.join(chosen)} at once.")
    return chosen


def time_range(since: str | None, until: str | None) -> tuple[float, float] | None:
    """The requested time range, in Unix seconds; None for none.

    Each bound is an instant with a zone or a duration ago; without `until` the range ends now. Raises Refused (422).
    """
    if not since and not until:
        return None
    if not since:
        raise Refused(422, "until is given without since. Give both, or only since for a range up to now.")
    now = _now()
    first, last = parse_moment(since, "since", now), parse_moment(until, "until", now) if until else now
    if not first < min(last, now):
        raise Refused(422, f"since ({since[:40]}) must be earlier than until ({(until or 'now')[:40]}).")
    if last - first > tuning.DAY:
        raise Refused(422, "a range can have at most 24 hours. For more, choose a day, a week or a month.")
    return first, min(last, now)


#: The depths, for people.
ALL_DEPTHS = ", ".join(map(str, tuning.DEPTHS))


def checked_depth(depth: int) -> int:
    """The number of jobs that are read for a filter. Raises Refused (422) for one that is not in tuning.DEPTHS."""
    if depth not in tuning.DEPTHS:
        raise Refused(422, f"depth is {depth}; it must be one of {ALL_DEPTHS}.")
    return depth


# -- the names in an address


def check_names(request: Request, more: Iterable[str] = ()) -> None:
    """Raise Refused (422) for an address parameter that neither its handler nor `more` knows.

    Otherwise a misspelt condition would select more than intended.
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
    """The names that a handler and its dependencies declare."""
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
