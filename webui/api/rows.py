"""The rows and errors that several modules of the API share.

The fields and names of all rows of the API are those of palermo.contract.rows, a contract.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field

from palermo.views.filter import JobFilter
from palermo.webui.filters import asked_filter
from palermo.webui.site import Refused
from palermo.webui.state.listings import MAX_DEPTH, MAX_LIMIT

#: The errors that any operation may answer, for the documentation.
PROBLEMS = {
    400: "The request cannot be read, or is for another host.",
    401: "No user, or a wrong password or token.",
    403: "Sent by another site's page, not allowed for this role, or these pages are read-only.",
    404: "There is no such queue, job, worker or address.",
    405: "This address does not take that method.",
    408: "The request took too long to arrive.",
    409: "It cannot be done as things are; the text says why.",
    413: "The request is too large.",
    414: "The address is too long.",
    415: "Changes are taken as application/json only.",
    422: "A value is not allowed; the text says which, and what is.",
    431: "The headers are too large.",
    500: "Something unexpected went wrong; the server's log has more.",
    503: "The broker cannot be reached, or refuses us.",
}


#: ISO 8601 in UTC, kept as text: parsing it and writing it again would change its fractions.
Instant = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class Problem(BaseModel):
    """The answer to a request that failed."""

    error: str = Field(description="What happened, with the value, and what to do about it.")


#: Refers to the schema of Problem. One status names Problem as its `model`, which is enough for the schema: FastAPI
#: makes a field for each model of each operation, and these were two thirds of all.
_PROBLEM = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}

#: The `responses` of every operation.
PROBLEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": text, **({"model": Problem} if status == 500 else {"content": _PROBLEM})}
    for status, text in PROBLEMS.items()
}

#: What the field `unserved` of a body means.
UNSERVED_MEANS = "Whether `queue` is meant although no worker serves it; else that is refused with 409."

#: A condition in an address, and the parts of addresses that are names or ids.
Text = Annotated[str | None, Query(max_length=1_000)]
Id = Annotated[str, Path(max_length=1_000)]

PageNumber = Annotated[int, Query(ge=1, le=MAX_DEPTH, description="Which page, from 1.")]
PageLimit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="How many rows on a page.")]


R = TypeVar("R")

_DUE = "Due then or {}: ISO 8601 with a time zone, Unix seconds, or from now, such as 90s or 2h."


class Filter(BaseModel):
    """A filter of jobs: every given condition must hold, {} means all. Unknown names are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)

    filter: str | None = Field(default=None, description='Several conditions: `error:Timeout since:1h "no answer"`.')
    state: str | None = None
    queue: str | None = None
    job: str | None = None
    error: str | None = None
    worker: str | None = None
    tenant: str | None = None
    text: str | None = None
    since: str | None = None
    until: str | None = None
    due_from: str | float | None = Field(default=None, description=_DUE.format("after"))
    due_until: str | float | None = Field(default=None, description=_DUE.format("before"))
    group: str | None = None
    requeued: bool | None = None


class Chosen(BaseModel):
    """The jobs that are meant: either by id or by a filter."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ids: list[str] | None = Field(default=None, max_length=10_000)
    filter: Filter | None = None

    def meant(self) -> list[str] | JobFilter:
        """The ids, or the filter. Raises Refused (422) for both or none, and OptionInvalid."""
        if self.ids is not None and self.filter is None:
            return self.ids
        if self.filter is not None and self.ids is None:
            return asked_filter(self.filter.model_dump())
        raise Refused(422, 'select the jobs: {"ids": ["…"]}, or {"filter": {}} for all, and not both.')


class Rows(BaseModel, Generic[R]):
    """A page of a list."""

    rows: list[R]
    total: int
    page: int
    limit: int

    @classmethod
    def of(cls, rows: Sequence[Any], *, total: int | None, page: int, limit: int) -> Self:
        """The page with these rows, which are validated."""
        return cls.model_validate({"rows": rows, "total": total, "page": page, "limit": limit})

    @classmethod
    def whole(cls, rows: Sequence[Any]) -> Self:
        """The list as one page."""
        return cls.of(rows, total=len(rows), page=1, limit=len(rows))


class JobError(BaseModel):
    """Why a job failed."""

    model_config = ConfigDict(populate_by_name=True)

    class_: str = Field(alias="class", description="The exception's dotted name.")
    message: str
    traceback: str


class JobAttempt(BaseModel):
    """One failed run of a job."""

    model_config = ConfigDict(populate_by_name=True)

    attempt: int = Field(description="Which run it was, from 1.")
    class_: str = Field(alias="class", description="The exception's dotted name.")
    message: str
    failed_at: Instant | None


class JobRow(BaseModel):
    """One job. Fields that do not apply, or cannot be decoded safely, are null."""

    id: str
    job: str | None = Field(description="Its wire name.")
    queue: str
    state: Literal["pending", "scheduled", "working", "retrying", "failed", "done", "discarded", "cancelled"]
    args: list[Any] | None
    kwargs: dict[str, Any] | None
    preview: str | None = Field(description="The arguments for people, in one line.")
    content_type: str | None
    created_at: Instant | None
    run_at: Instant | None = Field(description="Before when it is not started, or was not.")
    retries: int | None
    failed_at: Instant | None
    error: JobError | None
    attempts: list[JobAttempt] = Field(description="Its tries that failed, oldest first, as far as that is kept.")
    worker: str | None
    priority: int | None = Field(description="What goes first within its queue, from 0 to 9.")
    tenant: str | None
    topic: str | None = Field(default=None, description="Of the event that it handles.")
    parent: str | None = Field(default=None, description="The id of the job that enqueued it while it ran.")
    headers: dict[str, Any] | None = Field(
        default=None, description="The headers of its program's own, and others that Palermo does not know."
    )


class Jobs(Rows[JobRow]):
    """A page of jobs."""

    total: int | None = Field(description="How many there are in all; null where nobody counted.")  # type: ignore[assignment]


class Removed(BaseModel):
    """How many jobs, or other things, were removed."""

    removed: int


class Enqueued(BaseModel):
    """A job that is stored."""

    id: str
    job: str
    queue: str
