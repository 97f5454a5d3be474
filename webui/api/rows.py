"""The rows of the API, typed: fields and names are those of palermo.rows, a contract."""

from typing import Any

from pydantic import BaseModel, Field

#: What may go wrong, and is documented with every operation.
PROBLEMS = {
    400: "The request cannot be read.",
    401: "Nobody, or a wrong password or token.",
    403: "Not from this site, not with this role, or read-only.",
    404: "There is no such thing.",
    422: "A value is not allowed.",
    503: "The broker cannot be reached, or refuses us.",
}


class Problem(BaseModel):
    """Why something was not done."""

    error: str = Field(description="What happened, with the value, and what to do about it.")


def problems(*more: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of an operation."""
    return {status: {"model": Problem, "description": text} for status, text in PROBLEMS.items()}


class QueueRow(BaseModel):
    """One queue."""

    name: str
    pending: int = Field(description="Jobs that wait.")
    in_progress: int = Field(description="Jobs that a worker holds.")
    workers: int = Field(description="Workers that serve it.")
    paused: bool


class Queues(BaseModel):
    """All queues, by name."""

    rows: list[QueueRow]
    total: int
    page: int
    limit: int


class Removed(BaseModel):
    """How many jobs went."""

    removed: int
