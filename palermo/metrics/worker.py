"""What a worker tells Prometheus of itself, and who serves it: from its parent, beside its loop's own work."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from palermo.config import Settings
from palermo.core.values import dataclass
from palermo.crew import STATES, WorkerInfo
from palermo.errors import SettingInvalid
from palermo.history.tally import Tally
from palermo.metrics import check_installed
from palermo.metrics.catalogue import WORKER
from palermo.metrics.endpoint import Answer, Endpoint
from palermo.metrics.totals import Totals
from palermo.plugins import version
from palermo.worker.chronicle import Chronicle
from palermo.worker.session import Link


class Measured(Protocol):
    """A worker, as far as it is measured. Asked in its loop."""

    chronicle: Chronicle
    link: Link

    def report(self) -> WorkerInfo:
        """What it is doing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """What there is to tell."""

    info: WorkerInfo
    connected: bool
    tallies: dict[tuple[str, str], Tally]


def listening(settings: Settings) -> socket.socket:
    """A socket where the settings want one, taken before anything else is done.

    Raises SettingInvalid: it cannot be had, or prometheus_client is not installed.
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
async def served(at: socket.socket, worker: Measured, settings: Settings, *, pool: str) -> AsyncIterator[None]:
    """Scrapers are answered there meanwhile."""
    worker.chronicle.totals = totals = Totals()

    async def answer(accept: str, encoding: str) -> Answer:
        moment = _Moment(info=worker.report(), connected=worker.link.live is not None, tallies=totals.copy())
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
    families.info("palermo_worker_info", worker=info.id, version=version(), release=release, pool=pool)
    families.set("palermo_worker_start_time_seconds", info.started_at)
    families.set("palermo_worker_broker_up", moment.connected)
    for state in STATES:
        families.set("palermo_worker_state", info.state == state, state)
    families.set("palermo_worker_slots", info.slots)
    families.set("palermo_worker_slots_busy", len(info.jobs))
    families.tallies(moment.tallies, prefix="palermo_worker_")
    return expose(families, accept=accept, encoding=encoding)
