"""The pages of running jobs and of waiting jobs."""

from collections import Counter

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from palermo.views.facts import facts_of_row
from palermo.webui import tuning
from palermo.webui.filters import LISTED, PageNumber, checked_depth, known_names, state_filter
from palermo.webui.render.facets import facets
from palermo.webui.render.rendering import page, path
from palermo.webui.site import Visiting
from palermo.webui.state.live_state import live_state, running_jobs, totals_of
from palermo.webui.state.search import search_soon
from palermo.webui.threads import Router

router = Router()


@router.get("/running", name="running", dependencies=[known_names(*LISTED)])
def running(request: Request, visit: Visiting) -> Response:
    """Show running jobs, longest running first."""
    wanted = state_filter(request.query_params)
    snapshot = live_state(visit.site).snapshot()
    found = [row for row in running_jobs(snapshot) if wanted.filter.matches(facts_of_row(row))]
    return page(
        request,
        "running.html",
        asked_for=wanted,
        silent=totals_of(snapshot).silent,
        running=found[: tuning.MANY],
        facets=facets(wanted, {name: Counter(row[name] or "" for row in found) for name in ("job", "queue", "worker")}),
        total=len(found),
    )


@router.get("/waiting", name="waiting", dependencies=[known_names(*LISTED)])
def waiting(
    request: Request,
    visit: Visiting,
    number: PageNumber = 1,
    depth: int = tuning.DEPTHS[0],
) -> Response:
    """Show queues with waiting jobs; with a filter, the matching jobs among the first of each queue."""
    wanted = state_filter(request.query_params)
    if wanted.filter.everything:
        live = live_state(visit.site)
        return page(
            request,
            "waiting.html",
            asked_for=wanted,
            listed=live.queue_page(live.snapshot(), number=number, waiting=True),
            at=path(request, "waiting") + "?page=",
            found=None,
        )
    filter = replace(wanted.filter, state="waiting")
    found = search_soon(visit, str(filter), filter, limit=tuning.MANY, depth=checked_depth(depth))
    # Not updated live, because each reading holds jobs of the queues for a moment.
    return page(request, "waiting.html", asked_for=wanted, watched=None, listed=None, found=found)
