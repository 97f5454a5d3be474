"""The typed bodies and rows of the API of scheduled jobs: the jobs that are meant, and the outcome for each."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from palermo.webui.api.rows import Instant

_NAME = Field(default=None, max_length=1_000, description="May hold `*` and `?`.")


class Names(BaseModel):
    """A filter by names: every given condition must hold, {} means all. Unknown names are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)

    queue: str | None = _NAME
    job: str | None = _NAME


class ScheduledFilter(Names):
    """A filter for scheduled jobs: every given condition must hold, {} means all. Unknown names are refused."""

    retries: bool | None = Field(default=None, description="Only those that wait to be tried again, or only others.")


class ChosenRetries(BaseModel):
    """The jobs that wait for a retry and are meant: either by id or by a filter."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ids: list[str] | None = Field(default=None, max_length=10_000)
    filter: Names | None = None


class ChosenScheduled(BaseModel):
    """The scheduled jobs that are meant: either by id or by a filter."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ids: list[str] | None = Field(default=None, max_length=10_000)
    filter: ScheduledFilter | None = None


class Moment(BaseModel):
    """The new instant. Give either at or delay."""

    model_config = ConfigDict(extra="forbid", strict=True)

    at: str | float | None = Field(default=None, description="ISO 8601 with a time zone, or Unix seconds.")
    delay: float | None = Field(default=None, description="Seconds from now.")


class ChosenForMove(ChosenScheduled, Moment):
    """The scheduled jobs that are meant, and their new instant."""


class AlteredRow(BaseModel):
    """The outcome for one scheduled job."""

    id: str
    state: Literal["cancelled", "enqueued", "moved", "failed", "fired already or not there"] = Field(
        description="Of coming due and being changed exactly one happens: this says which."
    )
    job: str | None
    queue: str | None
    run_at: Instant | None = Field(description="When it was due; for a job that was moved, when it is.")


class AlteredRows(BaseModel):
    """The outcome for each job, also for ids that were not there."""

    rows: list[AlteredRow]
    total: int
