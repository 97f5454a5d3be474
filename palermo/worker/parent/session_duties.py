"""The worker's duties during a broker session, other than running jobs.

Before taking jobs, it subscribes its groups and announces its unique jobs. Then it becomes a candidate for leader, so
that delayed and recurring jobs reach their queues when they are due, and declares its recurring jobs. It removes failed
jobs above the limits at the start, and after failures at most once a minute.
"""

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from palermo.client.failed_queues import FailedRetention
from palermo.contract import clock
from palermo.contract.broker import Broker
from palermo.contract.events import Subscription
from palermo.contract.recurring_entries import EntryChange, RecurringEntry, is_stale
from palermo.contract.scheduled import OnJobs, ignore_jobs
from palermo.contract.tasks import spawn
from palermo.errors import BrokerError, NotFound
from palermo.worker.options import WorkerOptions
from palermo.worker.parent.broker_session import backoff, check_cancelled
from palermo.worker.registered import Registered

log = logging.getLogger("palermo.worker")

#: Maximum seconds that taking jobs is delayed by announcing unique jobs.
_ANNOUNCE_TIMEOUT = 1.0

#: Seconds at the start of a session in which the worker only takes jobs, since a leader has much to import and read.
#: Not used in a burst, which ends when it finds no jobs.
_JOBS_FIRST = 0.1

#: Maximum seconds for ending the duties, such as giving up leadership, since a lost session may not answer.
_END_TIMEOUT = 5.0


class SessionDuties:
    """The duties of a worker in successive sessions."""

    def __init__(self, options: WorkerOptions, registered: Registered, on_publish: OnJobs = ignore_jobs) -> None:
        """`on_publish` is called with the messages published for recurring jobs."""
        self._options = options
        self._registered = registered
        self._on_publish = on_publish
        self._retention = FailedRetention(options.settings)
        self._failure = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def prepare(self, broker: Broker) -> None:
        """Perform the duties that come before taking jobs. Raises BrokerError."""
        await subscribe_groups(broker, self._registered.subscriptions)
        announcing = self._start(broker, self._announce)
        # Don't wait longer: during an alarm RabbitMQ can't store records, but jobs must continue.
        await asyncio.wait({announcing}, timeout=_ANNOUNCE_TIMEOUT)

    def begin(self, broker: Broker) -> None:
        """Start the other duties once the worker takes jobs."""
        if self._retention.wanted:
            self._start(broker, self._trim_failed_jobs)
        if self._options.scheduler:
            self._start(broker, self._lead)
            self._start(broker, self._declare)

    def job_failed(self) -> None:
        """Schedule the removal of failed jobs above the limits."""
        self._failure.set()

    async def end(self) -> None:
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_END_TIMEOUT)

    def _start(self, broker: Broker, duty: Callable[[Broker], Coroutine[Any, Any, None]]) -> "asyncio.Task[None]":
        return spawn(self._tasks, _guarded(duty, broker))

    async def _announce(self, broker: Broker) -> None:
        registered = self._registered
        await _until_stored(
            "cannot store the options of unique jobs",
            broker,
            lambda: broker.keys.announce(registered.jobs, registered.unique),
        )

    async def _lead(self, broker: Broker) -> None:
        await asyncio.sleep(0.0 if self._options.burst else _JOBS_FIRST)
        try:
            await broker.run_scheduler(self._on_publish)
        except BrokerError as error:
            log.warning("scheduler stopped broker=%s error=%r", broker.describe(), str(error))

    async def _declare(self, broker: Broker) -> None:
        registered, configures = self._registered, bool(self._options.settings.schedule)
        await _until_stored(
            "cannot declare recurring jobs",
            broker,
            # A schedule that was removed while this worker ran begins now, not when the worker started.
            lambda: declare(
                broker, registered.recurring, since=clock.now(), modules=registered.modules, configures=configures
            ),
        )

    async def _trim_failed_jobs(self, broker: Broker) -> None:
        while True:
            self._failure.clear()
            await self._retention.run(broker)
            await self._failure.wait()
            await asyncio.sleep(self._retention.due_in)


async def _guarded(duty: Callable[[Broker], Coroutine[Any, Any, None]], broker: Broker) -> None:
    try:
        await duty(broker)
    except Exception:  # a bug in a broker must be visible, but must not end the worker
        log.exception("bug: a duty of the worker ended duty=%s broker=%s", duty.__name__, broker.describe())


async def _until_stored(what: str, broker: Broker, store: Callable[[], Awaitable[object]]) -> None:
    """Call `store` until it succeeds. `what` describes the pending step in the log."""
    for attempt in itertools.count(1):
        try:
            await store()
            return
        except BrokerError as error:
            check_cancelled()
            log.warning("%s, retrying broker=%s error=%r", what, broker.describe(), str(error))
        await asyncio.sleep(backoff(attempt, random.random()))


async def subscribe_groups(broker: Broker, subscriptions: Iterable[tuple[Subscription, bool]]) -> None:
    """Subscribe these groups to their events. A new group with `from_start` also gets the stored events.

    In that case, this takes as long as copying all of these events to the group.
    """
    for subscription, from_start in subscriptions:
        copied = await broker.events.subscribe(subscription, from_start=from_start)
        log.info(
            "subscribed group=%s topics=%s queue=%s%s",
            subscription.group,
            ",".join(subscription.topics),
            subscription.queue,
            f" from_before={copied}" if copied else "",
        )


async def declare(
    broker: Broker,
    entries: Iterable[RecurringEntry],
    *,
    since: float,
    modules: Sequence[str] = (),
    configures: bool = False,
) -> None:
    """Store recurring jobs that are missing or changed on the broker. A new one also runs for ticks since the time
    `since`.

    Removes entries that these modules no longer declare. If the worker `configures` a schedule, it also removes entries
    from other schedules.
    """
    found = {entry.name: entry for entry in await broker.recurring()}
    names = set[str]()
    for entry in entries:
        names.add(entry.name)
        old = found.get(entry.name)
        change = EntryChange.put(replace(entry, since=since))
        made, _ = change.made_to(old, clock.now())
        if made is not old:
            log.info("declaring a recurring job name=%s job=%s", entry.name, entry.recurring.job)
            await broker.change_recurring(change)
    for entry in found.values():
        if is_stale(entry, names=names, modules=modules, configures=configures):
            log.info("removing a recurring job that is no longer declared name=%s origin=%s", entry.name, entry.origin)
            with suppress(NotFound):
                await broker.change_recurring(EntryChange.remove(entry.name))
