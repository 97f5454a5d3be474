"""The pages of keys: of limits, with the number of running jobs, and of unique jobs, with the job that holds each."""

from typing import Annotated, Any

from fastapi import Form, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from palermo.contract.row_types import KeyRow, LimitRow
from palermo.contract.rows import Listing, Row
from palermo.webui import actions, tuning
from palermo.webui.api.rows import Rows
from palermo.webui.filters import ApiPage, PageNumber, Paging, known_names
from palermo.webui.render.formats import element_key
from palermo.webui.render.rendering import listed, page, path, redirect
from palermo.webui.site import Visiting
from palermo.webui.state import listings
from palermo.webui.threads import Router

router = Router()

KeyText = Annotated[str, Query(max_length=1_000, description="Part of a key.")]
Text = Annotated[str, Query(max_length=1_000, description="Part of a key, of a job's name, or of an id.")]


@router.get("/limits", name="limits", dependencies=[known_names()])
def limits(request: Request, visit: Visiting, text: Text = "", number: PageNumber = 1) -> Response:
    """Show the keys of limited jobs by name, or only those that contain the text."""
    paging = Paging(number, tuning.MANY)
    return _page(request, "limits", listings.limits(visit, text, paging), text, paging)


@router.get("/unique", name="unique", dependencies=[known_names()])
def unique(request: Request, visit: Visiting, text: Text = "", number: PageNumber = 1) -> Response:
    """Show the keys of unique jobs by name, or only those that contain the text."""
    paging = Paging(number, tuning.MANY)
    listing = listings.keys(visit, text, paging)
    rows: list[Row] = [{**row, "digest": element_key(row["key"])} for row in listing.rows]
    return _page(request, "unique", Listing(rows, listing.total), text, paging)


def _page(request: Request, route: str, listing: Listing[Any], text: str, paging: Paging) -> Response:
    return page(request, f"{route}.html", text=text, **listed(listing, paging, {"text": text}))


@router.post("/unique/free", name="free_key")
def free(request: Request, visit: Visiting, key: Annotated[str, Form(max_length=1_000)]) -> Response:
    """Free a key. The URL contains the list's query, and the response leads back to the list."""
    actions.free_keys(visit, [key])
    return redirect(request, path(request, "unique", request.url.query), f"Freed {key}.")


# -- the API

limits_api = Router(prefix="/limits", tags=["limits"])

api = Router(prefix="/unique", tags=["unique jobs"])


@limits_api.get("")
def api_limits(visit: Visiting, paging: ApiPage, text: KeyText = "") -> Rows[LimitRow]:
    """The keys of limited jobs that are running or waiting."""
    return Rows[LimitRow].of(listings.limits(visit, text, paging), paging)


class ToFree(BaseModel):
    """The keys to free."""

    model_config = ConfigDict(extra="forbid")

    keys: list[Annotated[str, Field(max_length=1_000)]] = Field(min_length=1, max_length=1_000)


class Freed(BaseModel):
    """The keys that were freed."""

    freed: list[str]


@api.get("")
def api_unique(visit: Visiting, paging: ApiPage, text: Text = "") -> Rows[KeyRow]:
    """The keys held by unique jobs."""
    return Rows[KeyRow].of(listings.keys(visit, text, paging), paging)


@api.post("/free")
def api_free_keys(visit: Visiting, named: ToFree) -> Freed:
    """Free keys even if their jobs are running, so that other jobs can be enqueued. Role: operator.

    When a waiting job starts, it takes its key again if that is free.
    """
    return Freed(freed=actions.free_keys(visit, named.keys))
