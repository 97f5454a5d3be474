"""The API for keys of limited and of unique jobs."""

from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from palermo.contract.row_types import KeyRow, LimitRow
from palermo.webui import actions
from palermo.webui.api.rows import PROBLEM_RESPONSES, PageLimit, PageNumber, Rows
from palermo.webui.site import Visiting
from palermo.webui.state import listings
from palermo.webui.threads import Router

limits_router = Router(prefix="/limits", tags=["limits"], responses=PROBLEM_RESPONSES)

KeyText = Annotated[str, Query(max_length=1_000, description="Part of a key.")]

router = Router(prefix="/unique", tags=["unique jobs"], responses=PROBLEM_RESPONSES)

Text = Annotated[str, Query(max_length=1_000, description="Part of a key, of a job's name, or of an id.")]


@limits_router.get("", name="api_limits")
def limits(visit: Visiting, text: KeyText = "", page: PageNumber = 1, limit: PageLimit = 100) -> Rows[LimitRow]:
    """The keys of limited jobs that are running or waiting."""
    listing = listings.limits(visit, text=text, page=page, limit=limit)
    return Rows[LimitRow].of(listing.rows, total=listing.total, page=page, limit=limit)


class ToFree(BaseModel):
    """The keys to free."""

    model_config = ConfigDict(extra="forbid")

    keys: list[Annotated[str, Field(max_length=1_000)]] = Field(min_length=1, max_length=1_000)


class Freed(BaseModel):
    """The keys that were freed."""

    freed: list[str]


@router.get("", name="api_unique")
def unique(visit: Visiting, text: Text = "", page: PageNumber = 1, limit: PageLimit = 100) -> Rows[KeyRow]:
    """The keys held by unique jobs."""
    listing = listings.keys(visit, text=text, page=page, limit=limit)
    return Rows[KeyRow].of(listing.rows, total=listing.total, page=page, limit=limit)


@router.post("/free", name="api_free_keys")
def free(visit: Visiting, named: ToFree) -> Freed:
    """Free keys even if their jobs are running, so that other jobs can be enqueued. Role: operator.

    When a waiting job starts, it takes its key again if that is free.
    """
    return Freed(freed=actions.free_keys(visit, named.keys))
