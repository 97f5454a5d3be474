"""Keys whose holders are nowhere: of jobs that other programs purged, let expire, or took.

A job that waits is in its queue or with a worker, and both can be asked. What is found once may be on its
way from one to the other, so only what is found twice, some time apart and with the same holder, counts.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from palermo.brokers.rabbitmq.census import census
from palermo.brokers.rabbitmq.link import Link
from palermo.brokers.rabbitmq.presence import ask_workers
from palermo.brokers.rabbitmq.seats import Seat
from palermo.core.keys import Holder, Key
from palermo.core.topology import amqp_queue
from palermo.errors import PalermoError
from palermo.uniqueness import Stray

if TYPE_CHECKING:
    from palermo.brokers.rabbitmq.arbiter import Arbiter

log = logging.getLogger("palermo.rabbitmq")

#: Seconds between two looks of whoever leads.
LOOK_EVERY = 20.0

#: Seconds that a job has to get from where it was into its queue.
_ON_ITS_WAY = 10.0

#: A holder by key and serial: another serial is another holder.
Suspects = Mapping[tuple[str, int], Stray]

#: Whether a tenant has jobs waiting apart from their queue.
Apart = Callable[[Seat], Awaitable[bool]]


async def suspects(
    exchange: str, link: Link, keys: Iterable[Key], *, now: float, apart: Apart | None, patience: float = _ON_ITS_WAY
) -> Suspects:
    """Those that are with no worker, and whose queues are empty or gone.

    `apart` says whether a tenant has jobs waiting apart from the queue; None where that is not known, and so nothing
    is suspected of these.
    """
    waiting = {key.name: key.holder for key in keys if key.holder is not None and _is_due(key.holder, now - patience)}
    for seat in {Seat(one.queue, one.tenant) for one in waiting.values() if one.tenant}:
        if apart is None or await apart(seat):
            waiting = {name: one for name, one in waiting.items() if Seat(one.queue, one.tenant) != seat}
    empty = {queue for queue in {one.queue for one in waiting.values()} if await _is_empty(exchange, link, queue)}
    found = {name: holder for name, holder in waiting.items() if holder.queue in empty}
    return without(found, await running(exchange, link)) if found else {}


def without(holders: Mapping[str, Holder], ids: Collection[str] | None) -> Suspects:
    """Those whose jobs are not among these; none where these are not known."""
    if ids is None:
        return {}
    return {
        (name, one.serial): Stray(key=name, id=one.id, queue=one.queue, since=one.since)
        for name, one in holders.items()
        if one.id not in ids
    }


async def running(exchange: str, link: Link) -> set[str] | None:
    """The ids of all jobs that workers run; None if some do not answer."""
    alive = await census(link, exchange)
    workers = await ask_workers(link, exchange)
    return None if len(workers) < alive else {job.id for worker in workers for job in worker.jobs}


async def watch(exchange: str, link: Link, arbiter: "Arbiter", now: Callable[[], float], apart: Apart) -> None:
    """Free the keys of strays for as long as we lead."""
    before: Suspects = {}
    while True:
        await asyncio.sleep(LOOK_EVERY)
        try:
            keys = await arbiter.known() if arbiter.knows else []
            found = await suspects(exchange, link, keys, now=now(), apart=apart)
            strays = [one for one in found if one in before]
            before = found
            for name in await arbiter.free_strays(strays) if strays else ():
                log.warning("a key was freed, its job is nowhere key=%s", name)
        except PalermoError as error:
            if link.error is not None:
                raise
            log.warning("cannot look for keys without jobs error=%r", str(error))


def _is_due(holder: Holder, now: float) -> bool:
    """Whether its job should be in its queue, or with a worker."""
    return holder.until is None and max(holder.since, holder.run_at or 0.0) < now


async def _is_empty(exchange: str, link: Link, queue: str) -> bool:
    channel = await link.channel()
    try:
        frame = await channel.call(channel.raw.queue_declare, amqp_queue(exchange, queue), passive=True)
    except PalermoError:
        if channel.missing:
            return True
        raise
    await channel.close()
    return not frame.method.message_count
