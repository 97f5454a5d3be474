"""Workers in Redis: their leases and their reports.

A worker owns its jobs as long as it renews its lease. When the lease expires, any other worker releases the jobs to
their queues, and Redis refuses later settlements of them. If no worker could renew its lease for a while because Redis
was down, all workers first get time to reconnect (scripts/worker.lua).
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from palermo.brokers.features.heartbeat import Heartbeat
from palermo.brokers.redis.store import Store
from palermo.contract.worker_info import (
    WorkerInfo,
    WorkerList,
    stored_patterns,
    stored_worker,
    unidentified_worker,
)

#: Seconds after which a worker that hasn't renewed its lease loses its jobs. A killed worker's job runs again within
#: five seconds.
LEASE = 4.0

#: Number of renewals between two polls for jobs, since a wake-up message may be lost.
_LOOK_EVERY = 4

#: Seconds without a renewal after which a worker counts as silent: stopped, or swapped out.
_SILENT_AFTER = 2.0


class LivingWorker(Struct, frozen=True):
    """A worker with a valid lease."""

    info: WorkerInfo
    #: Patterns of the queues that it serves.
    patterns: tuple[str, ...]


def living(now: float, rows: list[Any]) -> list[LivingWorker]:
    """The workers in an answer of scripts/look.lua, which includes the time."""
    found: list[LivingWorker] = []
    for number, (lease, tag, selection, report, _) in enumerate(rows):
        if not tag or float(lease) <= now:
            continue
        seen_at = float(lease) - LEASE
        worker = stored_worker(tag, report) or unidentified_worker(number)
        info = replace(worker, seen_at=seen_at, answers=now - seen_at < _SILENT_AFTER)
        found.append(LivingWorker(info, stored_patterns(tag, selection)))
    return found


async def list_workers(store: Store) -> WorkerList:
    """All living workers."""
    now, rows = await store.run("look", "workers")
    return WorkerList(worker.info for worker in living(float(now), rows))


class RedisHeartbeat(Heartbeat):
    """Renews the lease of one worker, and stores its report."""

    def __init__(self, store: Store, holder: str, report: Callable[[], WorkerInfo], reported: WorkerInfo) -> None:
        """`reported` is the report that Redis already has."""
        super().__init__(report, reported)
        self._store = store
        self._holder = holder
        self._beats = 0

    async def beat(self, report: str) -> bool:
        if not await self._store.run("worker", "beat", self._holder, LEASE, report):
            raise self._store.lease_expired()
        self._beats += 1
        return self._beats % _LOOK_EVERY == 0
