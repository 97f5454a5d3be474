"""Workflows: a workflow's state changes in the database step that settles, removes or requeues one of its jobs.

Promise: a workflow step is enqueued in the same database step that makes it runnable, so it is neither lost nor
enqueued twice. Its end is counted once per path and generation.
Cost: an end takes a second database step, which reads and writes the workflow's state; map members that end within
10 ms of each other share it. Arguments and outputs are stored separately, and read when needed.
If a process dies there is nothing to repair.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol
from weakref import WeakValueDictionary

from msgspec import Struct, msgpack
from msgspec.structs import replace

from palermo.brokers.features.journal import BELL
from palermo.brokers.features.steps import Outcome, Step, StepStore, Stored, puts, text_of, unchanged
from palermo.brokers.features.unique_keys import keys_of, read_states, workflow_changed
from palermo.brokers.features.workflow_steps import (
    Data,
    StoredFlow,
    data_of,
    info_of,
    jobs_again,
    jobs_out,
    location_of,
    location_of_step,
    output_name,
    read_flow,
    record_of,
    records_of_steps,
    released,
    with_jobs,
    with_steps,
)
from palermo.contract import clock
from palermo.contract.finding import JobLocation
from palermo.contract.worker_info import CommandReply, WorkerCommand, WorkerList
from palermo.contract.workflows import WorkflowInfo
from palermo.core import journal_records
from palermo.core.latest import remember
from palermo.core.lifecycle import Ack, Fail, JobState, Settlement, StoredResult
from palermo.core.message import Message
from palermo.core.plain import message_to_plain
from palermo.core.step_values import Value, pack, unpack
from palermo.core.unique_rules import RunOutcome
from palermo.core.workflow import GENERATION, Graph, step_headers, step_id, step_of, workflows_above
from palermo.core.workflow_rules import (
    Flow,
    How,
    Phase,
    StepEnd,
    advanced,
    cancelled,
    due,
    ended,
    failed_runs,
    generation_of,
    has_failed,
    is_inside,
    plans_of,
    renewed,
    retried,
    signalled,
    time_passed,
)
from palermo.errors import DuplicateJob, NotFound

log = logging.getLogger("palermo.broker")

#: Seconds that a worker has to end a job whose workflow has timed out.
_END_WITHIN = 1.0

#: Maximum number of due workflows handled at a time, and of workflows kept in memory.
_DUE, _LATEST = 100, 32


class Ending(Struct, frozen=True):
    """The end of a step whose run added no steps."""

    workflow: str
    end: StepEnd
    output: StoredResult | None
    #: The condition that the claim is still valid, None if that is known, and the changes that delete the job.
    still_valid: Step | None
    changes: Sequence[Step]

    @classmethod
    def of(cls, message: Message, ack: Ack, still_valid: Step | None, changes: Sequence[Step]) -> "Ending | None":
        """The end of this job; None if the job is not a workflow step."""
        found = step_of(message.extra)
        if found is None:
            return None
        workflow, path, generation = found
        how = How.DONE if ack.done else How.CANCELLED if ack.cancelled else How.DISCARDED
        return cls(workflow, StepEnd(path=path, how=how, generation=generation), ack.output, still_valid, changes)


#: Receives a workflow, None if it doesn't exist; returns the changed one, or None for no change.
Decide = Callable[[StoredFlow | None], StoredFlow | None]

#: Cancels jobs by id, also running ones.
CancelJobs = Callable[[Sequence[str]], Awaitable[None]]


#: Frees the key of a unique workflow that has ended, or takes it for one that continues. Receives the job that started
#: the workflow. Returns the conditions and changes to store; None if another job has the key.
ChangeKey = Callable[[Message, RunOutcome], Awaitable[tuple[Sequence[Step], Sequence[Step]] | None]]


def key_changer(store: StepStore) -> ChangeKey:
    """A ChangeKey for the keys of this store."""

    async def change(root: Message, how: RunOutcome) -> tuple[Sequence[Step], Sequence[Step]] | None:
        states = await read_states(store, keys_of([root]))
        return (states.conditions, states.changes) if workflow_changed(states, root, how) else None

    return change


class FlowStore(Protocol):
    """The part of a StepStore that workflows need."""

    async def states(self, table: str, names: Sequence[Stored]) -> list[Stored | None]: ...
    async def flow_data(self, workflow: str, names: Sequence[str]) -> list[bytes | None]: ...
    async def due(self, table: str, now: float, most: int) -> Sequence[str]: ...
    def scan(self, table: str) -> AsyncIterator[tuple[Any, Any]]: ...
    async def try_change(self, conditions: Sequence[Step], changes: Sequence[Step]) -> Outcome: ...


class OrdersWorkers(Protocol):
    """The part of a broker that sends commands to workers."""

    async def workers(self) -> WorkerList: ...
    async def command(self, command: WorkerCommand, *, timeout: float = 5.0) -> list[CommandReply]: ...


_NOTHING: Mapping[str, bytes] = {}


class Workflows:
    """The workflows of one exchange. See palermo.contract.workflows.Workflows."""

    def __init__(
        self,
        store: FlowStore,
        change_key: ChangeKey,
        *,
        cancel_jobs: CancelJobs | None = None,
    ) -> None:
        """`cancel_jobs` cancels jobs by id."""
        self._store = store
        self._change_key = change_key
        self._cancel_jobs = cancel_jobs
        #: Held while this session changes a workflow, so that its slots don't force each other to retry.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        #: The workflows that this session stored last, each with its stored form, so that they needn't be read again.
        self._latest: dict[str, tuple[Stored, StoredFlow]] = {}

    # Changes caused by jobs.

    async def settle(
        self, message: Message, settlement: Settlement, conditions: Sequence[Step], changes: Sequence[Step]
    ) -> int:
        """Settle a job that is a step or has added steps, together with its workflow.

        Returns 0, or the number, from 1, of the entry in `conditions` that failed.
        """
        match settlement:
            case Ack(adds=adds):
                graph = unpack(adds, Graph) if adds else None
                return await self.end(message, How.DONE, conditions, changes, graph=graph)
            case Fail():
                return await self.end(message, How.FAILED, conditions, changes)
        return (await self._store.try_change(conditions, changes)).failed

    async def end_together(self, id: str, endings: Sequence[Ending]) -> list[Ending]:
        """End steps of one workflow whose runs added no steps. Returns those whose claims were no longer valid."""
        left, lost = list(endings), list[Ending]()

        def decide(stored: StoredFlow | None) -> StoredFlow | None:
            if stored is None:
                return None
            flow = stored.flow
            for one in left:
                flow = ended(flow, one.end)
            return None if flow is stored.flow else replace(stored, flow=flow)

        while left:
            outputs = {
                output_name(one.end.path, one.end.generation): pack(Value.of(one.output))
                for one in left
                if one.output is not None
            }
            changes = [change for one in left for change in one.changes]
            conditions = [one.still_valid for one in left if one.still_valid is not None]
            failed = await self._change(id, decide, conditions, changes, outputs)
            if not failed:
                break
            lost.append(left.pop(failed - 1))
        return lost

    async def end(
        self,
        message: Message,
        how: How,
        conditions: Sequence[Step],
        changes: Sequence[Step],
        *,
        graph: Graph | None = None,
    ) -> int:
        """End a step: after its run, which may have added `graph`, or without a run. Returns the same as `settle`."""
        id, path, generation = step_of(message.extra) or (message.id, "", 0)
        fresh = {} if graph is None else dict(data_of(f"{path}/" if path else "", graph, generation))
        plans = None if graph is None else tuple(added.plan for added in graph.steps)
        end = StepEnd(path=path, how=how, generation=generation, adds=plans)

        def decide(stored: StoredFlow | None) -> StoredFlow | None:
            if stored is not None and path:
                flow = ended(stored.flow, end)
                return None if flow is stored.flow else replace(stored, flow=flow)
            if path or plans is None or graph is None:
                return None
            root, flow, now = message_to_plain(replace(message, body=b"")), Flow(plans=plans), clock.now()
            if stored is not None:
                earlier = stored.message
                if (earlier.created_at, earlier.queued_at) == (message.created_at, message.queued_at):
                    return None
                if not stored.flow.view.whole.over:
                    log.warning("workflow not started, because another one with its id is running id=%s", id)
                    return None
                flow = renewed(stored.flow, plans)
                fresh.setdefault("o:", b"")
            deadline = None if graph.deadline is None else now + graph.deadline
            return StoredFlow(flow=replace(flow, deadline=deadline), root=root, began_at=now)

        return await self._change(id, decide, conditions, changes, fresh)

    async def remove(self, jobs: Iterable[tuple[Message, Step, Step]], *, how: How = How.CANCELLED) -> list[Message]:
        """Remove jobs of steps that won't run; return the jobs that still existed.

        Each job comes with the condition that it exists, and the change that removes it.
        """
        return [message for message, there, removal in jobs if not await self.end(message, how, [there], [removal])]

    async def requeue(self, message: Message, conditions: Sequence[Step], put: Callable[[Message], Step]) -> bool:
        """Run a failed step again; `put` builds the change that enqueues its job.

        Returns False if the job no longer exists, its step isn't failed any more, a later step still runs, or another
        job has the key of the workflow.
        """
        found = step_of(message.extra)
        assert found is not None
        id, path, generation = found
        changes = [put(message)]
        may = True

        def decide(stored: StoredFlow | None) -> StoredFlow | None:
            nonlocal may
            may = True
            if stored is None:
                return None
            now = generation_of(stored.flow, path)
            if now == generation + 1 and path in stored.flow.view.out:
                # On RabbitMQ the state and the job need two steps. An earlier requeue changed the state, but its job
                # did not reach its queue.
                changes[:] = [put(replace(message, extra={**message.extra, GENERATION: now}))]
                return None
            if stored.flow.cancels or not has_failed(stored.flow, path) or generation != now:
                may = False
                return None
            try:
                flow = retried(stored.flow, [path])
            except ValueError:
                may = False
                return None
            again = step_headers(id, path, generation_of(flow, path), output=False)
            changes[:] = [put(replace(message, extra={**message.extra, **again}))]
            return replace(stored, flow=flow)

        try:
            failed = await self._change(id, decide, conditions, changes, placed=path, wanted=lambda: may)
        except DuplicateJob:
            return False
        return may and not failed

    async def put_again(self, jobs: Iterable[Message]) -> None:
        """Enqueue lost jobs of steps again. If their workflow is cancelled, cancel the steps instead."""
        again = list[Message]()
        for job in jobs:
            id, _, _ = step_of(job.extra) or ("", "", 0)
            stored = await self._stored(id)
            if stored is None or stored.flow.cancels:
                await self.end(job, How.CANCELLED, (), ())
            else:
                again.append(job)
        await self._store.try_change((), puts(again))

    # Changes caused by users and by time.

    async def cancel(self, ids: Collection[str]) -> list[str]:
        """Cancel the workflows and steps among these jobs; return the ids of other jobs that must be cancelled too."""
        found: list[str] = []
        chosen = [(id, top) for each in ids for id, top in [(each, ""), *workflows_above(each)]]
        for (id, top), state in zip(chosen, await self._states([id for id, _ in chosen]), strict=True):
            if state is None:
                continue
            out: list[str] = []

            def decide(
                stored: StoredFlow | None, id: str = id, top: str = top, out: list[str] = out
            ) -> StoredFlow | None:
                if stored is None:
                    return None
                out[:] = [step_id(id, path) for path in jobs_out(stored.flow) if is_inside(path, top)]
                return replace(stored, flow=cancelled(stored.flow, top))

            await self._change(id, decide)
            found += out
        return found

    async def signal(self, id: str, name: str, value: StoredResult) -> None:
        def decide(stored: StoredFlow | None) -> StoredFlow | None:
            if stored is None or stored.flow.view.whole.over:
                raise NotFound(
                    f"workflow {id} is not waiting for signals, because it has not added steps yet or has ended."
                    f" `palermo status {id}` shows its state."
                )
            if name in stored.flow.signals:
                return None
            return replace(stored, flow=signalled(stored.flow, name))

        await self._change(id, decide, fresh={f"s:{name}": pack(Value.of(value))})

    async def pass_time(self, now: float) -> None:
        """Apply the timeouts of signals and workflows that have expired."""
        for name in await self._store.due("flows", now, _DUE):
            out: list[str] = []

            def decide(stored: StoredFlow | None, out: list[str] = out) -> StoredFlow | None:
                if stored is None:
                    return None
                flow = time_passed(stored.flow, now)
                out[:] = jobs_out(stored.flow) if flow.expired and not stored.flow.expired else []
                return replace(stored, flow=flow)

            await self._change(name, decide)
            if out and self._cancel_jobs is not None:
                await self._cancel_jobs([step_id(name, path) for path in out])

    # Reads.

    async def all(self) -> list[WorkflowInfo]:
        """All active and failed workflows, oldest first."""
        found = [
            info_of(text_of(id), stored)
            async for id, state in self._store.scan("flows")
            if (stored := read_flow(state)) is not None
        ]
        return sorted(found, key=lambda info: info.began_at)

    async def find(self, id: str) -> WorkflowInfo | None:
        stored = await self._stored(id)
        if stored is None:
            return None
        info = with_steps(info_of(id, stored), stored.flow)
        return await with_jobs(info, Data(id, stored.flow, self._store.flow_data, _NOTHING))

    async def failed_jobs(self, id: str) -> list[str]:
        stored = await self._stored(id)
        if stored is None:
            return []
        plans = plans_of(stored.flow)
        failed = [path for path in failed_runs(stored.flow) if path not in plans or not plans[path].signal]
        # On RabbitMQ an interrupted requeue may have changed a step's state without moving its job.
        requeued = [path for path in jobs_out(stored.flow) if generation_of(stored.flow, path)]
        return [step_id(id, path) for path in failed + requeued]

    async def has_ended(self, id: str, path: str, generation: int) -> bool:
        """Whether the end of this run of a step is stored; False if its workflow is finished or unknown."""
        stored = await self._stored(id)
        if stored is None:
            return False
        return generation < generation_of(stored.flow, path) or path not in jobs_out(stored.flow)

    async def jobs_out(self, id: str) -> list[Message]:
        """The waiting and running jobs of a workflow's steps, in the form of a new release."""
        stored = await self._stored(id)
        if stored is None:
            return []
        data = Data(id, stored.flow, self._store.flow_data, _NOTHING)
        return [job async for job in jobs_again(data, stored, clock.now())]

    async def with_workflows(
        self, found: Iterable[JobLocation], ids: Collection[str], *, failed: bool
    ) -> list[JobLocation]:
        """These jobs, and the workflows with the other ids, as running jobs, or, if `failed`, as failed ones.

        A step that waits for the steps that it added is a running job.
        """
        places = list(found)
        for id in sorted(set(ids) - {place.id for place in places}):
            for workflow, path in [(id, ""), *workflows_above(id)]:
                if (stored := await self._stored(workflow)) is None:
                    continue
                data = Data(workflow, stored.flow, self._store.flow_data, _NOTHING)
                place = await location_of_step(stored, path, data) if path else location_of(stored)
                if place is not None and (failed or place.state == JobState.WORKING):
                    places.append(place)
        return places

    async def next_due(self) -> float | None:
        """The time at which a workflow's next timeout was due; None if none is overdue."""
        return clock.now() if await self._store.due("flows", clock.now(), 1) else None

    async def _stored(self, id: str) -> StoredFlow | None:
        (state,) = await self._states([id])
        return read_flow(state)

    async def _states(self, ids: Sequence[str]) -> list[Stored | None]:
        return await self._store.states("flows", ids) if ids else []

    # Internals.

    async def _change(
        self,
        id: str,
        decide: Decide,
        conditions: Sequence[Step] = (),
        changes: Sequence[Step] = (),
        fresh: Mapping[str, bytes] = _NOTHING,
        *,
        placed: str = "",
        wanted: Callable[[], bool] = lambda: True,
    ) -> int:
        """Change a workflow together with other changes, if these conditions hold. `decide` may still add to `changes`.

        `fresh` is data to store with it. `changes` already contain the job of the step `placed`.
        """
        lock = self._locks.setdefault(id, asyncio.Lock())
        async with lock:
            while True:
                (state,) = await self._states([id])
                latest, kept = self._latest.get(id, (None, None))
                before = kept if latest == state else read_flow(state)
                after = decide(before)
                if not wanted():
                    return 0
                own: list[Step] = []
                more: list[Step] = []
                if after is not None and after is not before:
                    own, more = await self._steps(id, state, before, after, fresh, placed)
                if not changes and not more:
                    return 0
                outcome = await self._store.try_change([*conditions, *own], [*changes, *more])
                if outcome.failed <= len(conditions):
                    return outcome.failed

    async def _steps(
        self,
        id: str,
        state: Stored | None,
        before: StoredFlow | None,
        after: StoredFlow,
        fresh: Mapping[str, bytes],
        placed: str,
    ) -> tuple[list[Step], list[Step]]:
        """The conditions and changes that store a workflow and enqueue the steps that became runnable."""
        now = clock.now()
        ending = after
        flow, known = advanced(after.flow, now)
        after = replace(after, flow=flow)
        if before is not None and before.began_at != after.began_at:
            before = None  # an earlier workflow with this id
        was = None if before is None else before.flow.view
        was_over = was is not None and was.whole.over
        data = Data(id, flow, self._store.flow_data, fresh)
        out = known.out - {placed} - (frozenset() if was is None else was.out)
        jobs = [job async for job in released(data, before, after, out, now)]
        conditions, steps = [unchanged("flows", id, state)], puts(jobs)
        records = [record async for record in records_of_steps(id, data, was, ending, known, now)]
        if known.whole.over and not was_over:
            records.append(await record_of(id, data, after, known, now))
        if known.whole.over is not was_over:
            how = RunOutcome.AGAIN if was_over else RunOutcome.DONE if known.whole.good else RunOutcome.OVER
            key_steps = await self._change_key(after.message, how)
            if key_steps is None:
                raise DuplicateJob(f"workflow {id} needs its key to continue, but another job has it.")
            conditions += key_steps[0]
            steps += key_steps[1]
        if records:
            batch = journal_records.encode("", [journal_records.encode_record(record) for record in records])
            steps += [("append", "journal", batch, "", now), ("publish", BELL, "")]
        # A failed step waits for a requeue, unless it was cancelled.
        if known.whole.over and (known.whole.phase is not Phase.FAILED or after.flow.cancels):
            self._latest.pop(id, None)
            return conditions, [*steps, ("unset", "flows", id), ("forget_flow", id)]
        packed, at = msgpack.encode(after), due(after.flow)
        remember(self._latest, id, (packed, after), most=_LATEST)
        steps.append(("set", "flows", id, packed, False if at is None else at))
        return conditions, [*steps, *(("flow_data", id, name, value) for name, value in fresh.items())]


async def end_runs(broker: OrdersWorkers, ids: Collection[str]) -> None:
    """Command the workers to end these jobs."""
    wanted = set(ids)
    running = [(worker.id, job.id) for worker in await broker.workers() for job in worker.jobs if job.id in wanted]
    orders = (WorkerCommand(action="cancel", id=id, workers=(worker,), by="deadline") for worker, id in running)
    await asyncio.gather(*(broker.command(order, timeout=_END_WITHIN) for order in orders))
