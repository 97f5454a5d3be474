"""The pages of keys: of limits, how many jobs run with each key; of unique jobs, which job has which key."""

from typing import Annotated

from fastapi import APIRouter, Form, Query
from starlette.requests import Request
from starlette.responses import Response

from palermo.webui import actions
from palermo.webui.filters import known_names
from palermo.webui.render.formats import element_key
from palermo.webui.render.rendering import page, path, redirect
from palermo.webui.site import Visiting
from palermo.webui.state import listings

router = APIRouter()

#: Rows on a page.
_LIMIT = 100


@router.get("/limits", name="limits", dependencies=[known_names()])
def limits(
    request: Request,
    visit: Visiting,
    text: Annotated[str, Query(max_length=1_000)] = "",
    number: Annotated[int, Query(alias="page", ge=1, le=10_000)] = 1,
) -> Response:
    """The keys of limited jobs, by name; only those that contain the text, if one is given."""
    listing = listings.limits(visit, text=text, page=number, limit=_LIMIT)
    address = path(request, "limits", {"text": text})
    return page(
        request,
        "limits.html",
        rows=listing.rows,
        total=listing.total,
        number=number,
        limit=_LIMIT,
        text=text,
        at=f"{address}{'&' if text else '?'}page=",
    )


@router.get("/unique", name="unique", dependencies=[known_names()])
def unique(
    request: Request,
    visit: Visiting,
    text: Annotated[str, Query(max_length=1_000)] = "",
    number: Annotated[int, Query(alias="page", ge=1, le=10_000)] = 1,
) -> Response:
    """The keys that jobs have, by name; only those that contain the text, if one is given."""
    listing = listings.keys(visit, text=text, page=number, limit=_LIMIT)
    address = path(request, "unique", {"text": text})
    rows = [{**row, "digest": element_key(row["key"])} for row in listing.rows]
    return page(
        request,
        "unique.html",
        rows=rows,
        total=listing.total,
        number=number,
        limit=_LIMIT,
        text=text,
        at=f"{address}{'&' if text else '?'}page=",
        here=address,
    )


@router.post("/unique/free", name="free_key")
def free(request: Request, visit: Visiting, key: Annotated[str, Form(max_length=1_000)]) -> Response:
    """Take a key from the job that has it."""
    actions.free_keys(visit, [key])
    return redirect(request, path(request, "unique"), f"Freed {key}.")
