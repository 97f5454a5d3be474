"""`/healthz`, for monitors: whether this server and the broker behind it answer."""

import threading
import time

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from palermo.errors import PalermoError
from palermo.webui.site import Site

router = APIRouter()

#: Seconds that an answer holds, so that nobody can load the broker by asking.
_HOLDS = 2.0

_one_at_a_time = threading.Lock()


@router.api_route("/healthz", methods=["GET", "HEAD"])
def health(request: Request) -> Response:
    """200 while the broker answers, 503 while it does not; nothing else is told."""
    site: Site = request.app.state.site
    well = _is_well(site)
    return JSONResponse({"status": "ok" if well else "broker unavailable"}, 200 if well else 503)


def _is_well(site: Site) -> bool:
    with _one_at_a_time:
        well, until = site.kept.get("health", (False, 0.0))
        if time.monotonic() < until:
            return bool(well)
        try:
            site.inspector.queues()
            well = True
        except PalermoError:
            well = False
        site.kept["health"] = (well, time.monotonic() + _HOLDS)
        return well
