"""The page of limits: how many jobs run with each key, and how many are put aside."""

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from palermo.webui.base.site import Visiting
from palermo.webui.render.rendering import page, path
from palermo.webui.state import listings

router = APIRouter()

#: Rows on a page.
_LIMIT = 100


@router.get("/limits", name="limits")
def limits(
    request: Request,
    visit: Visiting,
    text: Annotated[str, Query(max_length=1_000)] = "",
    number: Annotated[int, Query(alias="page", ge=1, le=10_000)] = 1,
) -> Response:
    """The keys of limited jobs, by name; only those that contain the text, if one is given."""
    listing = listings.limits(visit, text=text, page=number, limit=_LIMIT)
    address = f"{path(request, 'limits')}?{urlencode({'text': text})}" if text else path(request, "limits")
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
