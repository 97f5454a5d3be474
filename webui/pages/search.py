"""The page of the search over all states of jobs. Its address is the saved search."""

from typing import Annotated, Any, NamedTuple
from urllib.parse import urlencode

from fastapi import Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from palermo.core.topology import is_made_id
from palermo.history.listings import life
from palermo.webui.filters import CHIPS, SearchQuery, known_names, search_query
from palermo.webui.render.rendering import page, path
from palermo.webui.site import Refused, Visit, Visiting
from palermo.webui.state.job import find_job
from palermo.webui.state.journal_views import journal_views
from palermo.webui.state.search import DEPTHS, Group, checked_depth, names, search_soon
from palermo.webui.threads import Router

router = Router()

#: Rows of each group.
LIMIT = 10

#: The groups' titles.
TITLES = {
    "failed": "Failed",
    "retrying": "Retrying",
    "scheduled": "Scheduled",
    "waiting": "Waiting",
    "running": "Running",
    "finished": "Finished",
}

#: The chips that the pages of retries and of scheduled jobs can filter by.
_LISTED = frozenset({"queue", "job", "state"})


class Link(NamedTuple):
    """A link to another page."""

    text: str
    to: str


@router.get("/search", name="search", dependencies=[known_names()])
def search_page(
    request: Request, visit: Visiting, q: Annotated[str, Query(max_length=1_000)] = "", depth: int = DEPTHS[0]
) -> Response:
    """Jobs in all states that match words and chips; the page of the job if the query is its id."""
    try:
        query = search_query(q)
        depth = checked_depth(depth)
    except Refused as refused:
        return _page(request, q, SearchQuery(), problem=refused.detail, status=422)
    if query.empty:
        return _page(request, q, query)
    if not query.chips and is_made_id(query.text) and _is_known(visit, query.text):
        return RedirectResponse(path(request, "job", id=query.text), status_code=303)
    found = search_soon(visit, q, query, limit=LIMIT, depth=depth)
    return _page(
        request,
        q,
        query,
        found=found,
        names=names(visit.site, query),
        links={group.state: _links(request, query, group) for group in found.groups},
    )


def _page(
    request: Request, written: str, query: SearchQuery, *, problem: str = "", status: int = 200, **found: Any
) -> Response:
    known: dict[str, Any] = {"found": None, "names": None, "links": {}, **found}
    parts = [(f"{name}:{value}", query.without(name)) for name, value in query.chips.items()]
    return page(
        request,
        "search.html",
        status=status,
        # Without a stream: a search reads many jobs, and is made again when somebody asks for it.
        watched=None,
        search_text=written,
        search_problem=problem,
        query=query,
        parts=[*parts, *([(query.text, query.without())] if query.text and parts else [])],
        chips=CHIPS,
        titles=TITLES,
        limit=LIMIT,
        **known,
    )


def _is_known(visit: Visit, id: str) -> bool:
    """Whether the page of this job has something to show."""
    if find_job(visit.site, id).state:
        return True
    views = journal_views(visit.site)
    return views.wait_until_read().ready and bool(life(views.index, views.audit, id))


def _links(request: Request, query: SearchQuery, group: Group) -> list[Link]:
    """The pages that list all jobs of a group, filtered in the same way as far as they can."""

    def to(route: str, text: str, asked: str) -> Link:
        return Link(text, path(request, route, asked))

    match group.state:
        case "failed":
            return [to("failures", "Show in Failures", query.failed().query)]
        case "retrying" | "scheduled":
            known = {name: value for name in ("queue", "job") if (value := query.chips.get(name))}
            exact = not query.text and query.chips.keys() <= _LISTED
            route = "retries" if group.state == "retrying" else "scheduled"
            every = "All retries" if route == "retries" else "All scheduled jobs"
            text = f"Show in {route.capitalize()}" if exact else f"{every} of these names" if known else every
            return [to(route, text, urlencode(known if route == "retries" else {**known, "retries": "no"}))]
        case "waiting":
            queues = sorted((group.queues or {}).items(), key=lambda each: -each[1])[:5]
            return [
                Link(f"Queue {name}", path(request, "queue", {"text": query.text}, name=name)) for name, _ in queues
            ]
        case "running":
            return [to("workers", "Workers", "")]
        case _:
            return [to("history", "Show in History", query.history().query)]
