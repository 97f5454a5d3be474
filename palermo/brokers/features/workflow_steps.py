"""The stored parts of a workflow: its state, the arguments of its steps, and their outputs.

Builds the jobs of released steps, and the record of a workflow's end. Stores nothing.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

from msgspec import Struct, msgpack, to_builtins
from msgspec.structs import replace

from palermo.contract.finding import JobLocation
from palermo.contract.stored_records import UNREADABLE
from palermo.contract.worker_info import ReportedArguments, RunningJob
from palermo.contract.workflows import MembersInfo, StepInfo, WorkflowInfo
from palermo.core.failure import Failure
from palermo.core.journal_records import RecordKind
from palermo.core.lifecycle import MAX_RESULT, JobState, StoredResult, why_not_stored
from palermo.core.message import Message
from palermo.core.plain import message_from_plain
from palermo.core.step_values import STEP, Output, Use, Value, as_json, pack, unpack
from palermo.core.text import count
from palermo.core.unique_keys import key_in
from palermo.core.workflow import MAX_ADDED, PORTION, Graph, Member, StepJob, step_headers, step_id
from palermo.core.workflow_rules import (
    Flow,
    Members,
    Phase,
    Plan,
    View,
    generation_of,
    member_of,
    plans_of,
    signals_out,
    status_of,
)

log = logging.getLogger("palermo.broker")

#: Maximum number of names read in one batch.
_AT_ONCE = 500

#: Maximum number of steps named in the record of a workflow's end.
_MOST_NAMED = 300

#: Maximum number of steps whose jobs are displayed, and maximum bytes of a displayed output.
_MOST_SHOWN, _MAX_SHOWN = 1_000, 2_000

#: Reads the data of a workflow under some names; None for a missing value.
ReadData = Callable[[str, Sequence[str]], Awaitable[Sequence[bytes | None]]]


class StoredFlow(Struct, frozen=True, kw_only=True):
    """A workflow as it is stored."""

    flow: Flow
    #: The message that started it, without its arguments, as in core/plain.py.
    root: dict[str, Any]
    began_at: float

    @property
    def message(self) -> Message:
        """The message that started the workflow, without its arguments."""
        return message_from_plain(self.root)


class Data:
    """The arguments and outputs of one workflow's steps."""

    def __init__(self, id: str, flow: Flow, read: ReadData, fresh: Mapping[str, bytes]) -> None:
        """`fresh` is data that will be stored in the same step, and can't be read yet."""
        self._id = id
        self._flow = flow
        self._read_data = read
        self._fresh = fresh
        self._read: dict[str, bytes | None] = {}

    async def get(self, names: Sequence[str]) -> list[bytes | None]:
        """The values under these names; None for a missing one."""
        missing = [name for name in names if name not in self._fresh and name not in self._read]
        for first in range(0, len(missing), _AT_ONCE):
            some = missing[first : first + _AT_ONCE]
            self._read.update(zip(some, await self._read_data(self._id, some), strict=True))
        return [(self._fresh[name] if name in self._fresh else self._read[name]) or None for name in names]

    async def job(self, path: str) -> StepJob | None:
        """A step's job. None if another program deleted it; the workflow then waits until it is cancelled."""
        found: StepJob | None = await self._part(f"j:{path}", StepJob)
        return found

    async def members(self, path: str, portion: int) -> tuple[Member, ...]:
        """A portion of a map's members."""
        found: tuple[Member, ...] = await self._part(f"m:{path}#{portion}", tuple[Member, ...]) or ()
        return found

    async def _part(self, name: str, kind: type[Any]) -> Any:
        (found,) = await self.get([name])
        if found is not None:
            return unpack(found, kind)
        log.error("cannot continue a workflow whose data was deleted, cancel it workflow=%s data=%s", self._id, name)
        return None

    @cached_property
    def _plans(self) -> Mapping[str, Plan]:
        return plans_of(self._flow)

    def output_name(self, path: str) -> str:
        """The name of the output of a step's current run."""
        return output_name(path, generation_of(self._flow, path))

    async def output(self, prefix: str, use: Use) -> Output:
        """The output of a step of the graph with this prefix."""
        path = f"{prefix}{use.step}"
        paths = [path] if use.members is None else [f"{path}:{number}" for number in range(use.members)]
        plan = self._plans.get(path)
        signal = plan is not None and plan.signal
        found = await self.get([f"s:{use.step}"] if signal else [self.output_name(each) for each in paths])
        size = sum(len(each) for each in found if each is not None)
        if size > MAX_ADDED:
            return Output(
                refused=f"the output of {use.step!r} has {size:,} bytes; later steps can take at most {MAX_ADDED:,}."
            )
        values = [
            Output(None if packed is None else await self.filled(f"{each}/", unpack(packed, Value)))
            for each, packed in zip(paths, found, strict=True)
        ]
        return values[0] if use.members is None else Output(members=tuple(values))

    async def filled(self, prefix: str, value: Value) -> Value:
        """A value with the outputs of the steps that it uses, in the graph with this prefix."""
        if not value.uses:
            return value
        outputs = [await self.output(prefix, use) for use in value.uses]
        return replace(value, uses=(), outputs=tuple(outputs))


def output_name(path: str, generation: int) -> str:
    """The name of the output of a run, so that a later run of the step never passes on an earlier one's."""
    return f"o:{path}:@{generation}" if generation else f"o:{path}"


def data_of(prefix: str, graph: Graph, generation: int) -> Iterator[tuple[str, bytes]]:
    """The parts of a graph that a run of this generation added, each with the name under which it is stored."""
    for added in graph.steps:
        path = prefix + added.plan.name
        if added.job is not None:
            yield f"j:{path}", pack(added.job)
        for first in range(0, len(added.members), PORTION):
            yield f"m:{path}#{first // PORTION}", msgpack.encode(added.members[first : first + PORTION])
    if graph.result is not None:
        yield output_name(prefix.removesuffix("/"), generation), pack(graph.result)


async def released(
    data: Data, before: StoredFlow | None, after: StoredFlow, out: Collection[str], now: float
) -> AsyncIterator[Message]:
    """The jobs of the steps `out`, and of the members that `after` has released and `before` had not.

    A member that runs again is not included, because it keeps its job.
    """
    async for message in _of_steps(data, after, out, now):
        yield message
    for path, members in after.flow.maps.items():
        first = 0 if before is None or path not in before.flow.maps else before.flow.maps[path].released
        async for message in _of_members(data, after, path, range(first, members.released), now):
            yield message


async def jobs_again(data: Data, stored: StoredFlow, now: float) -> AsyncIterator[Message]:
    """The jobs of all waiting and running steps and members, in the form of a new release."""
    out = stored.flow.view.out
    async for message in _of_steps(data, stored, out, now):
        yield message
    for path, members in stored.flow.maps.items():
        numbers = {*members.out(), *(number for number in members.apart if f"{path}:{number}" in out)}
        async for message in _of_members(data, stored, path, sorted(numbers), now):
            yield message


async def _of_steps(data: Data, stored: StoredFlow, paths: Collection[str], now: float) -> AsyncIterator[Message]:
    flow, root = stored.flow, stored.message
    plans = plans_of(flow)
    for path in sorted(paths):
        plan = plans.get(path)
        job = None if plan is None or plan.signal else await data.job(path)
        if plan is None or job is None:
            continue
        message, outputs = _message(root, path, flow, job, None, now), Value("", b"", job.mark, job.uses)
        yield _wrapped(message, await data.filled(path.removesuffix(plan.name), outputs)) if job.uses else message


async def _of_members(
    data: Data, stored: StoredFlow, path: str, numbers: Sequence[int], now: float
) -> AsyncIterator[Message]:
    flow, root = stored.flow, stored.message
    job = await data.job(path) if numbers else None
    if job is None:
        return
    prefix = path.removesuffix(plans_of(flow)[path].name)
    outputs = await data.filled(prefix, Value("", b"", job.mark, job.uses)) if job.uses else None
    for part, some in groupby(numbers, lambda number: number // PORTION):
        portion = await data.members(path, part)
        for number in some:
            if number % PORTION < len(portion):
                message = _message(root, f"{path}:{number}", flow, job, portion[number % PORTION], now)
                yield message if outputs is None else _wrapped(message, outputs)


def _message(root: Message, path: str, flow: Flow, job: StepJob, member: Member | None, now: float) -> Message:
    headers = step_headers(root.id, path, generation_of(flow, path), output=job.output)
    message = job.message(step_id(root.id, path), headers, now, member=member)
    if root.tenant and not message.tenant:
        message = replace(message, tenant=root.tenant, share=root.share)
    if root.priority and not message.priority:
        message = replace(message, properties={**message.properties, "priority": root.priority})
    return message


def _wrapped(message: Message, outputs: Value) -> Message:
    """The message with the outputs that its arguments use."""
    value = replace(outputs, content_type=message.content_type, body=message.body)
    body = None if message.content_encoding else as_json(value)
    if body is not None and len(body) <= MAX_ADDED:
        return replace(message, body=body, preview=None)
    body = pack(value)
    if len(body) > MAX_ADDED:
        why = (
            f"the arguments of job {message.id} and the outputs passed to it have {len(body):,} bytes;"
            f" the maximum is {MAX_ADDED:,}."
        )
        body = pack(replace(value, outputs=(Output(refused=why),) * len(value.outputs)))
    return replace(message, content_type=STEP, body=body, preview=None)


def jobs_out(flow: Flow) -> list[str]:
    """The paths of the steps and members whose jobs are waiting or running."""
    plans = plans_of(flow)
    steps = [path for path in flow.view.out if path not in plans or not plans[path].signal]
    return steps + [f"{path}:{number}" for path, members in flow.maps.items() for number in members.out()]


#: The result of a workflow that returned nothing.
_NOTHING = StoredResult("application/json", b"null")

#: The error of a failed workflow.
_ERROR = "palermo.errors.JobFailed"

_ENDS = {Phase.DONE: RecordKind.SUCCEEDED, Phase.FAILED: RecordKind.FAILED, Phase.CANCELLED: RecordKind.CANCELLED}


async def record_of(id: str, data: Data, stored: StoredFlow, known: View, now: float) -> dict[str, Any]:
    """The record of a workflow's end, which palermo/inspector/workflows.py reads."""
    root, phase, info = stored.message, known.whole.phase, with_steps(info_of(id, stored), stored.flow)
    steps = dict(list(info.steps.items())[:_MOST_NAMED])
    record: dict[str, Any] = {
        "kind": _ENDS[phase],
        "at": round(now, 3),
        "id": id,
        "job": root.job,
        "queue": root.queue,
        "attempt": root.attempt,
        "took": round(now - stored.began_at, 6),
        "steps": {path: step.state for path, step in steps.items()},
        "workflow": {
            "done": info.done,
            "failed": info.failed,
            "total": info.total,
            "left_out": len(info.steps) - len(steps),
            "after": to_builtins({path: step.after for path, step in steps.items() if step.after}),
            "members": to_builtins({path: step.members for path, step in steps.items() if step.members}),
            "signals": [path for path, step in steps.items() if step.signal],
        },
    }
    if phase is Phase.FAILED:
        return record | {"error": _ERROR, "message": _why_failed(stored.flow, known)}
    if phase is not Phase.DONE or root.keep_result is False:
        return record
    (packed,) = await data.get(["o:"])
    value = None if packed is None else await data.filled("", unpack(packed, Value))
    result = _NOTHING if value is None else _plain(value).stored
    refused = why_not_stored(result, MAX_RESULT)
    return record | ({"refused": refused} if refused else {"result": result.to_plain()})


async def records_of_steps(
    id: str, data: Data, before: View | None, after: StoredFlow, known: View, now: float
) -> AsyncIterator[dict[str, Any]]:
    """The records of the ends of steps that added steps, for those that are over since `before`.

    `after` still has the members that are done, and no longer in `known`.
    """
    for path in [path for path, end in after.flow.ends.items() if end.adds is not None]:
        was, status = (None if view is None else status_of(view, path) for view in (before, known))
        phase = Phase.DONE if status is None else status.phase
        if phase not in _ENDS or (was is not None and was.over):
            continue
        job = _shown_job(await data.job(member_of(path)[0]), step_id(id, path))
        about = {"id": job.id, "job": job.job, "queue": job.queue, "step_of": id}
        record = {"kind": _ENDS[phase], "at": round(now, 3), **about}
        if phase is Phase.FAILED:
            record |= {"error": _ERROR, "message": _why_failed(after.flow, known, f"{path}/")}
        yield record


def _shown_job(job: StepJob | None, id: str) -> Message:
    """A step's job without its arguments. Its name is unknown if another program deleted it."""
    return Message(id=id, job="", queue="") if job is None else replace(job, body=b"").message(id, {}, 0.0)


def _why_failed(flow: Flow, known: View, inside: str = "") -> str:
    steps = ((path, status) for path, status in known.steps.items() if path.startswith(inside))
    failed = [path for path, status in steps if status.phase is Phase.FAILED]
    return "it ran out of time" if flow.expired else f"step {', '.join(failed[:5])} failed"


def _plain(value: Value) -> Value:
    """The output itself, if the value consists of one step's output."""
    if len(value.outputs) == 1 and value.outputs[0].value is not None and len(value.body) <= len(value.mark) + 5:
        return _plain(value.outputs[0].value)
    return value


def read_flow(state: str | bytes | None) -> StoredFlow | None:
    if state is None:
        return None
    try:
        return msgpack.decode(state.encode() if isinstance(state, str) else state, type=StoredFlow)
    except UNREADABLE as error:
        log.warning("cannot read a workflow, running its steps as plain jobs error=%r", str(error))
        return None


def info_of(id: str, stored: StoredFlow) -> WorkflowInfo:
    """A workflow as an entry of the list, without its steps."""
    known, flow, root = stored.flow.view, stored.flow, stored.message
    done, failed, total = _counts(flow, known)
    signals = signals_out(flow, known)
    return WorkflowInfo(
        id=id,
        job=root.job,
        queue=root.queue,
        state=str(known.whole.phase) if known.whole.over else "running",
        began_at=stored.began_at,
        done=done,
        failed=failed,
        total=total,
        jobs=len(known.out) - len(signals) + sum(one.released - one.over_count for one in flow.maps.values()),
        waits_for=tuple(sorted({path.rpartition("/")[2] for path in signals})),
        sent=tuple(sorted(flow.signals)),
    )


def _counts(flow: Flow, known: View) -> tuple[int, int, int]:
    """The numbers of done, failed and all steps. Each member of a map counts as a step, and steps that a step added
    count instead of it.

    Steps that members of a map added aren't counted, because they are dropped once they are done.
    """
    plans, done, failed, total = plans_of(flow), 0, 0, 0
    for path, status in known.steps.items():
        if (path not in flow.ends or flow.ends[path].adds is None) and ":" not in path.rpartition("/")[0]:
            single = MembersInfo(status.phase in (Phase.DONE, Phase.FAILED), status.phase is Phase.FAILED, 0, 1)
            found = _members_of(flow, known, path, plans[path].members) or single
            bad = found.failed if found.failed > plans[path].may_fail else 0
            done, failed, total = done + found.over - bad, failed + bad, total + found.total
    return done, failed, total


def with_steps(info: WorkflowInfo, flow: Flow) -> WorkflowInfo:
    """The same entry with its steps."""
    known, plans = flow.view, plans_of(flow)
    steps = {
        path: StepInfo(
            state=str(status.phase),
            after=plans[path].after,
            signal=plans[path].signal,
            until=flow.alarms.get(path),
            members=_members_of(flow, known, path, plans[path].members),
        )
        for path, status in known.steps.items()
    }
    return replace(info, steps=steps)


def _members_of(flow: Flow, known: View, path: str, total: int | None) -> MembersInfo | None:
    if total is None:
        return None
    members = flow.maps.get(path, Members())
    apart = [known.apart[f"{path}:{number}"] for number in members.apart]
    out = members.released - members.over_count + sum(not status.over for status in apart)
    failed = members.failed_count + sum(status.bad for status in apart)
    return MembersInfo(members.released - out, failed, out, total)


async def with_jobs(info: WorkflowInfo, data: Data) -> WorkflowInfo:
    """The same entry with the jobs and the outputs of its first steps."""
    paths = list(info.steps)[:_MOST_SHOWN]
    await data.get([name for path in paths for name in (f"j:{path}", data.output_name(path))])  # all in few reads
    return replace(
        info, steps={**info.steps, **{path: await _with_job(path, info.steps[path], data) for path in paths}}
    )


async def _with_job(path: str, step: StepInfo, data: Data) -> StepInfo:
    (packed, output) = await data.get([f"j:{path}", data.output_name(path)])
    if packed is not None:
        found = _shown_job(unpack(packed, StepJob), "")
        step = replace(step, job=found.job, queue=found.queue)
    if output is not None and len(output) <= _MAX_SHOWN:
        value: Value = unpack(output, Value)
        step = replace(step, output=None if value.uses else value.stored)
    return step


def location_of(stored: StoredFlow) -> JobLocation:
    """The location of a workflow for a job search: a running job with progress, or a failed job."""
    known, root = stored.flow.view, stored.message
    if known.whole.over:
        why = _why_failed(stored.flow, known)
        failure = Failure(exception_class=_ERROR, message=why, stack_trace="", failed_at=0)
        return JobLocation(state=JobState.FAILED, message=replace(root, failure=failure))
    info = info_of(root.id, stored)
    running = RunningJob(
        id=root.id,
        job=root.job,
        queue=root.queue,
        slot=0,
        started_at=stored.began_at,
        progress=info.done / info.total,
        text=f"{info.done:,} of {count(info.total, 'step')} done"
        + (f", {info.failed:,} failed" if info.failed else "")
        + (f", waits for the signal {info.waits_for[0]}" if info.waits_for else ""),
        key=key_in(root.extra),
        parent=root.parent,
        arguments=ReportedArguments(preview=root.preview),
    )
    return JobLocation(state=JobState.WORKING, running=running)


async def location_of_step(stored: StoredFlow, path: str, data: Data) -> JobLocation | None:
    """The location of a step that waits for the steps that it added: a running job; None for any other step."""
    known, root = stored.flow.view, stored.message
    status = status_of(known, path)
    if status is None or status.phase is not Phase.EXPANDED:
        return None
    job = _shown_job(await data.job(member_of(path)[0]), step_id(root.id, path))
    inside = [each for name, each in known.steps.items() if name.startswith(f"{path}/")]
    over = sum(each.over for each in inside)
    running = RunningJob(
        id=job.id,
        job=job.job,
        queue=job.queue,
        slot=0,
        started_at=stored.began_at,
        progress=over / len(inside),
        text=f"a step of workflow {root.id} that waits for the steps that it added:"
        f" {over:,} of {len(inside):,} {'has' if len(inside) == 1 else 'have'} ended",
        parent=root.id,
    )
    return JobLocation(state=JobState.WORKING, running=running)
