"""The page of current problems, with advice."""

from typing import NamedTuple

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from palermo.contract.broker import Finding
from palermo.contract.row_types import FindingRow
from palermo.contract.rows import iso_instant
from palermo.core.text import exactly
from palermo.errors import PalermoError
from palermo.inspector.doctor import away, row
from palermo.inspector.problems import Kind, PresentProblem
from palermo.views.filter import JobFilter
from palermo.webui.filters import filter_query
from palermo.webui.render.rendering import page, path
from palermo.webui.site import Visiting
from palermo.webui.state.journal_views import journal_views
from palermo.webui.state.problems import BrokerLook, problems
from palermo.webui.state.problems import problems as known_problems
from palermo.webui.threads import Router

router = Router()


class ShownProblem(NamedTuple):
    """A displayed problem, with a page that helps."""

    finding: Finding
    link: str = ""
    to: str = ""


@router.get("/problems", name="problems")
def page_of_problems(request: Request, visit: Visiting) -> Response:
    """Show problems of queues, workers, jobs and the broker."""
    known = problems(visit.site)
    journal = journal_views(visit.site)
    journal.wait_until_read()
    try:
        shown = [shown_problem(request, each) for each in known.now()]
        look = BrokerLook() if visit.site.read_only else known.look()
    except PalermoError as error:
        shown, look = [ShownProblem(away(error))], BrokerLook()
    return page(
        request,
        "problems.html",
        problems=[*(_of_broker(request, finding) for finding in look.of_level("problem")), *shown],
        remarks=[_of_broker(request, finding) for finding in look.of_level("warning")],
        # The footer names the broker. The user name of that connection is only for the machine's administrators.
        fine=[finding for finding in look.of_level("ok") if finding.check != "connection"],
        looked_at=iso_instant(look.at),
        counted=journal.ready,
    )


def shown_problem(request: Request, problem: PresentProblem) -> ShownProblem:
    """Return the problem with a link to a page that helps."""
    finding = problem.finding
    only = finding.names[0] if len(finding.names) == 1 else ""
    runs = JobFilter(job=exactly(only)) if only else JobFilter()
    match problem.kind:
        case "unserved" | "resting" | "late" | "paused" if only:
            return ShownProblem(finding, f"Queue {only}", path(request, "queue", name=only))
        case "unserved" | "resting" | "late" | "paused" | "all paused":
            return ShownProblem(finding, "Queues", path(request, "queues"))
        case "died" if only:
            return ShownProblem(finding, f"Worker {only}", path(request, "worker", id=only))
        case "overdue":
            return ShownProblem(finding, "Scheduled jobs", path(request, "scheduled"))
        case "trouble":
            return ShownProblem(finding)
        case "silent" | "died":
            return ShownProblem(finding, "Workers", path(request, "workers"))
        case "failing":
            to = path(request, "failures", {"filter": f"{runs} since:15m" if only else "since:15m"})
            return ShownProblem(finding, "Their failures", to)
        case "retried":
            return ShownProblem(finding, "Their retries", path(request, "retries", filter_query(runs)))


def _of_broker(request: Request, finding: Finding) -> ShownProblem:
    kind, _, name = finding.check.partition(" ")
    if finding.check == "unique jobs":
        return ShownProblem(finding, "Unique jobs", path(request, "unique"))
    if kind == "queue" and name:
        return ShownProblem(finding, f"Queue {name}", path(request, "queue", name=name))
    if finding.names:
        return ShownProblem(finding, "Queues", path(request, "queues"))
    return ShownProblem(finding)


# -- the API

api = Router(prefix="/problems", tags=["workers"])


class ProblemRow(FindingRow):
    """One problem."""

    kind: Kind


class ProblemRows(BaseModel):
    """All current problems."""

    rows: list[ProblemRow]
    total: int


@api.get("")
def api_problems(visit: Visiting) -> ProblemRows:
    """Current problems of queues, workers and jobs, with advice.

    `palermo doctor --json` reports the same, and also checks the broker and the settings.
    """
    rows: list[ProblemRow] = [{"kind": each.kind, **row(each.finding)} for each in known_problems(visit.site).now()]
    return ProblemRows(rows=rows, total=len(rows))
