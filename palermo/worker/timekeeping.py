"""A worker's part in bringing jobs to their queues when they are due: delayed ones, and those that recur."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Self

from palermo.broker import Broker
from palermo.core.values import dataclass
from palermo.entries import PUT, Change, Entry
from palermo.errors import BrokerError, NotFound
from palermo.schedules import is_stale
from palermo.timetable import Tell, nobody
from palermo.worker.options import WorkerOptions
from palermo.worker.pool import Registered

log = logging.getLogger("palermo.worker")

#: Seconds that giving up the lead may take; a session that is lost may not answer.
_GOODBYE = 5.0

#: Seconds until recurring jobs that could not be declared are declared again.
_AGAIN = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Duties:
    """What a worker does about time."""

    #: Whether it keeps the time, if no other does, and declares what recurs.
    wanted: bool = True
    #: What its code and its configuration declare.
    recurring: tuple[Entry, ...] = ()
    #: The modules whose declarations these are: what they no longer declare is removed.
    modules: tuple[str, ...] = ()
    #: Whether its configuration has a schedule, by which the entries of other such configurations are removed.
    configures: bool = False
    #: Whether it does so from the first, since it ends when it finds no jobs.
    at_once: bool = False
    #: Is told of the jobs that recurring ones have published.
    fired: Tell = nobody

    @classmethod
    def of(cls, options: WorkerOptions, registered: Registered, fired: Tell) -> Self:
        """Those of a worker that has been told this, and whose modules registered that."""
        return cls(
            wanted=options.scheduler,
            recurring=registered.recurring,
            modules=registered.modules,
            configures=bool(options.settings.schedule),
            at_once=options.burst,
            fired=fired,
        )


#: Seconds after the beginning of a session in which jobs are taken first, unless it leads at once: to lead is a lot of
#: code, which is to be imported, and a lot to read.
_JOBS_FIRST = 0.1


@asynccontextmanager
async def keeping_time(broker: Broker, duties: Duties) -> AsyncIterator[None]:
    """Keep the time in this session, and declare what recurs, as long as the context lasts."""
    work = (_keep(broker, duties), _declare(broker, duties)) if duties.wanted else ()
    tasks = {asyncio.ensure_future(one) for one in work}
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_GOODBYE)


async def _keep(broker: Broker, duties: Duties) -> None:
    try:
        await asyncio.sleep(0.0 if duties.at_once else _JOBS_FIRST)
        await broker.keep_time(duties.fired)
    except BrokerError as error:
        log.warning("no longer keeping the time broker=%s error=%r", broker.describe(), str(error))
    except Exception:  # the edge of the worker: a broker's bug here must not go unseen, nor end the worker
        log.exception("no longer keeping the time broker=%s", broker.describe())


async def _declare(broker: Broker, duties: Duties) -> None:
    try:
        await asyncio.sleep(0.0 if duties.at_once else _JOBS_FIRST)
        while True:
            try:
                await declare(broker, duties)
                return
            except BrokerError as error:
                log.warning("recurring jobs are not declared yet broker=%s error=%r", broker.describe(), str(error))
            await asyncio.sleep(_AGAIN)
    except Exception:  # as above
        log.exception("recurring jobs are not declared broker=%s", broker.describe())


async def declare(broker: Broker, duties: Duties) -> None:
    """Put on the broker what is declared and not there, or otherwise there, and remove what is declared no more."""
    found = {entry.name: entry for entry in await broker.recurring()}
    for entry in duties.recurring:
        old = found.get(entry.name)
        put, _ = Change(name=entry.name, action=PUT, entry=entry).made_to(old, time.time())
        if put is not old:
            log.info("declaring a recurring job name=%s job=%s", entry.name, entry.recurring.job)
            await broker.put_recurring(entry)
    names = {entry.name for entry in duties.recurring}
    for entry in found.values():
        if is_stale(entry, names=names, modules=duties.modules, configures=duties.configures):
            log.info("removing a recurring job that is declared no more name=%s origin=%s", entry.name, entry.origin)
            with suppress(NotFound):
                await broker.remove_recurring(entry.name)
