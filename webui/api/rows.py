"""Bodies and errors shared by several API modules. Rows are defined in palermo.contract.row_types."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Generic, Self, TypeVar

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field, create_model

from palermo.contract.rows import Listing
from palermo.views.filter import DURATIONS, JobFilter
from palermo.webui.filters import Paging, asked_filter
from palermo.webui.site import Refused

#: The errors that any operation may return, for the documentation.
PROBLEMS = {
    400: "The request is invalid, or for another host.",
    401: "Not signed in, or a wrong password or token.",
    403: "Not allowed for this role, sent by another site, or these pages are read-only.",
    404: "No such queue, job, worker or address.",
    405: "Wrong method for this address.",
    408: "The request took too long to arrive.",
    409: "Not possible in the current state; the text says why.",
    413: "The request is too large.",
    414: "The address is too long.",
    415: "The body is not application/json.",
    422: "A value is invalid; the text says which, and what is allowed.",
    431: "The headers are too large.",
    500: "An unexpected error; see the server's log.",
    503: "The broker cannot be reached, or refuses access.",
}


class Problem(BaseModel):
    """The response to a failed request."""

    error: str = Field(description="What happened, with the value, and what to do about it.")


#: Refers to the schema of Problem. Only one status has Problem as its `model`, because FastAPI creates a field for each
#: model of each operation, and these were two thirds of all fields.
_PROBLEM = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}

#: The `responses` of every operation.
PROBLEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": text, **({"model": Problem} if status == 500 else {"content": _PROBLEM})}
    for status, text in PROBLEMS.items()
}

#: Description of a body's field `unserved`.
UNSERVED_MEANS = "Whether to use `queue` even if no worker serves it; otherwise 409."

#: A part of a URL that is a name or an id.
Id = Annotated[str, Path(max_length=1_000)]

R = TypeVar("R")

_DUE = "Due at this time or {}: ISO 8601 with a time zone, Unix seconds, or a duration from now, such as 90s or 2h."


#: The types of the conditions that are not strings, and the descriptions of some conditions.
_KINDS: dict[str, Any] = {"due_from": str | float, "due_until": str | float, "requeued": bool}
_MEANINGS = {
    "filter": 'Several conditions: `error:Timeout since:1h "no answer"`.',
    "due_from": _DUE.format("after"),
    "due_until": _DUE.format("before"),
}

if TYPE_CHECKING:
    Filter = BaseModel
else:
    #: A body's filter, with the conditions of a JobFilter. Failed, scheduled and waiting jobs have no duration.
    Filter = create_model(
        "Filter",
        __doc__="A filter of jobs. All given conditions must be met; {} matches all jobs. Unknown names are rejected.",
        __config__=ConfigDict(extra="forbid", strict=True),
        **{
            # Not nullable: a program's forgotten variable, written as null, would select all jobs.
            name: (_KINDS.get(name, str), Field(default=None, description=_MEANINGS.get(name)))
            for name in ("filter", *JobFilter.__struct_fields__)
            if name not in DURATIONS
        },
    )


class Chosen(BaseModel):
    """The chosen jobs, either by ids or by a filter."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ids: list[str] | None = Field(default=None, max_length=10_000)
    filter: Filter | None = None

    def meant(self) -> list[str] | JobFilter:
        """Return the ids or the filter. Raises Refused (422) for both or neither, and OptionInvalid."""
        if self.ids is not None and self.filter is None:
            return self.ids
        if self.filter is not None and self.ids is None:
            return asked_filter(self.filter.model_dump())
        raise Refused(
            422, 'exactly one of "ids" and "filter" is needed: {"ids": ["…"]}, or {"filter": {}} for all jobs.'
        )


class Rows(BaseModel, Generic[R]):
    """A page of a list."""

    rows: list[R]
    total: int | None = Field(description="Number of rows on all pages; null if not counted.")
    page: int
    limit: int

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
        return f"{params[0].__name__}s"

    @classmethod
    def of(cls, listing: Listing[Any], paging: Paging) -> Self:
        """The page with the rows of a listing."""
        return cls(rows=listing.rows, total=listing.total, page=paging.number, limit=paging.limit)

    @classmethod
    def whole(cls, rows: Sequence[R]) -> Self:
        """Return the whole list as one page."""
        return cls(rows=list(rows), total=len(rows), page=1, limit=len(rows))


class Removed(BaseModel):
    """The number of removed jobs or other objects."""

    removed: int


class Enqueued(BaseModel):
    """A stored job."""

    id: str
    job: str
    queue: str
