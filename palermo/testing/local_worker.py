"""A test's worker: the real `Worker` with a pool in this process."""

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Collection

from msgspec.structs import replace

from palermo.client import prepare_recurring
from palermo.client.client import Client
from palermo.contract import clock
from palermo.contract.broker import Broker
from palermo.contract.scheduled import ScheduledFilter
from palermo.contract.serialization import Accept
from palermo.core.journal_records import RecordKind
from palermo.core.queue_selection import QueueSelection
from palermo.core.topology import worker_tag
from palermo.errors import PalermoError
from palermo.jobs import registry
from palermo.jobs.job_registry import Registry
from palermo.testing.failures import JobFailure
from palermo.testing.local_pool import LocalPool, LocalRun
from palermo.worker.child import registration
from palermo.worker.child.executor import Executor, OnError, ReturnValues
from palermo.worker.child.interrupts import SharedInterrupts
from palermo.worker.options import WorkerFailed, WorkerOptions
from palermo.worker.parent.session_duties import declare, subscribe_groups
from palermo.worker.parent.shutdown import DONE, FORCED
from palermo.worker.parent.worker import Worker
from palermo.worker.registered import Registered
from palermo.worker.signals import Action

#: Seconds within which due jobs must be in their queues.
_SCHEDULER_TIMEOUT = 30.0

#: Distinguishes workers in the same process, since a job may start another one.
_numbers = itertools.count(1)


class LocalWorker:
    """A burst worker in this process that runs a limited number of jobs."""

    def __init__(
        self,
        client: Client,
        jobs_here: Registry,
        selection: QueueSelection,
        accept: Accept,
        *,
        jobs: int,
        hand_over: Callable[[LocalRun], object],
        failed: Callable[[list[JobFailure]], None],
        stopping: Callable[[], bool],
    ) -> None:
        """`hand_over` passes a run to the thread that performs it. `failed` is called there with the failures of each
        run.

        `stopping` returns whether a loop of `resume` must end before its next item.
        """
        self._client = client
        self._registry = jobs_here
        self._accept = accept
        self._left = jobs
        self._ran = 0
        self._hand_over = hand_over
        self._failed = failed
        self._stopping = stopping
        #: Number of recorded failures of runs that have not been counted yet.
        self._noted = 0
        #: Number of jobs that failed without a run, for example because another job holds their unique key.
        self.failed_unrun = 0
        self._host = f"test-{next(_numbers)}"
        self._options = WorkerOptions(
            settings=client.settings,
            modules=("palermo.testing",),
            queues=selection,
            pool="thread",
            burst=True,
            # They become due when the test moves the clock, or when the job ends in which this worker runs.
            burst_waits_for_limits=False,
            accept=accept,
            scheduler=False,
        )
        self._worker: Worker | None = None
        self._abandoned = False

    async def run(self) -> int:
        """Run due jobs, up to the maximum, and return how many ran. Raises WorkerFailed."""
        if self._abandoned:
            return 0
        registered = registered_here(self._client)
        pool = LocalPool(self._executor, self._registry, registered, hand_over=self._hand_over, failed=self._note)
        self._worker = Worker(
            self._options, pool, registered, host=self._host, pid=os.getpid(), show_title=lambda title: None
        )
        self._worker.shared.job_events.count_run = self._count
        code = await self._worker.run()
        if code not in (DONE, FORCED):
            raise WorkerFailed(f"the test's worker exited with code {code}. See its log for the cause.")
        return self._ran

    def abandon(self) -> None:
        """End immediately, and requeue the running job. Called in the worker's loop."""
        self._abandoned = True
        if self._worker is not None:
            self._worker.order(Action.ABANDON)

    def _note(self, failures: list[JobFailure]) -> None:
        self._noted += len(failures)
        self._failed(failures)

    def _count(self, kind: str, queue: str, job: str, wait: float | None, took: float | None) -> None:
        if kind in (RecordKind.FAILED, RecordKind.RETRIED):
            if self._noted:
                self._noted -= 1
            else:
                self.failed_unrun += 1
        self._ran += 1
        self._left -= 1
        if not self._left and self._worker is not None:
            self._worker.order(Action.FINISH)

    def _executor(self, interrupts: SharedInterrupts, on_error: OnError) -> Executor:
        settings, serializers = self._client.settings, self._client.serializers
        return Executor(
            registry=self._registry,
            serializers=serializers,
            accept=self._accept,
            worker=worker_tag(os.getpid(), self._host, 1),
            interrupts=interrupts,
            return_values=ReturnValues(serializers, serializer=settings.serializer, limit=settings.max_result),
            now=clock.now,
            on_error=on_error,
            stopping=self._stopping,
        )


def registered_here(client: Client) -> Registered:
    """Return this process's registrations without hooks of worker processes, which a test doesn't have."""
    return replace(registration.collect(registry, client), hooks=frozenset())


def subscribe(client: Client) -> None:
    """Subscribe this process's groups, like a worker that starts."""
    subscriptions = registered_here(client).subscriptions
    if subscriptions:
        client.run(lambda broker: subscribe_groups(broker, subscriptions))


def declare_entries(client: Client, jobs: Collection[str], *, since: float) -> None:
    """Store recurring jobs on the broker, like a worker that started at `since`. `jobs` selects them; by default
    all.
    """
    entries = [entry for entry in prepare_recurring.declarations(client) if not jobs or entry.recurring.job in jobs]
    client.run(lambda broker: declare(broker, entries, since=since))


async def publish_due(broker: Broker) -> None:
    """Let the broker move due jobs into their queues."""
    if not await _has_due(broker):
        return
    scheduler = asyncio.ensure_future(broker.run_scheduler())
    until = time.monotonic() + _SCHEDULER_TIMEOUT
    try:
        while await _has_due(broker):
            if scheduler.done():
                scheduler.result()
            if time.monotonic() > until:
                raise PalermoError(f"due jobs were not queued within {_SCHEDULER_TIMEOUT:g} s.")
            await asyncio.sleep(0)
    finally:
        scheduler.cancel()
        await asyncio.wait({scheduler})


async def _has_due(broker: Broker) -> bool:
    """Whether a scheduled job, a recurring job or a job stored with its key is due."""
    now = clock.wall_clock()
    if (await broker.scheduled(ScheduledFilter(due=(0.0, now)), limit=1)).total:
        return True
    if any(entry.next is not None and entry.next <= now for entry in await broker.recurring()):
        return True
    if await broker.workflows.next_due() is not None:
        return True
    return any(key.alarm is not None and key.alarm <= now for key in await broker.keys.known())
