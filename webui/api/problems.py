"""The API of what is wrong at this moment."""

from typing import Literal

from pydantic import BaseModel, Field

from palermo.inspector.doctor import row
from palermo.webui.api.rows import PROBLEM_RESPONSES
from palermo.webui.site import Visiting
from palermo.webui.state.problems import problems as known_problems
from palermo.webui.threads import Router

router = Router(prefix="/problems", tags=["workers"], responses=PROBLEM_RESPONSES)


class ProblemRow(BaseModel):
    """One thing that is wrong."""

    kind: Literal[
        "trouble", "unserved", "resting", "late", "paused", "all paused", "silent", "died", "failing", "retried"
    ]
    names: list[str] = Field(description="All queues or jobs that it is about, the worst first; none if it is all.")
    check: str = Field(description="What was looked at, as `palermo doctor` names it.")
    level: Literal["warning", "problem"]
    text: str
    advice: str | None = Field(description="What to do about it.")


class ProblemRows(BaseModel):
    """All that is wrong."""

    rows: list[ProblemRow]
    total: int


@router.get("", name="api_problems")
def problems(visit: Visiting) -> ProblemRows:
    """What is wrong with queues, workers and jobs at this moment, and what to do about it.

    `palermo doctor --json` says the same, and examines the broker and the settings too.
    """
    rows = [
        {
            "kind": each.kind,
            **row(each.finding),
        }
        for each in known_problems(visit.site).now()
    ]
    return ProblemRows.model_validate({"rows": rows, "total": len(rows)})
