"""The API for recurring jobs: list, add, remove, enable, disable, run now."""

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from palermo.contract.recurring import SCHEDULED
from palermo.contract.row_types import RecurringRow
from palermo.jobs.options import RECURRING_OPTIONS
from palermo.webui import actions
from palermo.webui.api.jobs import option_fields
from palermo.webui.api.rows import PROBLEM_RESPONSES, Enqueued, Id, Removed, Rows
from palermo.webui.site import Visit, Visiting
from palermo.webui.state import listings
from palermo.webui.threads import Router

router = Router(prefix="/recurring", tags=["recurring"], responses=PROBLEM_RESPONSES)


if TYPE_CHECKING:
    _Times = BaseModel
else:
    _Times = create_model("_Times", **option_fields(name for name in RECURRING_OPTIONS if name in SCHEDULED))


class NewRecurring(_Times):
    """A recurring job to add. Set either cron or every."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=200, description="Its own.")
    job: str = Field(min_length=1, max_length=255, description="The job's wire name, such as shop.tasks.sweep.")
    args: list[Any] = Field(default_factory=list)
    kwargs: dict[str, Any] = Field(default_factory=dict)
    queue: str | None = Field(default=None, description="Else the job's own, or the default one.")
    replace: bool = Field(default=False, description="Whether one that has this name is replaced; else that is 409.")


@router.get("", name="api_recurring")
def recurring(visit: Visiting) -> Rows[RecurringRow]:
    """All recurring jobs, by name."""
    return Rows[RecurringRow].whole(listings.recurring(visit))


@router.post("", name="api_put_recurring", status_code=201)
def put(visit: Visiting, new: NewRecurring) -> RecurringRow:
    """Add a recurring job. Role: operator.

    A replaced job stays disabled if it was. If code or configuration declares the same name, that declaration replaces
    it when such a worker starts.
    """
    actions.put_recurring(visit, **new.model_dump())
    return _row(visit, new.name)


@router.get("/{name:palermo}", name="api_recurring_job")
def one(visit: Visiting, name: Id) -> RecurringRow:
    """One recurring job."""
    return _row(visit, name)


@router.post("/{name:palermo}/run", name="api_run_recurring")
def run(visit: Visiting, name: Id) -> Enqueued:
    """Enqueue it now, even if it is disabled. Its schedule stays the same. Role: operator."""
    row = _row(visit, name)
    return Enqueued(id=actions.run_recurring(visit, name), job=row["job"], queue=row["queue"])


@router.post("/{name:palermo}/enable", name="api_enable_recurring")
def enable(visit: Visiting, name: Id) -> RecurringRow:
    """Enable it, so that it runs on schedule again. Role: operator."""
    actions.switch_recurring(visit, name, on=True)
    return _row(visit, name)


@router.post("/{name:palermo}/disable", name="api_disable_recurring")
def disable(visit: Visiting, name: Id) -> RecurringRow:
    """Disable it until it is enabled again, even after restarts. Role: operator."""
    actions.switch_recurring(visit, name, on=False)
    return _row(visit, name)


@router.delete("/{name:palermo}", name="api_remove_recurring")
def remove(visit: Visiting, name: Id) -> Removed:
    """Remove it. If code or configuration declares it, it is added again when such a worker starts. Role: operator."""
    actions.remove_recurring(visit, name)
    return Removed(removed=1)


def _row(visit: Visit, name: str) -> RecurringRow:
    return listings.recurring_row(listings.recurring(visit), name)
