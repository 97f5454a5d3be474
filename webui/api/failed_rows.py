"""The typed rows and bodies of the API of failed jobs and of long commands on them."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Group(BaseModel):
    """Failures of one kind."""

    fingerprint: str = Field(description="What the filter `group` takes.")
    count: int
    job: str | None
    error: str
    message: str = Field(description="That of the newest.")
    first_seen: str | None
    last_seen: str | None
    id: str = Field(description="The newest of them.")
    history: list[int] = Field(description="How many failed in each part of the whole time, oldest part first.")


class Groups(BaseModel):
    """A page of groups."""

    rows: list[Group]
    total: int
    page: int
    limit: int


class Filter(BaseModel):
    """A filter for failed jobs: every given condition must hold, {} means all. Unknown names are refused."""

    model_config = ConfigDict(extra="forbid")

    queue: str | None = None
    job: str | None = None
    error: str | None = None
    text: str | None = None
    since: str | None = None
    until: str | None = None
    group: str | None = None


class Chosen(BaseModel):
    """The failed jobs that are meant: either by id or by a filter."""

    model_config = ConfigDict(extra="forbid")

    ids: list[str] | None = Field(default=None, max_length=10_000)
    filter: Filter | None = None


class ChosenForRequeue(Chosen):
    """The failed jobs that are meant, and the queue for them if it is not their own."""

    queue: str | None = None


class Change(BaseModel):
    """Changes to a job that is requeued."""

    model_config = ConfigDict(extra="forbid")

    args: list[Any] | None = Field(default=None, description="Other positional arguments.")
    kwargs: dict[str, Any] | None = Field(default=None, description="Other named arguments.")
    queue: str | None = Field(default=None, description="Another queue than the one it came from.")


class OperationRow(BaseModel):
    """A long command on failed jobs."""

    id: str
    action: Literal["requeue", "discard"]
    status: Literal["waiting", "running", "done", "stopped", "failed"]
    by: str
    about: str
    expected: int | None = Field(description="How many jobs were meant, where that was known.")
    taken: int = Field(description="How many left `failed`.")
    gone: int = Field(description="How many of those meant were not there any more.")
    seen: int = Field(description="How many failed jobs it went through so far.")
    total: int = Field(description="How many it has to go through.")
    asked_at: str
    ended_at: str | None
    outcome: str | None = Field(description="What it came to, in a sentence; null while it goes on.")
    problems: list[str]


class Operations(BaseModel):
    """The long commands that are running or waiting."""

    rows: list[OperationRow]
    total: int
    page: int
    limit: int
