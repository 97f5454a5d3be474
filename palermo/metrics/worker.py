"""The metrics of a worker, served to Prometheus from its parent process, beside the loop's own work."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from msgspec import Struct

from palermo.contract.worker_info import STATES, WorkerInfo
from palermo.core.version import VERSION
from palermo.errors import SettingInvalid
from palermo.history.tally import Tally
from palermo.metrics import check_installed
from palermo.metrics.catalogue import WORKER
from palermo.metrics.endpoint import Answer, Endpoint
from palermo.metrics.totals import Totals
from palermo.settings.settings import Settings


class _Moment(Struct, frozen=True, kw_only=True):
    """A worker's state at the moment of a request."""

    info: WorkerInfo
    connected: bool
    tallies: dict[tuple[str, str], Tally]


def listen(settings: Settings) -> socket.socket:
    """A socket that listens where the settings say, opened before anything else is done.

    Raises SettingInvalid if it cannot be opened, or prometheus_client is not installed.
    """
    check_installed()
    host, port = settings.metrics_host, settings.metrics_port
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise SettingInvalid(
            f"cannot listen on {host} port {port} for metrics: {error.strerror or error}. Each worker of a machine"
            " needs a port of its own: choose with --metrics-port, or PALERMO_METRICS_PORT."
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
    """Answer scrapers at this socket while the block runs. Both functions are called in the worker's event loop."""

    async def answer(accept: str, encoding: str) -> Answer:
        moment = _Moment(info=report(), connected=is_connected(), tallies=totals.copy())
        # Writing a thousand lines takes as long as ten jobs.
        return await asyncio.to_thread(_written, moment, settings.release, pool, accept, encoding)

    endpoint = Endpoint(at, answer, token=settings.metrics_token)
    await endpoint.open()
    try:
        yield
    finally:
        await endpoint.close()


def _written(moment: _Moment, release: str, pool: str, accept: str, encoding: str) -> Answer:
    from palermo.metrics.exposition import Families, expose

    info, families = moment.info, Families(WORKER)
    families.info("palermo_worker_info", worker=info.id, version=VERSION, release=release, pool=pool)
    families.set("palermo_worker_start_time_seconds", info.started_at)
    families.set("palermo_worker_broker_up", moment.connected)
    for state in STATES:
        families.set("palermo_worker_state", info.state == state, state)
    families.set("palermo_worker_slots", info.slots)
    families.set("palermo_worker_slots_busy", len(info.jobs))
    families.tallies(moment.tallies, prefix="palermo_worker_")
    return expose(families, accept=accept, encoding=encoding)
