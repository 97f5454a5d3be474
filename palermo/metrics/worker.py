"""A worker's metrics, served to Prometheus by its parent process."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from palermo.contract.worker_info import STATES, WorkerInfo
from palermo.core.version import VERSION
from palermo.errors import SettingInvalid
from palermo.history.series import Tally
from palermo.metrics import check_installed
from palermo.metrics.catalogue import WORKER
from palermo.metrics.totals import Totals
from palermo.settings.settings import Settings

#: Seconds that the event loop has to supply the values for a request.
_PATIENCE = 10.0


def listen(settings: Settings) -> socket.socket:
    """Return a socket that listens at the configured address, opened before the worker does anything else.

    Raises SettingInvalid if it can't be opened, or prometheus_client isn't installed.
    """
    check_installed()
    host, port = settings.metrics_host, settings.metrics_port
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise SettingInvalid(
            f"cannot listen on {host} port {port} for metrics: {error.strerror or error}. Each worker on a machine"
            " needs its own port. Set it with --metrics-port or PALERMO_METRICS_PORT."
        ) from None


@asynccontextmanager
async def serve(
    at: socket.socket,
    settings: Settings,
    *,
    pool: str,
    totals: Totals,
    report: Callable[[], WorkerInfo],
    is_connected: Callable[[], bool],
) -> AsyncIterator[None]:
    """Answer scrapers at this socket within the context. `report` and `is_connected` are called in the worker's event
    loop.
    """
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector

    from palermo.metrics.endpoint import Endpoint
    from palermo.metrics.exposition import Families

    loop = asyncio.get_running_loop()

    async def present() -> tuple[WorkerInfo, bool, dict[tuple[str, str], Tally]]:
        return report(), is_connected(), totals.copy()

    class WorkerMetrics(Collector):
        """The metrics at the time of a request, collected in the request's thread."""

        def collect(self) -> Iterable[Metric]:
            info, connected, tallies = asyncio.run_coroutine_threadsafe(present(), loop).result(_PATIENCE)
            families = Families(WORKER)
            families.info("palermo_worker_info", worker=info.id, version=VERSION, release=settings.release, pool=pool)
            families.set("palermo_worker_start_time_seconds", info.started_at)
            families.set("palermo_worker_broker_up", connected)
            for state in STATES:
                families.set("palermo_worker_state", info.state == state, state)
            families.set("palermo_worker_slots", info.slots)
            families.set("palermo_worker_slots_busy", len(info.jobs))
            families.tallies(tallies, prefix="palermo_worker_")
            return families.collect()

    registry = CollectorRegistry()
    registry.register(WorkerMetrics())
    ProcessCollector(registry=registry)
    endpoint = Endpoint(at, registry, token=settings.metrics_token)
    endpoint.serve(loop)
    try:
        yield
    finally:
        endpoint.close(loop)
