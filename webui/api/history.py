"""The API for the journal: finished jobs, the timeline of a job, and operators' actions."""

from pydantic import BaseModel, ConfigDict, Field

from palermo.contract.row_types import ActionRow, FinishedRow, Instant
from palermo.errors import NotFound
from palermo.history.listings import life
from palermo.webui.api.rows import PROBLEM_RESPONSES, Id, PageLimit, PageNumber, Rows, Text
from palermo.webui.filters import asked_actions, asked_filter
from palermo.webui.site import Visiting
from palermo.webui.state.journal_views import journal_views
from palermo.webui.threads import Router

router = Router(tags=["history"], responses=PROBLEM_RESPONSES)


class Step(BaseModel):
    """A record in a job's timeline. Some kinds have more fields."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    kind: str = Field(description="See docs/internals/journal.md; `action` for an operator's action.")
    at: Instant | None


class Life(BaseModel):
    """The journal's records about one job, oldest first."""

    id: str
    rows: list[Step]
    total: int


@router.get("/history", name="api_history")
def history(
    visit: Visiting,
    filter: Text = None,
    queue: Text = None,
    job: Text = None,
    worker: Text = None,
    error: Text = None,
    state: Text = None,
    text: Text = None,
    since: Text = None,
    until: Text = None,
    longer: Text = None,
    shorter: Text = None,
    page: PageNumber = 1,
    limit: PageLimit = 100,
) -> Rows[FinishedRow]:
    """Finished jobs, newest first.

    Names match in part, and `*` stands for any characters; `=mail` is exactly `mail`. Times are durations ago (`2h`) or
    instants (`2026-12-01T09:00Z`). `longer` and `shorter` are the minimum and maximum duration of a run (`0.5s`, `5m`).
    """
    wanted = asked_filter(
        {
            "filter": filter,
            "queue": queue,
            "job": job,
            "worker": worker,
            "error": error,
            "state": state,
            "text": text,
            "since": since,
            "until": until,
            "longer": longer,
            "shorter": shorter,
        }
    )
    known = journal_views(visit.site)
    known.check_ready()
    rows = [entry.row() for entry in known.index.page(wanted, offset=(page - 1) * limit, limit=limit)]
    return Rows[FinishedRow].of(rows, total=known.index.count(wanted), page=page, limit=limit)


@router.get("/history/{id:palermo}", name="api_history_job")
def history_of_job(visit: Visiting, id: Id) -> Life:
    """The journal's newest 1,000 records about one job, oldest first."""
    known = journal_views(visit.site)
    known.check_ready()
    rows = life(known.index, known.audit, id)
    if not rows:
        raise NotFound(f"the journal has no record of job {id[:80]!r}.")
    return Life.model_validate({"id": id, "rows": rows, "total": len(rows)})


@router.get("/audit", name="api_audit")
def audit(
    visit: Visiting,
    by: Text = None,
    action: Text = None,
    queue: Text = None,
    text: Text = None,
    since: Text = None,
    until: Text = None,
    page: PageNumber = 1,
    limit: PageLimit = 100,
) -> Rows[ActionRow]:
    """Operators' actions, newest first. Names match in part; `=mail` is exactly `mail`."""
    filter = asked_actions({"by": by, "action": action, "queue": queue, "text": text, "since": since, "until": until})
    known = journal_views(visit.site)
    known.check_ready()
    rows = known.audit.page(filter, offset=(page - 1) * limit, limit=limit)
    return Rows[ActionRow].of(rows, total=known.audit.count(filter), page=page, limit=limit)
