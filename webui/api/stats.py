"""The API for statistics: the counts of workers and clients, as on the statistics page and in `palermo stats`."""

from palermo.contract.row_types import StatisticsRow
from palermo.errors import NotFound
from palermo.history.series import Window
from palermo.history.statistics import report_row
from palermo.webui.api.rows import PROBLEM_RESPONSES, Text
from palermo.webui.filters import only_one
from palermo.webui.site import Visiting
from palermo.webui.state.journal_views import journal_views
from palermo.webui.state.live_state import live_state
from palermo.webui.threads import Router

router = Router(tags=["statistics"], responses=PROBLEM_RESPONSES)


@router.get("/stats", name="api_stats")
def stats(
    visit: Visiting, window: Window = Window.DAY, queue: Text = None, job: Text = None, worker: Text = None
) -> StatisticsRow:
    """The number of processed and failed jobs in the last hour, day, week or month, and their durations.

    Covers everything, by queue, job and worker, or only the named one. Workers and clients write the counts to the
    journal. 409 if the setting `journal` is off.
    """
    chosen = only_one(queue=queue, job=job, worker=worker)
    known = journal_views(visit.site)
    known.check_ready()
    report = known.report(window, **chosen)
    if report is None:
        of = "".join(f" of {by} {name[:80]!r}" for by, name in chosen.items())
        raise NotFound(f"nothing has been counted{of} in the last 30 days.")
    if chosen:
        return report_row(report, (), ())
    snapshot = live_state(visit.site).snapshot()
    return report_row(report, snapshot.queues, snapshot.workers)
