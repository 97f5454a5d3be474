"""The pages of jobs that are due later, and of those that have failed and wait to be tried again."""

from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from palermo.rows import Listing
from palermo.timetable import CANCEL, GIVE_UP, MOVE, RUN, Chosen
from palermo.webui import looks
from palermo.webui.ahead import FIRST, RETRY, StillReading
from palermo.webui.rendering import page
from palermo.webui.site import Visiting
from palermo.webui.watching import watching

router = APIRouter()


@dataclass(frozen=True, slots=True)
class Sheet:
    """One of the two pages."""

    #: The name of its route, and of what `/live` watches for it.
    name: str
    title: str
    #: What its rows are called, for people.
    noun: str
    #: What can be done to its rows.
    actions: tuple[str, ...]


SCHEDULED = Sheet("scheduled", "Scheduled", "scheduled job", (RUN, MOVE, CANCEL))
RETRIES = Sheet("retries", "Retries", "retrying job", (RETRY, GIVE_UP))

#: What the choice of kinds offers on the page of scheduled jobs.
KINDS = (("", "all"), ("no", "not failed before"), ("yes", "to be tried again"))

Name = Annotated[str, Query(max_length=1_000)]
Kind = Annotated[str, Query(max_length=10)]
Number = Annotated[int, Query(alias="page", ge=1, le=10_000)]


@dataclass(frozen=True, slots=True)
class Asked:
    """What an address asks for, as it was written."""

    sheet: Sheet
    queue: str = ""
    job: str = ""
    retries: str = ""

    @property
    def chosen(self) -> Chosen:
        """Which jobs that means."""
        kind = True if self.sheet is RETRIES else {"yes": True, "no": False}.get(self.retries)
        return Chosen(queue=self.queue or None, job=self.job or None, retries=kind)

    @property
    def written(self) -> dict[str, str]:
        """Name and text of each filter; what is empty asks for nothing."""
        return {"queue": self.queue, "job": self.job, "retries": self.retries}

    @property
    def query(self) -> str:
        """As an address has it."""
        return urlencode([(name, text) for name, text in self.written.items() if text])


def asked(sheet: Sheet, given: Any) -> Asked:
    """What was asked for by these names and texts."""
    values = {name: str(given.get(name) or "").strip()[:1_000] for name in ("queue", "job")}
    kind = str(given.get("retries") or "")
    return Asked(sheet, **values, retries=kind if sheet is SCHEDULED and kind in ("yes", "no") else "")


@router.get("/scheduled", name="scheduled")
def scheduled(
    request: Request, visit: Visiting, queue: Name = "", job: Name = "", retries: Kind = "", number: Number = 1
) -> Response:
    """All jobs that are due later, soonest first."""
    return _page(request, visit, asked(SCHEDULED, {"queue": queue, "job": job, "retries": retries}), number)


@router.get("/retries", name="retries")
def retries(request: Request, visit: Visiting, queue: Name = "", job: Name = "", number: Number = 1) -> Response:
    """All jobs that have failed and wait to be tried again, soonest first."""
    return _page(request, visit, asked(RETRIES, {"queue": queue, "job": job}), number)


def _page(request: Request, visit: Visiting, wanted: Asked, number: int) -> Response:
    try:
        listing, reading = looks.scheduled(visit, wanted.chosen, page=number, limit=FIRST), False
    except StillReading:
        listing, reading = Listing([], None), True
    look = watching(visit.site)
    look.seen.rows(listing.rows)
    return page(
        request,
        "scheduled.html" if wanted.sheet is SCHEDULED else "retries.html",
        sheet=wanted.sheet,
        watched=wanted.sheet.name,
        asks=wanted.written,
        query=wanted.query,
        kinds=KINDS,
        names=sorted({row["name"] for row in look.snapshot(5.0).queues} | {row["queue"] for row in listing.rows}),
        rows=listing.rows,
        total=listing.total or 0,
        reading=reading,
        number=number,
        limit=FIRST,
        at="?" + (f"{wanted.query}&" if wanted.query else "") + "page=",
    )
