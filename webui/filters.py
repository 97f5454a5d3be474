"""Filters of jobs and of actions, and pages of lists, in URLs and API bodies."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import Parameter, Signature
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

#: The URL parameters that select a list's rows. Charts append instants to such a URL.
LISTED = ("filter", "since", "until")
_BOUNDS = LISTED[1:]

#: Filter characters that aren't percent-encoded, so that URLs stay readable.
READABLE = ":=*,@/"

F = TypeVar("F", bound=JobFilter | AuditFilter)
T = TypeVar("T")


# -- the pages of a list

#: The number of a page of a list, in URLs of pages and of the API.
PageNumber = Annotated[int, Query(alias="page", ge=1, le=1_000_000_000, description="Page number, from 1.")]

PageLimit = Annotated[int, Query(ge=1, le=tuning.LIMIT, description="Rows per page.")]


class Paging(Struct, frozen=True):
    """A page of a list: its number, from 1, and the number of rows per page."""

    number: int = 1
    limit: int = tuning.ROWS

    @property
    def offset(self) -> int:
        """The number of rows on earlier pages."""
        return (self.number - 1) * self.limit

    def cut(self, rows: Sequence[T]) -> list[T]:
        """The rows of this page, from those of all pages."""
        return list(rows[self.offset : self.offset + self.limit])


async def _asked_page(page: PageNumber = 1, limit: PageLimit = 100) -> Paging:
    return Paging(page, limit)


#: For handlers of the API.
ApiPage = Annotated[Paging, Depends(_asked_page)]


# -- the filter of a list


class ListFilter(Struct, Generic[F], frozen=True):
    filter: F
    #: Its conditions as written, so that a link for "the last hour" keeps that meaning.
    chips: tuple[Chip, ...]

    @property
    def text(self) -> str:
        return " ".join(map(str, self.chips))

    @property
    def query(self) -> str:
        """The filter as a URL query, or ""."""
        return _query(self.chips)

    @property
    def time(self) -> dict[str, str]:
        """The time bounds as written, with "" for none."""
        written = {chip.name: chip.value for chip in self.chips}
        return {name: written.get(name, "") for name in _BOUNDS}

    @property
    def timeless(self) -> str:
        """The filter as written, without the time bounds."""
        return " ".join(str(chip) for chip in self.chips if chip.name not in _BOUNDS)

    def without(self, chip: Chip) -> str:
        """Return the URL query without one condition."""
        return _query(each for each in self.chips if each != chip)

    def having(self, **conditions: str) -> str:
        """Return the URL query with these conditions added, replacing conditions with the same names."""
        kept = [chip for chip in self.chips if chip.name not in conditions]
        return _query([*kept, *(Chip(name, value) for name, value in conditions.items() if value)])


def list_filter(given: Mapping[str, str]) -> ListFilter[JobFilter]:
    """Parse the filter in the query of a list of jobs. Blank texts are ignored. Raises OptionInvalid."""
    return _list_filter(given, JobFilter)


def state_filter(given: Mapping[str, str]) -> ListFilter[JobFilter]:
    """Like `list_filter`, for a list of jobs in one state. Raises Refused (422) for a filter with a state."""
    asked = list_filter(given)
    if asked.filter.state:
        raise Refused(422, f"all jobs in this list have the same state. Remove state:{asked.filter.state}.")
    return asked


def audit_filter(given: Mapping[str, str]) -> ListFilter[AuditFilter]:
    """Parse the filter in the query of a list of actions. Raises OptionInvalid."""
    return _list_filter(given, AuditFilter)


def _list_filter(given: Mapping[str, str], kind: type[F]) -> ListFilter[F]:
    texts = {name: printable(given.get(name, "")).strip() for name in LISTED}
    texts = {name: text for name, text in texts.items() if text}
    asked = filter_of(texts, _now(), kind)
    instants = (Chip(name, text) for name, text in texts.items() if name != "filter")
    return ListFilter(asked, (*chips(texts.get("filter", ""), kind), *instants))


def filter_query(filter: JobFilter) -> str:
    """Return the filter with exact instants as a URL query, or ""."""
    return _query(Chip("" if name == "text" else name, value) for name, value in written(filter))


def _query(chips: Iterable[Chip]) -> str:
    text = " ".join(map(str, chips))
    return urlencode({"filter": text}, safe=READABLE) if text else ""


#: A condition in a URL of the API.
Condition = Annotated[str | None, Query(max_length=1_000)]


def asked_filter(given: Mapping[str, str | float | bool | None], kind: type[F] = JobFilter) -> F:  # type: ignore[assignment]
    """Return the filter with these conditions, ignoring those that are None. Raises OptionInvalid."""
    return filter_of({name: _text(value) for name, value in given.items() if value is not None}, _now(), kind)


def conditions(*names: str, kind: type[JobFilter | AuditFilter] = JobFilter) -> Any:
    """Return a dependency for an API endpoint with these query parameters: the filter that they make."""

    async def asked(**given: str | bool | None) -> JobFilter | AuditFilter:
        return asked_filter(given, kind)

    kinds = {"requeued": bool | None}
    parameters = (
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kinds.get(name, Condition)) for name in names
    )
    asked.__signature__ = Signature([*parameters])  # type: ignore[attr-defined]
    return Depends(asked)


def _text(value: str | float | bool) -> str:
    """Return a condition's value as text for a filter. A number is an instant in Unix seconds."""
    match value:
        case str():
            return printable(value)
        case bool():
            return str(value).lower()
        case _:
            return f"@{value!r}"


def only_one(**names: str | None) -> dict[str, str]:
    """Return the queue, job or worker of the statistics; empty for all. Raises Refused (422) for several."""
    chosen = {by: name for by, name in names.items() if name}
    if len(chosen) > 1:
        raise Refused(422, f"statistics are for one queue, job or worker, not for a {' and a '.join(chosen)} at once.")
    return chosen


def time_range(since: str | None, until: str | None) -> tuple[float, float] | None:
    """Return the requested time range in Unix seconds, or None.

    Each bound is an instant with a zone, or a duration before now. `until` defaults to now. Raises Refused (422).
    """
    if not since and not until:
        return None
    if not since:
        raise Refused(422, '"until" is given without "since". Give both, or only "since" for a range up to now.')
    now = _now()
    first, last = parse_moment(since, "since", now), parse_moment(until, "until", now) if until else now
    if not first < min(last, now):
        raise Refused(422, f'"since" ({since[:40]}) must be earlier than "until" ({(until or "now")[:40]}).')
    if last - first > tuning.DAY:
        raise Refused(422, "a range can span at most 24 hours. For a longer one, choose a day, a week or a month.")
    return first, min(last, now)


ALL_DEPTHS = ", ".join(map(str, tuning.DEPTHS))


def checked_depth(depth: int) -> int:
    """Return the number of jobs to read for a filter. Raises Refused (422) unless it is in tuning.DEPTHS."""
    if depth not in tuning.DEPTHS:
        raise Refused(422, f'"depth" is {depth}; it must be one of {ALL_DEPTHS}.')
    return depth


# -- the names in a URL


def check_names(request: Request, more: Iterable[str] = ()) -> None:
    """Raise Refused (422) for a URL parameter that neither its handler nor `more` contains.

    Otherwise a misspelt condition would select more than intended.
    """
    known = [*_declared(request.scope["route"].dependant), *more]
    for name in request.query_params:
        if name not in known:
            takes = f"takes {', '.join(known)}" if known else "takes nothing"
            raise Refused(422, f"there is no parameter {name[:80]!r}.{nearest(name, known)} This address {takes}.")


async def check_query(request: Request) -> None:
    """In the API, raise Refused (422) for an unknown name, and OptionInvalid for a blank value."""
    check_names(request)
    for name, value in request.query_params.multi_items():
        check_condition(name, value)


def known_names(*more: str) -> Any:
    """Dependency for a list's URL that raises Refused (422) for an unknown name. The names in `more` are allowed
    too.
    """

    async def check(request: Request) -> None:
        check_names(request, (*more, "ask"))  # `ask` opens a page's dialog

    return Depends(check)


def _declared(dependant: Any) -> Iterator[str]:
    """Yield the names that a handler and its dependencies declare."""
    yield from (each.alias for each in dependant.query_params)
    for other in dependant.dependencies:
        yield from _declared(other)


def _now() -> float:
    # Whole seconds, so that requests for the same URL within a second can share one count.
    return float(int(clock.now()))


def instant_of(value: str | float, name: str) -> float:
    """Return an instant in a body, ISO 8601 with a zone or Unix seconds, as Unix seconds.

    Raises Refused (422), OptionInvalid.
    """
    if not isinstance(value, str):
        return unix_seconds(value)
    try:
        return unix_seconds(parse_instant(value))
    except ValueError as error:
        raise Refused(422, f"{name}: {error}") from None
