"""The pages of running and of waiting jobs, and those that cancel, move and discard many waiting jobs of a queue.

The latter show the number of chosen jobs, ask for confirmation, and act.
"""

from collections.abc import Mapping
from typing import Annotated

from fastapi import Form
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from palermo.inspector.jobs import WaitingJobs
from palermo.views.facts import facts_of_row
from palermo.webui import actions, tuning
from palermo.webui.filters import LISTED, PageNumber, checked_depth, known_names, list_filter, state_filter
from palermo.webui.pages.choice import NAMES, Choosing, check_act, list_query
from palermo.webui.pages.failures import check_typed, outcome_response
from palermo.webui.pages.forms import NO_PROBLEMS, WHOLE, Problems, ShownForm
from palermo.webui.render.facets import facets_of_rows
from palermo.webui.render.rendering import page, path, redirect
from palermo.webui.site import Refused, Visiting
from palermo.webui.state.live_state import live_state, running_jobs, totals_of
from palermo.webui.state.search import search_soon
from palermo.webui.threads import Router

router = Router()

_WHAT = "an action for waiting jobs"


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
        facets=facets_of_rows(wanted, found, ("job", "queue", "worker")),
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
    return page(
        request,
        "waiting.html",
        asked_for=wanted,
        watched=None,
        listed=None,
        found=found,
        facets=facets_of_rows(wanted, found.groups[0].rows, ("job", "queue", "tenant")),
    )


# -- cancel, move and discard


@router.api_route(
    "/queues/{name:palermo}/confirm",
    methods=["GET", "POST"],
    name="confirm_waiting",
    dependencies=[known_names(*NAMES, *LISTED, "newest", "page")],
)
def confirm(request: Request, visit: Visiting, name: str, choice: Choosing) -> Response:
    """Show the number of chosen jobs, and ask for confirmation."""
    check_act(choice.act, actions.ON_WAITING, _WHAT)
    number = len(choice.ids)
    if choice.every:
        # The total count is known; reading a queue for a filter holds its jobs for a moment.
        wanted = list_filter(request.query_params).filter
        size = visit.inspector.queues.size(name)
        number = size if wanted.everything else visit.inspector.jobs.count(name, wanted, depth=tuning.DEPTH)
    if not number:
        said = "No waiting job matches any more." if choice.every else "Select some jobs first."
        return redirect(request, path(request, "queue", list_query(request), name=name), said, level="note")
    return _ask(request, visit, name, choice.act, choice.ids, number)


@router.post("/queues/{name:palermo}/act", name="act_on_waiting")
def act(
    request: Request,
    visit: Visiting,
    name: str,
    act: Annotated[str, Form(max_length=20)],
    id: Annotated[list[str] | None, Form()] = None,
    filter: Annotated[str, Form(max_length=10_000)] = "",
    all: Annotated[bool, Form()] = False,
    number: Annotated[int, Form(ge=0)] = 0,
    typed: Annotated[str, Form(max_length=50)] = "",
    queue: Annotated[str, Form(max_length=500)] = "",
    unserved: Annotated[str, Form(max_length=500)] = "",
) -> Response:
    """Carry out the confirmed action. The query is that of the queue's page, to which the user returns."""
    check_act(act, actions.ON_WAITING, _WHAT)
    ids = list(dict.fromkeys(id or ()))
    if not ids and not all:
        raise Refused(422, "no job is selected. Go back and select at least one.")
    which: WaitingJobs = ids or list_filter({"filter": filter}).filter
    check_typed(typed, number, len(ids))
    problems, to = Problems(), queue.strip() if act == "move" else None
    with problems.at("queue" if act == "move" else WHOLE):
        done = actions.alter_waiting(
            visit,
            act,
            name,
            which,
            to=to,
            unserved=unserved == to,
            expected=number if ids else None,
            wait=tuning.WAIT,
        )
    if problems:
        return _ask(request, visit, name, act, ids, number, to=to or "", unserved=unserved, problems=problems)
    return outcome_response(request, done, path(request, "queue", request.url.query, name=name))


def _ask(
    request: Request,
    visit: Visiting,
    name: str,
    act: str,
    ids: list[str],
    number: int,
    *,
    to: str = "",
    unserved: str = "",
    problems: Mapping[str, str] = NO_PROBLEMS,
) -> Response:
    asked = list_filter(request.query_params)
    filtered = bool(asked.chips and not ids)
    return page(
        request,
        "waiting_confirm.html",
        status=422 if problems else 200,
        form=ShownForm("confirm", {"queue": to, "unserved": unserved}, problems),
        queue=name,
        act=act,
        ids=ids,
        number=number,
        asks=None if ids else asked.text,
        depth=tuning.DEPTH,
        typed=f"{number}" if number > tuning.UNTYPED else "",
        listed=list_query(request),
        back=path(request, "queue", list_query(request), name=name),
        behind=max(0, visit.inspector.queues.size(name) - tuning.DEPTH) if filtered else 0,
    )
