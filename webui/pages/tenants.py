"""The page of tenants, with the number of jobs that each has waiting in shared queues."""

from typing import Annotated
from urllib.parse import urlencode

from fastapi import Form, Query
from starlette.requests import Request
from starlette.responses import Response

from palermo.core.text import count
from palermo.errors import PalermoError
from palermo.webui import actions, tuning
from palermo.webui.filters import PageNumber, known_names
from palermo.webui.render.rendering import page, path, redirect
from palermo.webui.site import Visiting
from palermo.webui.threads import Router

router = Router()

Text = Annotated[str, Query(max_length=127)]


@router.get("/tenants", name="tenants", dependencies=[known_names()])
def tenants(request: Request, visit: Visiting, queue: Text = "", number: PageNumber = 1) -> Response:
    shared = visit.inspector.tenants.totals()
    chosen = queue or next(iter(shared), "")
    rows, total = [], 0
    if chosen:
        listing = visit.inspector.tenants.list(chosen, offset=(number - 1) * tuning.ROWS, limit=tuning.ROWS)
        rows, total = listing.rows, listing.total or 0
    return page(
        request,
        "tenants.html",
        shared=shared,
        queue=chosen,
        rows=[{**row, "key": nth} for nth, row in enumerate(rows)],
        total=total,
        number=number,
        limit=tuning.ROWS,
        listed=urlencode({"queue": chosen} | ({"page": str(number)} if number > 1 else {})),
    )


@router.post("/tenants/{name:palermo}/clear", name="clear_tenant")
def clear(request: Request, visit: Visiting, name: str, tenant: Annotated[str, Form()]) -> Response:
    """Remove a tenant's waiting jobs. The URL contains the list's query, and the response leads back to the list."""
    to = path(request, "tenants", request.url.query or {"queue": name})
    try:
        removed = actions.clear_tenant(visit, name, tenant)
    except PalermoError as error:
        return redirect(request, to, str(error), level="error")
    return redirect(request, to, f"Removed {count(removed, 'job')} of {tenant} from {name}.")
