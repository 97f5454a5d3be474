"""The state shared by a worker's slots and its other parts."""

import asyncio
from collections.abc import Callable

from msgspec import Struct, field

from palermo.core.lifecycle import Cancelled, Interrupted, Raised, Result, Retrying
from palermo.core.message import Message
from palermo.core.queue_selection import QueueSelection
from palermo.worker.options import WorkerOptions
from palermo.worker.parent.broker_session import BrokerSessions
from palermo.worker.parent.job_events import JobEvents
from palermo.worker.parent.outcomes import AdoptedJobs, Outcomes
from palermo.worker.pools.pool import Pool
from palermo.worker.registered import Registered


class WorkerState(Struct, kw_only=True, eq=False):
    """The shared state and parts of one worker."""

    options: WorkerOptions
    selection: QueueSelection
    registered: Registered
    pool: Pool
    sessions: BrokerSessions
    outcomes: Outcomes
    adopted_jobs: AdoptedJobs
    job_events: JobEvents
    #: Set once the worker is stopping.
    stopping: asyncio.Event
    #: Called when a slot has taken a job, and when it has settled it or failed to; and when a job has failed.
    on_change: Callable[[], None]
    on_failure: Callable[[], None]
    #: Set when queues may have become empty, because a job has ended or the worker has started.
    may_be_empty: asyncio.Event = field(default_factory=asyncio.Event)
    #: Whether the slots take jobs; false while the worker is paused or stopping.
    taking: bool = True
    #: Minimum seconds between the starts of two jobs in a slot, set by the hook queue_size.
    pace: float = 0.0
    #: Limit keys of the latest deferred jobs, for which a burst must wait.
    deferred_keys: dict[str, None] = field(default_factory=dict)
    #: Number of jobs taken, running, ended and failed.
    taken: int = 0
    busy: int = 0
    processed: int = 0
    failed: int = 0

    async def hook(self, name: str) -> None:
        """Run the worker hooks with this name, if any."""
        if name in self.registered.hooks:
            await self.pool.hook(name)

    def job_began(self) -> None:
        """Count a job that a slot has taken."""
        self.busy += 1
        self.taken += 1
        self.on_change()

    def job_ended(self, message: Message, result: Result, *, settled: bool) -> None:
        """Count a job that a slot has settled, or could not settle."""
        self.busy -= 1
        self.outcomes.ended(message, result, settled=settled)
        if not isinstance(result, (Interrupted, Cancelled)):
            self.processed += 1
        if isinstance(result, Raised) or (isinstance(result, Retrying) and result.failure is not None):
            self.failed += 1
        if isinstance(result, Raised):
            self.on_failure()
        self.on_change()
        self.may_be_empty.set()
