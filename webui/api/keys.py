"""The API of keys: list the keys of limited jobs and of unique jobs, and free keys of unique jobs."""

from typing import Annotated, Literal

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from palermo.webui import actions
from palermo.webui.api.rows import PROBLEM_RESPONSES, Instant, PageLimit, PageNumber, Rows
from palermo.webui.site import Visiting
from palermo.webui.state import listings
from palermo.webui.threads import Router

limits_router = Router(prefix="/limits", tags=["limits"], responses=PROBLEM_RESPONSES)

KeyText = Annotated[str, Query(max_length=1_000, description="Part of a key.")]

router = Router(prefix="/unique", tags=["unique jobs"], responses=PROBLEM_RESPONSES)

Text = Annotated[str, Query(max_length=1_000, description="Part of a key, of a job's name, or of an id.")]


class LimitRow(BaseModel):
    """One key of jobs that have a limit or a rate."""

    key: str = Field(description="The job's wire name, and its own key behind a colon.")
    limit: int | None = Field(description="How many may run at once.")
    rate: str | None = Field(description="How often they may run: 50/s.")
    running: int
    waiting: int = Field(description="How many are put aside, as far as that is known.")


class Limits(Rows[LimitRow]):
    """A page of the keys, by name."""


@limits_router.get("", name="api_limits")
def limits(visit: Visiting, text: KeyText = "", page: PageNumber = 1, limit: PageLimit = 100) -> Limits:
    """The keys of limited jobs that have jobs running or waiting."""
    listing = listings.limits(visit, text=text, page=page, limit=limit)
    return Limits.of(listing.rows, total=listing.total, page=page, limit=limit)


class KeyRow(BaseModel):
    """One key of a unique job."""

    key: str
    id: str | None = Field(description="The job that has it, or because of which it is closed.")
    job: str | None = Field(description="Its wire name.")
    queue: str | None
    unique: Literal["until_start", "until_done", "seconds"] | None = Field(description="How long it has the key.")
    state: Literal["waiting", "running", "closed", "kept"] = Field(
        description="Where it is; closed: no job gets the key; kept: the job is kept until its time."
    )
    worker: str | None = Field(description="Who runs it.")
    since: Instant | None
    until: Instant | None = Field(description="When the key is free by itself.")
    run_at: Instant | None
    next: str | None = Field(description="The job that is enqueued after it.")


class Keys(Rows[KeyRow]):
    """A page of the keys, by name."""


class ToFree(BaseModel):
    """Keys to be freed."""

    model_config = ConfigDict(extra="forbid")

    keys: list[Annotated[str, Field(max_length=1_000)]] = Field(min_length=1, max_length=1_000)


class Freed(BaseModel):
    """The keys that were freed."""

    freed: list[str]


@router.get("", name="api_unique")
def unique(visit: Visiting, text: Text = "", page: PageNumber = 1, limit: PageLimit = 100) -> Keys:
    """The keys that jobs have."""
    listing = listings.keys(visit, text=text, page=page, limit=limit)
    return Keys.of(listing.rows, total=listing.total, page=page, limit=limit)


@router.post("/free", name="api_free_keys")
def free(visit: Visiting, named: ToFree) -> Freed:
    """Take keys from their jobs, even if those run, so that others may be enqueued. Role: operator.

    A waiting job takes its key again when it starts, if the key is free then.
    """
    return Freed(freed=actions.free_keys(visit, named.keys))
