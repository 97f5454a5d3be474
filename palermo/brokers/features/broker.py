"""The common part of the SQLite and Redis brokers, built on reads and steps (see steps.py)."""

import abc
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Generic, TypeVar

from palermo.brokers.features import limits, pauses_and_cancels, sweep
from palermo.brokers.features.commands import send_command
from palermo.brokers.features.consumer import StepConsumer
from palermo.brokers.features.events import StepEvents
from palermo.brokers.features.job_search import find_jobs
from palermo.brokers.features.journal import StepJournal
from palermo.brokers.features.recurring import Recurring
from palermo.brokers.features.scheduled_jobs import ScheduledJobs
from palermo.brokers.features.steps import StepStore
from palermo.brokers.features.tenants import StepTenants
from palermo.brokers.features.unique_keys import Keys, as_they_run
from palermo.brokers.features.workflows import Workflows, end_runs, key_changer
from palermo.contract.broker import Overview, Page, QueueInfo, SessionParameters
from palermo.contract.finding import FoundJobs, with_reports
from palermo.contract.recurring_entries import EntryChange, RecurringEntry
from palermo.contract.scheduled import MOVE, AlteredJob, OnJobs, ScheduledFilter, ScheduledPage, filter_for, ignore_jobs
from palermo.contract.sweep import SweepDecision, SweepProgress
from palermo.contract.worker_info import CommandReply, WorkerCommand, WorkerList
from palermo.core.election import Duty
from palermo.core.job_edit import JobEdit
from palermo.core.limits import LimitInfo
from palermo.core.message import MAX_BODY, Message
from palermo.core.topology import is_failed
from palermo.errors import BrokerRefused

S = TypeVar("S", bound=StepStore)
C = TypeVar("C", bound=StepConsumer)

#: The highest offset and limit that both databases accept.
_MOST = 2**53


class StepBroker(abc.ABC, Generic[S, C]):
    """One session. See palermo.contract.broker.Broker."""

    def __init__(self, steps: S, session: SessionParameters) -> None:
        self._steps = steps
        self._session = session
        self.journal = StepJournal(steps, session)
        self.events = StepEvents(steps, session)
        self.keys = Keys(steps)
        self.workflows = Workflows(steps, key_changer(steps), cancel_jobs=self._end_runs)
        self.tenants = StepTenants(steps, self.workflows)
        self._recurring = Recurring(steps)
        self._scheduled_jobs = ScheduledJobs(steps, self.keys, self._recurring, self.workflows)
        self._consumers: list[C] = []

    @abc.abstractmethod
    async def _sync(self) -> None:
        """Delete finished jobs and requeue those of dead workers, so that the next read sees the true state."""

    @abc.abstractmethod
    async def overview(self) -> Overview: ...

    @abc.abstractmethod
    async def workers(self) -> WorkerList: ...

    @abc.abstractmethod
    def describe(self) -> str: ...

    async def queues(self) -> list[QueueInfo]:
        return (await self.overview()).queues

    async def command(self, command: WorkerCommand, *, timeout: float = 5.0) -> list[CommandReply]:
        await self._sync()
        return await send_command(self._steps, self.workers, command, timeout=timeout)

    async def pause(self, queue: str, *, by: str = "") -> None:
        await self._steps.change((), [("set", "pauses", queue, by)])

    async def resume(self, queue: str, *, by: str = "") -> None:
        await self._steps.change((), [("unset", "pauses", queue)])

    async def all_paused(self) -> bool:
        return pauses_and_cancels.paused_in(await self._steps.fields("pauses")).every

    async def cancel(self, ids: Iterable[str], *, by: str = "", created_at: int | None = None) -> Sequence[str]:
        chosen = list(ids)
        steps = await self.workflows.cancel(chosen)
        await pauses_and_cancels.cancel(self._steps, [*chosen, *steps], by, created_at)
        return steps

    async def _end_runs(self, ids: Sequence[str]) -> None:
        await self.cancel(ids)
        await end_runs(self, ids)

    async def restore(self, ids: Iterable[str]) -> None:
        await self._steps.change((), [("restore", list(ids))])

    async def browse(
        self, queue: str, *, offset: int = 0, limit: int = 100, newest: bool = False, max_body: int = MAX_BODY
    ) -> Page:
        await self._sync()
        total, found = await self._steps.page(queue, min(offset, _MOST), min(limit, _MOST), max_body, newest=newest)
        cancelled = await pauses_and_cancels.cancelled(self._steps, found)
        if not is_failed(queue):
            found = await as_they_run(self._steps, found, max_body=max_body)
        return Page(messages=tuple(found), total=total, cancelled=cancelled)

    async def find(
        self, ids: Collection[str], *, queue: str = "", failed: bool = True, beginnings: bool = False
    ) -> FoundJobs:
        await self._sync()
        jobs = await find_jobs(self._steps, ids, failed=failed, beginnings=beginnings)
        found = await self.workflows.with_workflows(jobs, ids, failed=failed)
        return FoundJobs(jobs=with_reports(found, await self.workers()))

    async def sweep(
        self,
        queue: str,
        decide: Callable[[Message], SweepDecision],
        *,
        progress: Callable[[SweepProgress], None] | None = None,
        only_look: bool = False,
        ids: Collection[str] = (),
        most: int | None = None,
    ) -> SweepProgress:
        await self._sync()
        return await sweep.sweep(self._steps, self.workflows, queue, decide, progress, ids=frozenset(ids))

    async def purge(self, queue: str) -> int:
        await self._sync()
        return await sweep.purge(self._steps, self.workflows, queue)

    async def delete(self, queue: str) -> int:
        removed = await self.purge(queue)
        await self.events.unsubscribe_queue(queue)
        while not await self._steps.delete_empty(queue):
            removed += await sweep.purge(self._steps, self.workflows, queue)
        return removed

    async def migrate(self, queue: str, kind: str, *, progress: Callable[[SweepProgress], None] | None = None) -> int:
        raise BrokerRefused(f"queues in {self.describe()} have no types, so there is nothing to migrate.")

    async def run_scheduler(self, fired: OnJobs = ignore_jobs) -> None:
        await self._scheduled_jobs.run(fired)

    @property
    def duties(self) -> tuple[Duty, ...]:
        return (Duty.MAIN,) if self._scheduled_jobs.is_leader else ()

    async def scheduled(self, chosen: ScheduledFilter, *, offset: int = 0, limit: int = 100) -> ScheduledPage:
        return await self._scheduled_jobs.show(chosen, offset=min(offset, _MOST), limit=min(limit, _MOST))

    async def scheduled_progress(self) -> None:
        return None  # stored in order; `scheduled` reads only a page

    async def alter_scheduled(
        self, chosen: ScheduledFilter, action: str, *, at: float | None = None, failed_per_queue: bool = False
    ) -> list[AlteredJob]:
        return await self._scheduled_jobs.alter(
            filter_for(chosen, action), action, at, failed_per_queue=failed_per_queue
        )

    async def edit_scheduled(self, id: str, edit: JobEdit) -> list[AlteredJob]:
        return await self._scheduled_jobs.alter(ScheduledFilter(ids=frozenset({id})), MOVE, edit.run_at, edit=edit)

    async def recurring(self) -> list[RecurringEntry]:
        return await self._recurring.all()

    async def change_recurring(self, change: EntryChange) -> None:
        await self._recurring.change(change)

    async def limits(self) -> list[LimitInfo]:
        return await limits.list_limits(self._steps)
