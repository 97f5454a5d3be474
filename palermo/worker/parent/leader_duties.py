"""The duties of a worker that may be the leader: to bring delayed and recurring jobs to their queues when due."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from palermo.contract import clock
from palermo.contract.broker import Broker
from palermo.contract.recurring_entries import EntryChange, RecurringEntry, is_stale
from palermo.contract.scheduled import OnJobs, ignore_jobs
from palermo.errors import BrokerError, NotFound
from palermo.worker.options import WorkerOptions
from palermo.worker.registered import Registered

log = logging.getLogger("palermo.worker")

#: Seconds that giving up the leadership may take: a lost session may not answer.
_CLOSE_TIMEOUT = 5.0

#: Seconds until a failed declaration of the recurring jobs is tried again.
_AGAIN = 2.0


class LeaderDuties(Struct, frozen=True, kw_only=True):
    """A worker's duties as a possible leader, and the recurring jobs that it declares."""

    #: Whether it takes part in leader election, and declares its recurring jobs.
    wanted: bool = True
    #: The recurring jobs that its code and its configuration declare.
    recurring: tuple[RecurringEntry, ...] = ()
    #: The modules of these declarations: an entry that they no longer declare is removed.
    modules: tuple[str, ...] = ()
    #: Whether its configuration has a schedule; if so, entries from other configurations' schedules are removed.
    configures: bool = False
    #: Whether it begins at once: a burst worker ends when it finds no jobs.
    at_once: bool = False
    #: Called with the messages that were published for recurring jobs.
    on_publish: OnJobs = ignore_jobs

    @classmethod
    def of(cls, options: WorkerOptions, registered: Registered, on_publish: OnJobs) -> Self:
        """The duties of a worker with these options, whose modules registered these jobs."""
        return cls(
            wanted=options.scheduler,
            recurring=registered.recurring,
            modules=registered.modules,
            configures=bool(options.settings.schedule),
            at_once=options.burst,
            on_publish=on_publish,
        )


#: Seconds at the beginning of a session in which the worker only takes jobs, unless `at_once`: a leader has a lot of
#: code to import and a lot to read.
_JOBS_FIRST = 0.1


@asynccontextmanager
async def leader_duties(broker: Broker, duties: LeaderDuties) -> AsyncIterator[None]:
    """Take part in leader election in this session, and declare the recurring jobs, while the context lasts."""
    work = (_stand_for_leader(broker, duties), _declare_recurring(broker, duties)) if duties.wanted else ()
    tasks = {asyncio.ensure_future(one) for one in work}
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_TIMEOUT)


async def _stand_for_leader(broker: Broker, duties: LeaderDuties) -> None:
    try:
        await asyncio.sleep(0.0 if duties.at_once else _JOBS_FIRST)
        await broker.run_scheduler(duties.on_publish)
    except BrokerError as error:
        log.warning("no longer keeping the time broker=%s error=%r", broker.describe(), str(error))
    except Exception:  # the edge of the worker: a broker's bug here must be seen, and must not end the worker
        log.exception("no longer keeping the time broker=%s", broker.describe())


async def _declare_recurring(broker: Broker, duties: LeaderDuties) -> None:
    try:
        await asyncio.sleep(0.0 if duties.at_once else _JOBS_FIRST)
        while True:
            try:
                # A schedule that was removed while this worker ran begins now, not when the worker began.
                await declare(broker, duties, since=clock.now())
                return
            except BrokerError as error:
                log.warning("recurring jobs are not declared yet broker=%s error=%r", broker.describe(), str(error))
            await asyncio.sleep(_AGAIN)
    except Exception:  # as above
        log.exception("recurring jobs are not declared broker=%s", broker.describe())


async def declare(broker: Broker, duties: LeaderDuties, *, since: float) -> None:
    """Put declared recurring jobs on the broker that are missing or differ there, and remove undeclared ones.

    One that is missing makes up for ticks since `since`.
    """
    found = {entry.name: entry for entry in await broker.recurring()}
    for entry in duties.recurring:
        old = found.get(entry.name)
        change = EntryChange.put(replace(entry, since=since))
        made, _ = change.made_to(old, clock.now())
        if made is not old:
            log.info("declaring a recurring job name=%s job=%s", entry.name, entry.recurring.job)
            await broker.change_recurring(change)
    names = {entry.name for entry in duties.recurring}
    for entry in found.values():
        if is_stale(entry, names=names, modules=duties.modules, configures=duties.configures):
            log.info("removing a recurring job that is declared no more name=%s origin=%s", entry.name, entry.origin)
            with suppress(NotFound):
                await broker.change_recurring(EntryChange.remove(entry.name))
