"""`/healthz` for monitors: it says whether this server and its broker answer."""

import threading
import time

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from palermo.errors import PalermoError
from palermo.inspector.inspector import Inspector
from palermo.webui.base.site import Site

router = APIRouter()

#: Seconds that an answer is cached, so that requests cannot load the broker.
_CACHED = 2.0


class BrokerHealth:
    """Whether the broker answers: asked at most every two seconds, by one request at a time."""

    def __init__(self, inspector: Inspector) -> None:
        self._inspector = inspector
        self._lock = threading.Lock()
        self._healthy, self._expires = False, 0.0

    def is_healthy(self) -> bool:
        """Whether the broker answers now, or did within the last two seconds."""
        with self._lock:
            if time.monotonic() >= self._expires:
                try:
                    self._inspector.queues()
                    self._healthy = True
                except PalermoError:
                    self._healthy = False
                self._expires = time.monotonic() + _CACHED
            return self._healthy


@router.api_route("/healthz", methods=["GET", "HEAD"])
def health(request: Request) -> Response:
    """200 while the broker answers, 503 while it does not. It tells nothing else."""
    site: Site = request.app.state.site
    healthy = site.component(BrokerHealth, lambda: BrokerHealth(site.inspector)).is_healthy()
    return JSONResponse({"status": "ok" if healthy else "broker unavailable"}, 200 if healthy else 503)
