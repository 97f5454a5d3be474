"""Frees orphaned keys: keys of jobs that other programs purged, let expire, or consumed.

A waiting job is in its queue or with a worker, and both can be checked, but it may be on its way between them. So a key
counts as orphaned if two checks, some time apart, did not find its holder, and the holder is not a running workflow.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.cluster.worker_control import ask_workers
from palermo.brokers.rabbitmq.publishing.job_destinations import TenantQueue
from palermo.brokers.rabbitmq.publishing.turns import take_turns
from palermo.brokers.rabbitmq.seconds import DELIVERED_WITHIN
from palermo.brokers.rabbitmq.unique.known_keys import CODED_AT_ONCE, in_turns
from palermo.contract.broker import OrphanedKey
from palermo.core.topology import amqp_queue
from palermo.core.unique_keys import Key, KeyHolder

if TYPE_CHECKING:
    from palermo.brokers.rabbitmq.unique.unique_keys import UniqueKeys

log = logging.getLogger("palermo.rabbitmq")

#: Seconds between two checks by the leader.
LOOK_EVERY = 20.0

#: Holders by key and serial, which together identify a holder.
Suspects = Mapping[tuple[str, int], OrphanedKey]

#: Returns the ids among these of workflows that have not ended. A workflow's job is acknowledged when it has added its
#: steps, so this is called after the workers were asked.
RunningWorkflows = Callable[[Collection[str]], Awaitable[Collection[str]]]

#: Returns whether a tenant has jobs waiting in its own queue, outside of the job queue.
TenantHasJobs = Callable[[TenantQueue], Awaitable[bool]]


async def suspects(
    exchange: str,
    connection: Connection,
    keys: Sequence[Key],
    *,
    now: float,
    tenant_has_jobs: TenantHasJobs | None,
    patience: float = DELIVERED_WITHIN,
) -> Suspects:
    """The holders that are with no worker, and whose queues are empty or missing.

    `tenant_has_jobs` returns whether a tenant has jobs outside of the job queue. If the function is None, this is
    unknown, and holders with a tenant are left out.
    """
    waiting = defaultdict[TenantQueue, dict[str, KeyHolder]](dict)
    async for some in in_turns(keys):
        for key in some:
            if (holder := key.holder) is not None and _is_due(holder, now - patience):
                waiting[TenantQueue(holder.queue, holder.tenant)][key.name] = holder
    for place in [one for one in waiting if one.tenant]:
        if tenant_has_jobs is None or await tenant_has_jobs(place):
            del waiting[place]
    empty = {queue for queue in {one.queue for one in waiting} if await _is_empty(exchange, connection, queue)}
    found = {name: one for place, some in waiting.items() if place.queue in empty for name, one in some.items()}
    return without(found, await running(exchange, connection)) if found else {}


def without(holders: Mapping[str, KeyHolder], ids: Collection[str] | None) -> Suspects:
    """The holders whose jobs are not among these ids; none if `ids` is None."""
    if ids is None:
        return {}
    return {
        (name, one.serial): OrphanedKey(key=name, id=one.id, queue=one.queue, since=one.since)
        for name, one in holders.items()
        if one.id not in ids
    }


async def running(exchange: str, connection: Connection) -> set[str] | None:
    """The ids of all jobs that workers run or hold; None if some workers don't answer."""
    workers = await ask_workers(connection, exchange)
    return {id for one in workers for id in (*one.waiting, *(job.id for job in one.jobs))} if workers.complete else None


async def watch(
    exchange: str,
    connection: Connection,
    unique_keys: "UniqueKeys",
    now: Callable[[], float],
    tenant_has_jobs: TenantHasJobs,
    running_workflows: RunningWorkflows,
) -> None:
    """Free orphaned keys as long as this process is the leader."""
    before: Suspects = {}

    async def look() -> float:
        nonlocal before
        keys = await unique_keys.known() if unique_keys.knows else []
        found = await suspects(exchange, connection, keys, now=now(), tenant_has_jobs=tenant_has_jobs)
        strays = list[tuple[str, int]]()
        async for some in in_turns([one for one in found if one in before], at_once=CODED_AT_ONCE):
            workflows = await running_workflows([found[one].id for one in some])
            strays += [one for one in some if found[one].id not in workflows]
        for name in await unique_keys.free_orphans(strays) if strays else ():
            log.warning("freed a key whose job no longer exists key=%s", name)
        before = found
        return LOOK_EVERY

    await take_turns(look, asyncio.Event(), connection, "cannot check for keys without jobs")


def _is_due(holder: KeyHolder, now: float) -> bool:
    """Whether the holder's job should have reached its queue, or a worker, by now."""
    return holder.until is None and max(holder.since, holder.run_at or 0.0) < now


async def _is_empty(exchange: str, connection: Connection, queue: str) -> bool:
    found = await connection.probe(amqp_queue(exchange, queue))
    return not found.exists or not found.messages
