"""The page for searching jobs in all states. Its URL can be saved as a search."""

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from palermo.contract import clock
from palermo.contract.row_types import Instant
from palermo.core.topology import is_made_id
from palermo.errors import OptionInvalid
from palermo.history.listings import life
from palermo.views.filter import CHIPS, Chip, JobFilter, chips, parse_filter
from palermo.webui import tuning
from palermo.webui.filters import ALL_DEPTHS, checked_depth, known_names
from palermo.webui.render.rendering import page, path
from palermo.webui.site import Refused, Visit, Visiting
from palermo.webui.state.job import find_job
from palermo.webui.state.journal_views import journal_views
from palermo.webui.state.search import Group, names, search_soon
from palermo.webui.state.search import search as search_jobs
from palermo.webui.threads import Router

router = Router()

TITLES = {
    "failed": "Failed",
    "retrying": "Retrying",
    "scheduled": "Scheduled",
    "waiting": "Waiting",
    "running": "Running",
    "finished": "Finished",
}

#: The pages that list the jobs of a group.
LISTS = {"failed": "failures", "retrying": "retries", "scheduled": "scheduled", "finished": "history"}


class Link(NamedTuple):
    """A link to another page."""

    text: str
    to: str


@router.get("/search", name="search", dependencies=[known_names()])
def search_page(
    request: Request, visit: Visiting, q: Annotated[str, Query(max_length=1_000)] = "", depth: int = tuning.DEPTHS[0]
) -> Response:
    """Show jobs in all states that match words and filters. If the query is an id, show that job's page."""
    try:
        query, depth = parse_filter(q, clock.now()), checked_depth(depth)
    except (Refused, OptionInvalid) as refused:
        return _page(request, q, problem=str(refused), status=422)
    if query.everything:
        return _page(request, q)
    if query.text and query == JobFilter(text=query.text) and is_made_id(query.text) and _is_known(visit, query.text):
        return RedirectResponse(path(request, "job", id=query.text), status_code=303)
    found = search_soon(visit, q, query, limit=tuning.SOME, depth=depth)
    asked = chips(q)
    return _page(
        request,
        q,
        found=found,
        asked=asked,
        names=names(visit.site, query),
        links={group.state: _links(request, asked, group) for group in found.groups},
    )


def _page(
    request: Request, text: str, *, asked: Sequence[Chip] = (), problem: str = "", status: int = 200, **found: Any
) -> Response:
    known: dict[str, Any] = {"found": None, "names": None, "links": {}, **found}
    return page(
        request,
        "search.html",
        status=status,
        # Not updated live: a search reads many jobs, and is repeated only on request.
        watched=None,
        search_text=text,
        search_problem=problem,
        words=next((chip.value for chip in asked if not chip.name), ""),
        # Each condition with the text of the others.
        parts=[(chip, " ".join(str(other) for other in asked if other != chip)) for chip in asked] if asked[1:] else [],
        chips=CHIPS,
        titles=TITLES,
        limit=tuning.SOME,
        **known,
    )


def _is_known(visit: Visit, id: str) -> bool:
    """Whether this job's page has anything to show."""
    if find_job(visit.site, id).state:
        return True
    views = journal_views(visit.site)
    return views.wait_until_read().ready and bool(life(views.index, views.audit, id))


def _links(request: Request, asked: Sequence[Chip], group: Group) -> list[Link]:
    """Return the pages that list all jobs of a group with the same filter."""

    def to(route: str, text: str, *without: str, **names: str) -> Link:
        kept = " ".join(str(chip) for chip in asked if chip.name not in ("state", *without))
        return Link(text, path(request, route, {"filter": kept}, **names))

    match group.state:
        case "waiting":
            queues = sorted((group.queues or {}).items(), key=lambda each: -each[1])[:5]
            return [to("queue", f"Queue {name}", "queue", name=name) for name, _ in queues]
        case "running":
            return [Link("Workers", path(request, "workers"))]
        case state:
            return [to(LISTS[state], f"All {state} jobs")]


# -- the API

api = Router(prefix="/search", tags=["jobs"])

#: Description of a search's depth.
DEPTH_MEANS = f"Number of jobs to read in each queue and among scheduled jobs: one of {ALL_DEPTHS}."


class FoundError(BaseModel):
    """The error of a job's last failed run."""

    model_config = ConfigDict(populate_by_name=True)

    class_: str = Field(alias="class", description="The exception's dotted name.")
    message: str


class FoundRow(BaseModel):
    """One matching job."""

    id: str
    job: str | None = Field(description="Its wire name.")
    queue: str
    state: str
    preview: str | None = Field(description="The arguments as short text, or why it was discarded.")
    error: FoundError | None
    worker: str | None
    tenant: str | None
    at: Instant | None = Field(description="When it failed, ended, started or was enqueued.")
    run_at: Instant | None = Field(description="When it is due, if it is scheduled.")


class FoundGroup(BaseModel):
    """The jobs in one state."""

    state: str = Field(description="failed, retrying, scheduled, waiting, running, or finished for the history.")
    total: int | None = Field(description="Number of matching jobs among those searched; null if none was searched.")
    rows: list[FoundRow]


class Search(BaseModel):
    """The results of a search, and the places that were not searched."""

    q: str
    groups: list[FoundGroup]
    total: int
    not_searched: list[str] = Field(description="Places that were not searched, as text.")
    deeper: int | None = Field(description="The next larger depth, which searches more; null if there is none.")
    reading: bool = Field(description="Whether some jobs are still being read: repeat the search to find more.")


@api.get("")
def api_search(
    visit: Visiting,
    q: Annotated[str, Query(min_length=1, max_length=1_000)],
    limit: Annotated[int, Query(ge=1, le=tuning.MANY, description="Rows per group.")] = 10,
    depth: Annotated[int, Query(description=DEPTH_MEANS)] = tuning.DEPTHS[0],
) -> Search:
    """Search jobs in all states by words and filters.

    Words are searched in ids, job names, arguments and errors. Filters are `queue:mail`, `job:`, `error:`, `worker:`,
    `tenant:`, `state:`, `since:1h` and `until:1h`. Names match in part, and `*` stands for any characters; `=mail` is
    exactly `mail`.
    """
    query = parse_filter(q, clock.now())
    if query.everything:
        raise Refused(422, '"q" is empty. Write words or filters, such as queue:mail.')
    found = search_jobs(visit, query, limit=limit, depth=checked_depth(depth))
    groups = [{"state": group.state, "total": group.total, "rows": group.rows} for group in found.groups]
    return Search.model_validate(
        {
            "q": q,
            "groups": groups,
            "total": found.total,
            "not_searched": found.unseen,
            "deeper": found.deeper,
            "reading": found.reading,
        }
    )
