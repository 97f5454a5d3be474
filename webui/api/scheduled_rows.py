"""Which scheduled jobs are meant, and what became of them, typed."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from palermo.webui.api.rows import Instant

_NAME = Field(default=None, max_length=1_000, description="May hold `*` and `?`.")


class Names(BaseModel):
    """All of it at once; {} for all. A name that is no filter is refused."""

    model_config = ConfigDict(extra="forbid", strict=True)

    queue: str | None = _NAME
    job: str | None = _NAME


class ScheduledFilter(Names):
    """Which scheduled jobs, all of it at once; {} for all. A name that is no filter is refused."""

    retries: bool | None = Field(default=None, description="Only those that wait to be tried again, or only others.")


class ChosenRetries(BaseModel):
    """Which jobs that wait to be tried again: either by id or by a filter."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ids: list[str] | None = Field(default=None, max_length=10_000)
    filter: Names | None = None


class ChosenScheduled(BaseModel):
    """Which scheduled jobs: either by id or by a filter."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ids: list[str] | None = Field(default=None, max_length=10_000)
    filter: ScheduledFilter | None = None


class Moment(BaseModel):
    """Another instant; one of the two."""

    model_config = ConfigDict(extra="forbid", strict=True)

    at: str | float | None = Field(default=None, description="ISO 8601 with a time zone, or Unix seconds.")
    delay: float | None = Field(default=None, description="Seconds from now.")


class ChosenForMove(ChosenScheduled, Moment):
    """Which scheduled jobs, and to which instant."""


class AlteredRow(BaseModel):
    """What became of one scheduled job."""

    id: str
    state: Literal["cancelled", "enqueued", "moved", "failed", "fired already or not there"] = Field(
        description="Of coming due and being changed exactly one happens: this says which."
    )
    job: str | None
    queue: str | None
    run_at: Instant | None = Field(description="When it was due; for a job that was moved, when it is.")


class AlteredRows(BaseModel):
    """What became of each; for ids of those too that were not there."""

    rows: list[AlteredRow]
    total: int
