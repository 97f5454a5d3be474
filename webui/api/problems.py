"""The API for current problems."""

from typing import Literal

from pydantic import BaseModel

from palermo.contract.row_types import FindingRow
from palermo.inspector.doctor import row
from palermo.webui.api.rows import PROBLEM_RESPONSES
from palermo.webui.site import Visiting
from palermo.webui.state.problems import problems as known_problems
from palermo.webui.threads import Router

router = Router(prefix="/problems", tags=["workers"], responses=PROBLEM_RESPONSES)


class ProblemRow(FindingRow):
    """One problem."""

    kind: Literal[
        "trouble", "unserved", "resting", "late", "paused", "all paused", "silent", "died", "failing", "retried"
    ]


class ProblemRows(BaseModel):
    """All current problems."""

    rows: list[ProblemRow]
    total: int


@router.get("", name="api_problems")
def problems(visit: Visiting) -> ProblemRows:
    """Current problems of queues, workers and jobs, with advice.

    `palermo doctor --json` reports the same, and also checks the broker and the settings.
    """
    rows: list[ProblemRow] = [{"kind": each.kind, **row(each.finding)} for each in known_problems(visit.site).now()]
    return ProblemRows(rows=rows, total=len(rows))
