"""The pages of scheduled jobs, which are due later, and of retries, which have failed and wait for their next try."""

from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from palermo.contract.rows import Listing
from palermo.contract.scheduled import CANCEL, GIVE_UP, MOVE, RUN, ScheduledFilter
from palermo.webui.base.site import Visiting
from palermo.webui.render.rendering import page
from palermo.webui.state import listings
from palermo.webui.state.live_state import live_state
from palermo.webui.state.scheduled_view import PAGE_SIZE, RETRY, StillReading

router = APIRouter()


@dataclass(frozen=True, slots=True)
class JobList:
    """One of the two pages."""

    #: The name of its route, and the value of `of` with which the page's stream watches its list.
    name: str
    title: str
    #: The name of a row, for people.
    noun: str
    #: The actions on its rows.
    actions: tuple[str, ...]


SCHEDULED = JobList("scheduled", "Scheduled", "scheduled job", (RUN, MOVE, CANCEL))
RETRIES = JobList("retries", "Retries", "retrying job", (RETRY, GIVE_UP))
JOB_LISTS = {each.name: each for each in (SCHEDULED, RETRIES)}

#: The options of the choice of kinds on the page of scheduled jobs.
KINDS = (("", "all"), ("no", "not failed before"), ("yes", "to be tried again"))

Name = Annotated[str, Query(max_length=1_000)]
Kind = Annotated[str, Query(max_length=10)]
Number = Annotated[int, Query(alias="page", ge=1, le=10_000)]


@dataclass(frozen=True, slots=True)
class ListFilter:
    """The filter that an address asks for, as it was written."""

    job_list: JobList
    queue: str = ""
    job: str = ""
    retries: str = ""

    @property
    def chosen(self) -> ScheduledFilter:
        """The jobs that the filter means."""
        kind = True if self.job_list is RETRIES else {"yes": True, "no": False}.get(self.retries)
        return ScheduledFilter(queue=self.queue or None, job=self.job or None, retries=kind)

    @property
    def written(self) -> dict[str, str]:
        """The text of each filter by name. Empty texts are ignored."""
        return {"queue": self.queue, "job": self.job, "retries": self.retries}

    @property
    def query(self) -> str:
        """The filter as the query of an address."""
        return urlencode([(name, text) for name, text in self.written.items() if text])


def list_filter(job_list: JobList, given: Any) -> ListFilter:
    """The filter with these texts by name. Unknown names and kinds are ignored."""
    values = {name: str(given.get(name) or "").strip()[:1_000] for name in ("queue", "job")}
    kind = str(given.get("retries") or "")
    return ListFilter(job_list, **values, retries=kind if job_list is SCHEDULED and kind in ("yes", "no") else "")


@router.get("/scheduled", name="scheduled")
def scheduled(
    request: Request, visit: Visiting, queue: Name = "", job: Name = "", retries: Kind = "", number: Number = 1
) -> Response:
    """All jobs that are due later, soonest first."""
    return _page(request, visit, list_filter(SCHEDULED, {"queue": queue, "job": job, "retries": retries}), number)


@router.get("/retries", name="retries")
def retries(request: Request, visit: Visiting, queue: Name = "", job: Name = "", number: Number = 1) -> Response:
    """All jobs that have failed and wait for their next try, soonest first."""
    return _page(request, visit, list_filter(RETRIES, {"queue": queue, "job": job}), number)


def _page(request: Request, visit: Visiting, wanted: ListFilter, number: int) -> Response:
    try:
        listing, reading = listings.scheduled(visit, wanted.chosen, page=number, limit=PAGE_SIZE), False
    except StillReading:
        listing, reading = Listing([], None), True
    live = live_state(visit.site)
    live.recent_jobs.add(listing.rows)
    return page(
        request,
        "scheduled.html" if wanted.job_list is SCHEDULED else "retries.html",
        job_list=wanted.job_list,
        watched={"of": wanted.job_list.name, **wanted.written, "page": number},
        asks=wanted.written,
        query=wanted.query,
        kinds=KINDS,
        names=sorted({row["name"] for row in live.snapshot(5.0).queues} | {row["queue"] for row in listing.rows}),
        rows=listing.rows,
        total=listing.total or 0,
        reading=reading,
        number=number,
        limit=PAGE_SIZE,
        at="?" + (f"{wanted.query}&" if wanted.query else "") + "page=",
    )
