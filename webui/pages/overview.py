"""The overview: all queues, what is being worked on, and the last ten minutes."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from palermo.webui.ahead import ahead
from palermo.webui.chart import chart_of
from palermo.webui.rendering import page
from palermo.webui.site import Visiting
from palermo.webui.watching import running_of, totals_of, watching

router = APIRouter()

#: Running jobs that are listed.
_RUNNING = 50


@router.get("/", name="overview")
def overview(request: Request, visit: Visiting) -> Response:
    look = watching(visit.site)
    snapshot = look.snapshot()
    return page(
        request,
        "overview.html",
        looked=snapshot.version,
        rows=look.lines(snapshot.queues),
        totals=totals_of(snapshot),
        scheduled=ahead(visit.site).count(),
        running=running_of(snapshot)[:_RUNNING],
        processed_rate=look.sampler.throughput()[0],
        chart=chart_of(look.sampler.samples(), snapshot.at),
    )
