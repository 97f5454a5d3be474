"""The overview: all queues, the running jobs, and a chart of the last ten minutes."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from palermo.webui.base.site import Visiting
from palermo.webui.render.rendering import page
from palermo.webui.render.throughput_chart import throughput_chart
from palermo.webui.state.live_state import live_state, running_jobs, totals_of
from palermo.webui.state.scheduled_view import scheduled_view

router = APIRouter()

#: The most running jobs that are listed.
_RUNNING = 50


@router.get("/", name="overview")
def overview(request: Request, visit: Visiting) -> Response:
    live = live_state(visit.site)
    snapshot = live.snapshot()
    return page(
        request,
        "overview.html",
        rows=live.queue_summaries(snapshot.queues),
        totals=totals_of(snapshot),
        scheduled=scheduled_view(visit.site).count(),
        running=running_jobs(snapshot)[:_RUNNING],
        processed_rate=live.sampler.throughput()[0],
        chart=throughput_chart(live.sampler.samples(), snapshot.at),
    )
