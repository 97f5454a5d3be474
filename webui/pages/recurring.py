"""The page of recurring jobs: their times and next runs, a form to add one, and actions on each."""

from typing import Annotated, Any

from fastapi import APIRouter, Form
from starlette.requests import Request
from starlette.responses import Response

from palermo.contract.recurring import MISSED
from palermo.contract.rows import Row
from palermo.core.arguments import preview
from palermo.core.times import parse_duration
from palermo.errors import SerializationError, UsageError
from palermo.webui import actions
from palermo.webui.pages.queues import read_json
from palermo.webui.render.formats import element_key
from palermo.webui.render.rendering import page, path, redirect
from palermo.webui.site import Refused, Visit, Visiting
from palermo.webui.state import listings
from palermo.webui.state.live_state import live_state

router = APIRouter()

#: The initial values of the form that adds a recurring job.
_BLANK = {
    "name": "",
    "job": "",
    "cron": "",
    "every": "",
    "tz": "UTC",
    "queue": "",
    "args": "[]",
    "kwargs": "{}",
    "missed": "once",
}

Text = Annotated[str, Form(max_length=1_000)]
Long = Annotated[str, Form(max_length=100_000)]


@router.get("/recurring", name="recurring")
def recurring(request: Request, visit: Visiting) -> Response:
    """All recurring jobs, by name."""
    return _page(request, visit, _BLANK)


@router.post("/recurring/add", name="add_recurring")
def add(
    request: Request,
    visit: Visiting,
    name: Text = "",
    job: Text = "",
    cron: Text = "",
    every: Text = "",
    tz: Text = "UTC",
    queue: Text = "",
    args: Long = "[]",
    kwargs: Long = "{}",
    missed: Text = "once",
) -> Response:
    """Add a recurring job. Errors are shown beside the form."""
    given = {"name": name, "job": job, "cron": cron, "every": every, "tz": tz, "queue": queue, "missed": missed}
    fields = {key: text.strip() for key, text in given.items()} | {"args": args, "kwargs": kwargs}
    try:
        actions.put_recurring(visit, fields["name"], fields["job"], **_options(fields))
    except (UsageError, SerializationError) as error:
        return _page(request, visit, fields, problem=str(error))
    except Refused as error:
        if error.status_code not in (409, 422):
            raise
        return _page(request, visit, fields, problem=str(error.detail))
    return redirect(request, path(request, "recurring"), f"Added {fields['name']}.")


@router.post("/recurring/{name:palermo}/run", name="run_recurring")
def run(request: Request, visit: Visiting, name: str) -> Response:
    """Enqueue the recurring job now."""
    id = actions.run_recurring(visit, name)
    return redirect(request, path(request, "recurring"), f"Enqueued {name} now, as job {id}.")


@router.post("/recurring/{name:palermo}/enable", name="enable_recurring")
def enable(request: Request, visit: Visiting, name: str) -> Response:
    actions.switch_recurring(visit, name, on=True)
    return redirect(request, path(request, "recurring"), f"Enabled {name}.")


@router.post("/recurring/{name:palermo}/disable", name="disable_recurring")
def disable(request: Request, visit: Visiting, name: str) -> Response:
    actions.switch_recurring(visit, name, on=False)
    text = f"Disabled {name}: it does not run until it is enabled, even if workers restart."
    return redirect(request, path(request, "recurring"), text)


@router.post("/recurring/{name:palermo}/remove", name="remove_recurring")
def remove(request: Request, visit: Visiting, name: str) -> Response:
    actions.remove_recurring(visit, name)
    return redirect(request, path(request, "recurring"), f"Removed {name}.")


def _page(request: Request, visit: Visit, fields: dict[str, str], *, problem: str = "") -> Response:
    failing: dict[str, Any] = {"asked": "add"} if problem else {}
    return page(
        request,
        "recurring.html",
        status=422 if problem else 200,
        rows=[_shown(row) for row in listings.recurring(visit)],
        names={row["name"] for row in live_state(visit.site).snapshot(5.0).queues},
        fields=fields,
        problem=problem,
        missed=MISSED,
        watched={"of": "recurring"},
        here=path(request, "recurring"),
        **failing,
    )


def _shown(row: Row) -> Row:
    """The row with its arguments in one line, and with a key for the ids of page elements."""
    args, kwargs = row["args"], row["kwargs"]
    return {
        **row,
        "key": element_key(row["name"]),
        "preview": None if args is None or kwargs is None else preview(args, kwargs),
    }


def _options(fields: dict[str, str]) -> dict[str, Any]:
    """The fields of the form as options of Inspector.put_recurring. Raises Refused (422)."""
    every = None
    if fields["every"]:
        try:
            every = parse_duration(fields["every"])
        except ValueError:
            raise Refused(422, f"{fields['every'][:40]!r} is no duration: write 30, 5m or 1h30m.") from None
    return {
        "cron": fields["cron"] or None,
        "every": every,
        "tz": fields["tz"] or "UTC",
        "queue": fields["queue"] or None,
        "missed": fields["missed"],
        "args": read_json(fields["args"], list, 'the positional arguments must be a JSON list, such as [1, "a"]'),
        "kwargs": read_json(fields["kwargs"], dict, 'the named arguments must be a JSON object, such as {"n": 1}'),
    }
