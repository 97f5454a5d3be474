"""Finds steps whose jobs another program has removed or lost.

Promise: a lost job is published again once. If it is lost a second time, its step fails. If Palermo itself removes the
job, the step is cancelled: see RabbitmqWorkflows.leaving. Cost: every 20 seconds a check of the workflows that have not
changed since the last one. The workers and the index of scheduled jobs are asked only if one of the queues is empty or
missing.

A job may be on its way from its queue to a worker, so it must be missing in two checks. An operator may have moved the
job to another queue, so no job is published again while jobs wait in any queue.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from palermo.brokers.features.workflows import Workflows
from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.cluster.facts import Facts
from palermo.brokers.rabbitmq.cluster.worker_control import ask_workers
from palermo.brokers.rabbitmq.publishing.job_destinations import TenantQueue
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.brokers.rabbitmq.publishing.turns import take_turns
from palermo.brokers.rabbitmq.scheduling.scheduled_jobs import ScheduledJobs
from palermo.brokers.rabbitmq.unique.known_keys import in_turns
from palermo.brokers.rabbitmq.unique.orphaned_keys import LOOK_EVERY, TenantHasJobs, running
from palermo.brokers.rabbitmq.workflows.leader_workflows import LeaderWorkflows, Packed
from palermo.contract.clock import wall_clock
from palermo.contract.scheduled import ScheduledFilter
from palermo.core.failure import from_exception
from palermo.core.lifecycle import fail
from palermo.core.message import Message
from palermo.core.queue_selection import QueueSelection
from palermo.core.topology import amqp_queue, is_failed
from palermo.core.workflow import step_of
from palermo.core.workflow_rules import How
from palermo.errors import NotFound

log = logging.getLogger("palermo.rabbitmq")

#: Number of workflows read in one turn of the loop.
_AT_ONCE = 50

#: A run of a step, by workflow, path and generation.
StepRun = tuple[str, str, int]

#: The jobs of step runs, without their arguments.
Jobs = Mapping[StepRun, Message]


class LostSteps:
    """Finds lost steps of one exchange, for the leader."""

    def __init__(
        self,
        exchange: str,
        connection: Connection,
        outbox: Outbox,
        facts: Facts,
        workflows: LeaderWorkflows,
        scheduled_jobs: ScheduledJobs,
        tenant_has_jobs: TenantHasJobs,
    ) -> None:
        self._exchange = exchange
        self._connection = connection
        self._outbox = outbox
        self._facts = facts
        self._workflows = workflows
        self._scheduled_jobs = scheduled_jobs
        self._tenant_has_jobs = tenant_has_jobs
        #: The workflows at the last check, and the jobs that were missing then.
        self._before: Mapping[str, Packed] = {}
        self._missed: Jobs = {}
        #: The step runs whose jobs were published again.
        self._again: set[StepRun] = set()

    async def watch(self) -> None:
        """Publish lost jobs again as long as this process is the leader."""
        await take_turns(self._look, asyncio.Event(), self._connection, "cannot check for lost steps")

    async def _look(self) -> float:
        before, self._before = self._before, self._workflows.states
        still = [id for id, state in self._before.items() if before.get(id) is state]
        self._again = {run for run in self._again if run[0] in self._before}
        jobs: Jobs = {}
        async for some in in_turns(still, at_once=_AT_ONCE):
            jobs = {**jobs, **await self._workflows.ask(partial(self._out, ids=some))}
        found = await self._nowhere(await self._missing(jobs))
        lost = {run: job for run, job in found.items() if run in self._missed}
        if lost and await self._is_quiet():
            await self._workflows.ask(partial(self._mend, lost=lost))
        self._missed = found
        return LOOK_EVERY

    async def _out(self, engine: Workflows, ids: Iterable[str]) -> Jobs:
        """The waiting and running jobs of these workflows."""
        jobs = [job for id in ids for job in await engine.jobs_out(id) if job.id not in self._workflows.refused]
        return {run: replace(job, body=b"") for job in jobs if (run := step_of(job.extra)) is not None}

    async def _missing(self, jobs: Jobs) -> Jobs:
        """The jobs among these that are not in their queues, and can't be with a worker of another program."""
        if not jobs:
            return {}
        served = [QueueSelection.parse(one.queues) for one in await ask_workers(self._connection, self._exchange)]
        places = {TenantQueue(job.queue, job.tenant) for job in jobs.values()}
        full = {place for place in places if await self._may_hold(place, served)}
        return {run: job for run, job in jobs.items() if TenantQueue(job.queue, job.tenant) not in full}

    async def _may_hold(self, place: TenantQueue, served: Sequence[QueueSelection]) -> bool:
        """Whether a job may wait here, or be with another program's worker, whose jobs are unknown."""
        probe = await self._connection.probe(amqp_queue(self._exchange, place.queue))
        if probe.exists and probe.messages:
            return True
        if probe.exists and probe.consumers and not any(place.queue in one.select([place.queue]) for one in served):
            return True
        return bool(place.tenant) and await self._tenant_has_jobs(place)

    async def _is_quiet(self) -> bool:
        """Whether no job waits in any queue. If one does, it may be a step's job that an operator has moved."""
        known = (await self._facts.read(self._connection)).queues
        queues = [name for name in known if not is_failed(name) and not name.startswith("~")]
        probes = (await self._facts.probe(self._connection, queues)).values()
        return not any(probe.exists and probe.messages for probe in probes)

    async def _nowhere(self, jobs: Jobs) -> Jobs:
        """The jobs among these that no worker has and that are not scheduled. The queues were checked before."""
        with_workers = await running(self._exchange, self._connection) if jobs else None
        if with_workers is None:
            return {}
        ids = frozenset(job.id for job in jobs.values()) - with_workers
        page = await self._scheduled_jobs.page(ScheduledFilter(ids=ids), offset=0, limit=len(ids))
        ids -= {message.id for message in page.messages}
        return {run: job for run, job in jobs.items() if job.id in ids}

    async def _mend(self, engine: Workflows, lost: Jobs) -> None:
        """Publish these jobs again, unless their steps have ended; fail steps whose jobs are lost again."""
        again = list[Message]()
        for id in {id for id, _, _ in lost}:
            for job in await engine.jobs_out(id):
                run = step_of(job.extra)
                if run is None or run not in lost:
                    continue
                log.warning("cannot find the job of a step id=%s queue=%s", job.id, job.queue)
                if run in self._again:
                    await self._fail(job)
                    await engine.end(job, How.FAILED, (), ())
                else:
                    self._again.add(run)
                    again.append(job)
        await engine.put_again(again)

    async def _fail(self, job: Message) -> None:
        error = NotFound(f"job {job.id} was lost: no queue or worker has it, although it was published again.")
        failed = fail(job, from_exception(error, failed_at=int(wall_clock())), worker="")
        await self._outbox.publish(failed, self._outbox.destinations.failed_place(job.queue))
