"""The rows of workflows and steps, shared by commands, the API and the pages.

A row explains why a step hasn't ended: steps before it, its signal, its queue, or the worker that runs it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import ValidationError, convert

from palermo.contract.row_types import WorkerRow
from palermo.contract.rows import Row, as_json, iso_instant
from palermo.contract.serialization import FOR_DISPLAY, Accept, Serializers
from palermo.contract.workflows import MembersInfo, StepInfo, WorkflowInfo
from palermo.core.failure import printable
from palermo.core.lifecycle import StoredResult
from palermo.core.step_values import Value
from palermo.core.text import count, some_of
from palermo.core.workflow import step_id
from palermo.core.workflow_rules import Condition, When
from palermo.errors import ResultRefused, SerializationError

#: The states of ended workflows, by kind of record.
_STATES = {"succeeded": "done", "failed": "failed", "cancelled": "cancelled"}


def workflow_row(info: WorkflowInfo) -> Row:
    return {
        "id": printable(info.id),
        "job": printable(info.job),
        "queue": printable(info.queue),
        "state": info.state,
        "since": iso_instant(info.began_at),
        "ended_at": iso_instant(info.ended_at),
        "done": info.done,
        "failed": info.failed,
        "total": info.total,
        "jobs": info.jobs,
        "waits_for": [printable(name) for name in info.waits_for],
        "left_out": info.left_out,
    }


def info_of_record(record: Mapping[str, Any]) -> WorkflowInfo | None:
    """Return the workflow whose end is in this journal record; None if there is none."""
    states, details = record.get("steps"), record.get("workflow")
    state = _STATES.get(record["kind"])
    if not isinstance(states, dict) or not isinstance(details, dict) or state is None:
        return None
    try:
        after = convert(details.get("after", {}), dict[str, tuple[Condition, ...]])
        members = convert(details.get("members", {}), dict[str, MembersInfo])
        signals = convert(details.get("signals", []), list[str])
        done, failed, total, left = (
            convert(details.get(name), int) for name in ("done", "failed", "total", "left_out")
        )
    except ValidationError:
        return None  # written by another program
    steps = {
        str(path): StepInfo(
            state=str(phase), after=after.get(path, ()), members=members.get(path), signal=path in signals
        )
        for path, phase in states.items()
    }
    return WorkflowInfo(
        id=str(record["id"]),
        job=str(record.get("job") or ""),
        queue=str(record.get("queue") or ""),
        state=state,
        began_at=record["at"] - (record.get("took") or 0.0),
        ended_at=record["at"],
        done=done,
        failed=failed,
        total=total,
        steps=steps,
        left_out=left,
    )


def step_rows(
    info: WorkflowInfo,
    serializers: Serializers,
    queues: Iterable[Row] = (),
    workers: Iterable[WorkerRow] = (),
    *,
    only: Iterable[str] | None = None,
) -> list[Row]:
    """Return the rows of a workflow's steps, in the order in which they were added. `only` limits the paths.

    `queues` and `workers` are rows that show where jobs wait or run.
    """
    own = step_id(info.id, "")
    known = {row["name"]: row for row in queues}
    running = {job["id"]: worker["id"] for worker in workers for job in worker["jobs"] if job["id"].startswith(own)}
    inside: dict[str, list[str]] = {}
    for path, step in info.steps.items():
        inside.setdefault(path.rpartition("/")[0], []).append(step.state)
    paths = info.steps if only is None else only
    return [_step_row(info, path, info.steps[path], serializers, known, running, inside) for path in paths]


def _step_row(
    info: WorkflowInfo,
    path: str,
    step: StepInfo,
    serializers: Serializers,
    queues: Mapping[str, Row],
    running: Mapping[str, str],
    inside: Mapping[str, Sequence[str]],
) -> Row:
    members = step.members
    id = None if step.signal or members is not None else step_id(info.id, path)
    worker = running.get(id) if id is not None else None
    at_work = sum(one.startswith(step_id(info.id, f"{path}:")) for one in running) if members is not None else 0
    return {
        "name": printable(path),
        "state": "working" if step.state == "pending" and (worker or at_work) else step.state,
        "kind": "signal" if step.signal else "map" if members is not None else "workflow" if path in inside else "job",
        "id": id,
        "job": printable(step.job) or None,
        "queue": printable(step.queue) or None,
        "after": [{"steps": list(one.steps), "when": str(one.when)} for one in step.after],
        "why": _why(info, path, step, queues, worker, inside.get(path, ())),
        "over": None if members is None else members.over,
        "failed": None if members is None else members.failed,
        "running": None if members is None else at_work,
        "out": None if members is None else members.out,
        "total": None if members is None else members.total,
        "output": None if step.output is None else _shown(step.output, serializers),
    }


def _why(
    info: WorkflowInfo,
    path: str,
    step: StepInfo,
    queues: Mapping[str, Row],
    worker: str | None,
    inside: Sequence[str],
) -> str:
    """Why a step has not ended or not run, or ""."""
    match step.state:
        case "waiting":
            return f"comes after {some_of(list(_missing(info, path, step)))}"
        case "skipped":
            failed = any(one.when is When.FAILED for one in step.after)
            return "no step before it failed" if failed else "a step before it did not succeed"
        case "pending" if step.signal:
            until = f" until {iso_instant(step.until)}" if step.until is not None else ""
            return f"waits for its signal{until}"
        case "pending":
            return f"runs on {worker}" if worker else _in_queue(step, queues)
        case "expanded":
            over = sum(state not in ("waiting", "pending", "expanded") for state in inside)
            return f"{over} of {count(len(inside), 'step')} inside it {'has' if over == 1 else 'have'} ended"
    return ""


def _missing(info: WorkflowInfo, path: str, step: StepInfo) -> Iterable[str]:
    """Yield the preceding steps that have not ended."""
    prefix = path.rpartition("/")[0]
    for name in dict.fromkeys(name for condition in step.after for name in condition.steps):
        before = info.steps.get(f"{prefix}/{name}" if prefix else name)
        if before is None or before.state in ("waiting", "pending", "expanded"):
            yield printable(name)


def _in_queue(step: StepInfo, queues: Mapping[str, Row]) -> str:
    queue = printable(step.queue)
    if not queue or not queues:
        return ""
    row = queues.get(step.queue)
    if row is None or not row["workers"]:
        return f"in queue {queue}, which no worker serves"
    return f"in queue {queue}, which is paused" if row["paused"] else f"in queue {queue}"


def _shown(output: StoredResult, serializers: Serializers) -> Any:
    """Return an output as JSON, or None if reading it would run untrusted code."""
    try:
        return as_json(serializers.load(Value.of(output), FOR_DISPLAY, accept=Accept.default()))
    except (SerializationError, ResultRefused):
        return None
