"""The main duty: scheduled and recurring jobs, the keys of unique jobs, limits and rates.

The tenants' queues belong to the other duty, which is asked about them when keys are freed.
"""

from collections.abc import Awaitable, Iterable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.brokers.rabbitmq.cluster.cancels import CancelMarks
from palermo.brokers.rabbitmq.cluster.facts import Facts
from palermo.brokers.rabbitmq.journal import StreamJournal
from palermo.brokers.rabbitmq.leadership import operations
from palermo.brokers.rabbitmq.leadership.key_client import RabbitmqKeys
from palermo.brokers.rabbitmq.leadership.limits import LeaderLimits
from palermo.brokers.rabbitmq.leadership.operations import AsJson, Operation
from palermo.brokers.rabbitmq.leadership.work import Ask, Work
from palermo.brokers.rabbitmq.leadership.workflow_client import RabbitmqWorkflows
from palermo.brokers.rabbitmq.leadership.workflow_requests import reply
from palermo.brokers.rabbitmq.publishing.job_destinations import TenantQueue
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.brokers.rabbitmq.scheduling.recurring_jobs import RecurringJobs
from palermo.brokers.rabbitmq.scheduling.scheduled_jobs import ScheduledJobs
from palermo.brokers.rabbitmq.unique import orphaned_keys
from palermo.brokers.rabbitmq.unique.unique_keys import UniqueKeys
from palermo.brokers.rabbitmq.workflows.leader_workflows import LeaderWorkflows
from palermo.brokers.rabbitmq.workflows.lost_steps import LostSteps
from palermo.contract.broker import KeyPage, SessionParameters
from palermo.contract.clock import wall_clock
from palermo.contract.scheduled import OnJobs
from palermo.contract.tasks import together
from palermo.core.message import Message
from palermo.core.unique_rules import RunOutcome, StartAnswer


class MainDuty(Work):
    """The work of the main leader."""

    def __init__(
        self,
        session: SessionParameters,
        connection: Connection,
        outbox: Outbox,
        ask: Ask,
        answers: Channel,
        fired: OnJobs,
        *,
        stands_in: bool,
    ) -> None:
        """The answers of `handle_now` are sent on the channel `answers`.

        `fired` is called with the jobs that recurring jobs have published.
        """
        self._exchange = session.exchange
        self._connection = connection
        self._ask = ask
        self._stands_in = stands_in
        states = versions.arguments(session.queue_type, connection.version)
        self._unique_keys = UniqueKeys(session.exchange, connection, outbox, states, answers, now=wall_clock)
        workflows = RabbitmqWorkflows(session, connection, outbox, self.handle, self._same_connection)
        keys = RabbitmqKeys(session, connection, outbox, self.handle, self._same_connection, workflows.running)
        self._running_workflows = workflows.running

        async def leaving(jobs: Iterable[Message]) -> None:
            gone = list(jobs)
            await keys.leaving(gone)
            await workflows.leaving(gone)

        self._scheduled_jobs = ScheduledJobs(
            session.exchange,
            connection,
            outbox,
            states,
            leaving,
            self._unique_keys.moved,
            keys.as_they_run,
            publishes=not stands_in,
        )
        self._limits = LeaderLimits(session.exchange, connection, self._scheduled_jobs.due_jobs)
        self._cancels = CancelMarks(session.exchange, connection, outbox.open, patience=session.timeout)
        journal = StreamJournal(session, connection, self._same_connection)

        async def change_key(root: Message, how: RunOutcome) -> tuple[Sequence[Any], Sequence[Any]] | None:
            # Stored before the workflow. If this leader dies in between, the next one ends the workflow again, or frees
            # the key of a workflow that does not continue as an orphaned one.
            return ((), ()) if await self._unique_keys.workflow_changed(root, how) else None

        self._workflows = LeaderWorkflows(
            session.exchange,
            connection,
            outbox,
            states,
            append=journal.append,
            change_key=change_key,
            cancel_jobs=self._cancel_jobs,
        )
        self._facts = Facts(session.exchange, connection, outbox.open, patience=session.timeout)
        self._lost_steps = LostSteps(
            session.exchange, connection, outbox, self._facts, self._workflows, self._scheduled_jobs, self.has_jobs
        )
        self._recurring_jobs = RecurringJobs(session.exchange, connection, outbox, states, now=wall_clock, fired=fired)

    async def begin(self) -> None:
        """See Work.begin."""
        await self._scheduled_jobs.begin()

    def tasks(self) -> Sequence[Awaitable[None]]:
        """See Work.tasks."""
        watching = orphaned_keys.watch(
            self._exchange,
            self._connection,
            self._unique_keys,
            wall_clock,
            self.has_jobs,
            self._running_workflows,
        )
        always = self._unique_keys.run(), watching, self._limits.run()
        return (
            always
            if self._stands_in
            else (
                *always,
                self._scheduled_jobs.run(),
                self._recurring_jobs.run(),
                self._workflows.run(),
                self._lost_steps.watch(),
                self._facts.keep(self._connection),
            )
        )

    async def close(self) -> None:
        """See Work.close."""
        workflows, keys = self._workflows.close(), self._unique_keys.close()
        await together(workflows, self._recurring_jobs.close(), self._scheduled_jobs.close(), keys)

    async def _same_connection(self) -> Connection:
        return self._connection

    async def _cancel_jobs(self, ids: Sequence[str]) -> None:
        await self._cancels.cancel(list(ids), "deadline", None)

    def handle_now(self, operation: Operation[Any]) -> Any:
        """See Work.handle_now."""
        match operation:
            case operations.GiveSign():
                return None
            case operations.StartJob(message=message, worker=worker, run=run, again=again):
                start = self._unique_keys.start_now(message, worker=worker, run=run, again=again)
                return NotImplemented if start is None else _start(start)
            case operations.RequestPermit() | operations.EndRun() | operations.ListLimits() if self._limits.knows:
                return self._decide_limit(operation)
        return NotImplemented

    async def handle(self, operation: Operation[Any]) -> Any:
        """See Work.handle."""
        keys, scheduled = self._unique_keys, self._scheduled_jobs
        match operation:
            case operations.StartJob(message=message, worker=worker, run=run, again=again):
                return _start(await keys.start(message, worker=worker, run=run, again=again))
            case operations.EnqueueUnique(claims):
                return await keys.enqueue([claim.value for claim in claims])
            case operations.ReadmitJobs(messages):
                return await keys.readmit([message.value for message in messages])
            case operations.RemoveJobs(jobs, drop_next):
                return await keys.removed(jobs, drop_next=drop_next)
            case operations.CancelJobs(ids):
                return await keys.cancelled(ids)
            case operations.FreeKeys(names):
                return await keys.free(names)
            case operations.ListKeys(text, offset, limit, after):
                return _page(await keys.page(text, offset=offset, limit=limit, after=after))
            case operations.FindKeys(names):
                return _page(await keys.find(names))
            case operations.RequestPermit() | operations.EndRun() | operations.ListLimits():
                await self._limits.learn()
                return self._decide_limit(operation)
            case operations.ListScheduled(chosen, offset, limit):
                page = await scheduled.page(chosen, offset=offset, limit=limit)
                return operations.Scheduled([AsJson(message) for message in page.messages], page.total)
            case operations.ListingProgress():
                return scheduled.progress
            case operations.AlterScheduled(chosen, action, at, failed_per_queue):
                return await scheduled.alter(chosen, action, at, failed_per_queue=failed_per_queue)
            case operations.EditScheduled(id, edit):
                return await scheduled.edit(id, edit.value)
            case (
                operations.ListWorkflows()
                | operations.LocateWorkflows()
                | operations.ListFailedSteps()
                | operations.CancelWorkflows()
                | operations.SignalWorkflow()
                | operations.RequeueSteps()
                | operations.HasEnded()
                | operations.EndSteps()
            ):
                return await self._workflows.ask(partial(reply, operation=operation))
            case operations.MeasureWorkflows():
                return await self._workflows.size()
            case operations.ListRecurring():
                return [AsJson(entry) for entry in await self._recurring_jobs.entries()]
            case operations.ChangeRecurring(change):
                return await self._recurring_jobs.change(change.value)
        raise TypeError(operation)

    def _decide_limit(self, operation: operations.RequestPermit | operations.EndRun | operations.ListLimits) -> Any:
        match operation:
            case operations.RequestPermit(demand, id, worker):
                return self._limits.request(demand, id=id, worker=worker)
            case operations.EndRun(key, id, worker):
                return self._limits.end(key, id=id, worker=worker)
            case operations.ListLimits():
                return self._limits.known()

    async def has_jobs(self, tenant_queue: TenantQueue) -> bool:
        """Whether the tenant's own queue has waiting jobs, or might have some."""
        return await self._ask(operations.HasTenantJobs(tenant_queue.queue, tenant_queue.tenant))


def _start(answer: StartAnswer) -> operations.Start:
    content = None if answer.content is None else AsJson(answer.content)
    return operations.Start(replace(answer, content=None), content)


def _page(page: KeyPage) -> operations.Keys:
    return operations.Keys([AsJson(key) for key in page.keys], page.total)
