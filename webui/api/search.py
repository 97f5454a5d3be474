"""The API for searching jobs in all states."""

from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from palermo.contract import clock
from palermo.contract.row_types import Instant
from palermo.views.filter import parse_filter
from palermo.webui import tuning
from palermo.webui.api.rows import PROBLEM_RESPONSES
from palermo.webui.filters import ALL_DEPTHS, checked_depth
from palermo.webui.site import Refused, Visiting
from palermo.webui.state.search import search as search_jobs
from palermo.webui.threads import Router

router = Router(prefix="/search", tags=["jobs"], responses=PROBLEM_RESPONSES)

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


@router.get("", name="api_search")
def search(
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
        raise Refused(422, "q is empty. Write words or filters, such as queue:mail.")
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
