"""The typed rows of the journal. Their fields and names are a contract, as those of palermo.contract.rows."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from palermo.webui.api.rows import Instant


class RunError(BaseModel):
    """Why a run failed."""

    model_config = ConfigDict(populate_by_name=True)

    class_: str = Field(alias="class", description="The exception's dotted name.")
    message: str = Field(description="Cut after 2,000 characters; the failed job itself has all of it.")


class FinishedRow(BaseModel):
    """A run that ended. Its job ended with it, except in the state retrying."""

    id: str
    job: str | None = Field(description="Its wire name.")
    queue: str
    state: Literal["done", "failed", "discarded", "cancelled", "retrying"]
    finished_at: Instant | None
    wait: float | None = Field(description="Seconds from when it was enqueued, or due, to its start.")
    took: float | None = Field(description="Seconds that it ran; null where it did not.")
    attempt: int | None = Field(description="Which run it was, from 1.")
    worker: str | None
    error: RunError | None
    reason: str | None = Field(description="Why it was discarded, or who cancelled it.")


class Finished(BaseModel):
    """A page of finished jobs."""

    rows: list[FinishedRow]
    total: int
    page: int
    limit: int


class Step(BaseModel):
    """One record of a job's life. Some kinds have more fields."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    kind: str = Field(description="As in docs/guides/journal.md; `action` for what a person did to it.")
    at: Instant | None


class Life(BaseModel):
    """The journal's records of one job, oldest first."""

    id: str
    rows: list[Step]
    total: int


class ActionRow(BaseModel):
    """An action of a person or a program."""

    at: Instant | None
    by: str | None = Field(description="Who did it.")
    source: str | None = Field(description="By which way: the web, the command line, a program.")
    action: str
    outcome: str | None
    queue: str | None
    count: int | None = Field(description="How many jobs it was about.")
    what: Any = Field(description="What else is told of it.")
    ids: list[str] = Field(description="The jobs it was about, at most 1,000.")


class Actions(BaseModel):
    """A page of actions."""

    rows: list[ActionRow]
    total: int
    page: int
    limit: int
