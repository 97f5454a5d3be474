"""The API of limits and rates: how many jobs run and wait with each key."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from palermo.webui.api.rows import PROBLEM_RESPONSES, PageLimit, PageNumber
from palermo.webui.base.site import Visiting
from palermo.webui.state import listings

router = APIRouter(prefix="/limits", tags=["limits"], responses=PROBLEM_RESPONSES)

Text = Annotated[str, Query(max_length=1_000, description="Part of a key.")]


class LimitRow(BaseModel):
    """One key of jobs that have a limit or a rate."""

    key: str = Field(description="The job's wire name, and its own key behind a colon.")
    limit: int | None = Field(description="How many may run at once.")
    rate: str | None = Field(description="How often they may run: 50/s.")
    running: int
    waiting: int = Field(description="How many are put aside, as far as that is known.")


class Limits(BaseModel):
    """A page of the keys, by name."""

    rows: list[LimitRow]
    total: int
    page: int
    limit: int


@router.get("", name="api_limits")
def limits(visit: Visiting, text: Text = "", page: PageNumber = 1, limit: PageLimit = 100) -> Limits:
    """The keys of limited jobs that have jobs running or waiting."""
    listing = listings.limits(visit, text=text, page=page, limit=limit)
    return Limits.model_validate({"rows": listing.rows, "total": listing.total, "page": page, "limit": limit})
