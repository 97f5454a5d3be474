"""All changes made by the web pages and the API.

Each function checks the user's role, acts through the inspector, and writes the audit log (audit.py).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar, Unpack

import msgspec.structs

from palermo.client.actor import record_action
from palermo.client.handle import Job
from palermo.client.recorded_jobs import RecordedJob
from palermo.contract import clock
from palermo.contract.row_types import QueueRow
from palermo.contract.rows import Row, iso_instant
from palermo.core.text import some_of
from palermo.core.topology import check_id, check_job_queue, check_new_queue
from palermo.errors import NotFound, PalermoError
from palermo.inspector.inspector import Inspector
from palermo.inspector.jobs import WaitingJobs, check_move
from palermo.inspector.judges import TakenJob, Which
from palermo.inspector.queues import unserved_text
from palermo.inspector.scheduled import GONE
from palermo.inspector.scheduled import Which as ScheduledWhich
from palermo.jobs.options import EnqueueOptions
from palermo.views.filter import JobFilter
from palermo.webui import tuning
from palermo.webui.audit import SCHEDULED, audit_done, audited_action, gone
from palermo.webui.failed.failed_jobs import failed_jobs
from palermo.webui.failed.operations import Operation, operations
from palermo.webui.site import Refused, Role, Visit
from palermo.webui.state.listings import topology
from palermo.webui.state.live_state import live_state
from palermo.webui.state.scheduled_view import scheduled_view

T = TypeVar("T")

#: The selectable ages of events to replay: by name, the text and the seconds; None for all kept events.
AGES: dict[str, tuple[str, float | None]] = {
    "hour": ("of the last hour", 3_600.0),
    "day": ("of the last day", 86_400.0),
    "week": ("of the last week", 7 * 86_400.0),
    "all": ("all that are kept", None),
}


def _act(
    visit: Visit,
    action: str,
    act: Callable[[Inspector], T],
    facts_of: Callable[[T], Mapping[str, object]] = lambda _: {},
    **what: object,
) -> T:
    """Perform a short action and return its result. `facts_of` returns facts about the result for the log."""
    with audited_action(visit, action, **what) as facts:
        done = act(visit.inspector)
        facts |= facts_of(done)
    return done


def _removed(number: int) -> Mapping[str, object]:
    return {"removed": number}


def describe_ids(ids: Sequence[str]) -> str:
    """Describe these jobs briefly, for the audit log and the pages."""
    return some_of(ids, 3)


class Unserved(Refused):
    """Jobs would go to a queue that no worker serves (409). To proceed, pass that queue as `unserved`."""

    def __init__(self, text: str) -> None:
        super().__init__(
            409, f'{text[0].upper()}{text[1:]} To use it anyway, repeat the request with "unserved": true.'
        )
        #: The problem, for forms with their own question.
        self.text = text


def _check_served(visit: Visit, queue: str | None, unserved: bool) -> None:
    """Raise Unserved if jobs would go to a queue that no worker serves, unless `unserved` is set."""
    # A user without the required role gets that error first.
    if queue is None or unserved or not visit.may(Role.OPERATOR):
        return
    check_new_queue(queue)
    if text := unserved_text(live_state(visit.site).snapshot(), queue):
        raise Unserved(text)


# -- failed jobs


def requeue(
    visit: Visit,
    which: Which,
    *,
    args: Sequence[object] | None = None,
    kwargs: Mapping[str, object] | None = None,
    queue: str | None = None,
    priority: int | None = None,
    at: float | None = None,
    unserved: bool = False,
    expected: int | None = None,
    wait: float = 5.0,
) -> Operation:
    """Requeue failed jobs; see inspector.failed.requeue. Returns when it has ended, or after `wait` seconds.

    Raises Unserved for another queue without a worker, unless `unserved` is set.
    """
    _check_served(visit, queue, unserved)
    changes = {"args": args, "kwargs": kwargs, "queue": queue, "priority": priority, "at": at}
    return _on_failed(visit, "requeue", which, expected=expected, wait=wait, **changes)


def discard(visit: Visit, which: Which, *, expected: int | None = None, wait: float = 5.0) -> Operation:
    """Discard failed jobs. Returns the operation once it has ended, or after `wait` seconds."""
    return _on_failed(visit, "discard", which, expected=expected, wait=wait)


def read_failures(visit: Visit) -> None:
    """Read the failed jobs again, even if they were just read. Other programs can't access them in the meantime."""
    with audited_action(visit, "read failed jobs"):
        failed_jobs(visit.site).view.request_reading()


def stop_operation(visit: Visit, id: str) -> Operation:
    """Stop a long command before its next job."""
    operation = operations(visit.site).get(id)
    with audited_action(visit, "stop operation", operation=id):
        operation.stop()
    return operation


def _on_failed(
    visit: Visit, action: str, which: Which, *, expected: int | None = None, wait: float, **changes: Any
) -> Operation:
    """Start a command on failed jobs. `changes` are as in inspector.failed.requeue."""
    view = failed_jobs(visit.site).view

    def act(operation: Operation, meant: Which) -> None:
        command: Any = getattr(_without_time_limit(visit).failed, action)
        try:
            command(meant, **changes, **view.watching(operation.watching()))
        except PalermoError:
            view.request_reading()
            raise

    edited = any(changes.get(name) for name in ("args", "kwargs"))
    details = {"to": changes.get("queue") or "-", "edited": edited}
    turn = view.exclusive()
    done = _operate(visit, action, action, which, act, details, expected=expected, wait=wait, turn=turn)
    if done.over and isinstance(which, str) and done.problems and not done.taken:
        error = done.problems[0]
        raise gone(visit, which, error) if isinstance(error, NotFound) else error
    return done


def _without_time_limit(visit: Visit) -> Inspector:
    """Return an inspector without a time limit, because a command on many jobs may take long."""
    return Inspector(visit.site.client, visit.actor, hidden=visit.site.hidden)


def _operate(
    visit: Visit,
    action: str,
    name: str,
    which: Which,
    act: Callable[[Operation, Any], object],
    details: Mapping[str, object],
    *,
    wait: float,
    about: str | None = None,
    expected: int | None = None,
    turn: AbstractContextManager[object] | None = None,
    place: str = "failures",
    waits_in: str = "",
) -> Operation:
    """Call `act` with an operation and the chosen jobs, and wait a limited time for its end.

    Its start and end are written to the audit log, under `name` and with `details`. If the operation fails as a whole,
    its error is raised.
    """
    ids = [which] if isinstance(which, str) else [] if isinstance(which, JobFilter) else list(dict.fromkeys(which))
    if ids and expected is None:
        expected = len(ids)
    about = about or (describe_ids(ids) if ids else _about(visit, which, waits_in))
    operation = Operation(
        action=action, by=visit.user.name, about=about, expected=expected, place=place, waits_in=waits_in
    )

    def ended(done: Operation) -> None:
        facts = {"status": done.status, "jobs": done.taken, "gone": done.gone, "of": done.about}
        audit_done(visit, f"{name} ended", operation=done.id, **facts)

    with audited_action(visit, name, of=about, **details) as facts:
        for id in ids:
            check_id(id)
        operations(visit.site).start(operation, lambda begun: act(begun, ids or which), turn=turn, done=ended)
        facts["operation"] = operation.id
    operation.wait(wait)
    if operation.over and operation.status == "failed" and operation.problems and not operation.taken:
        raise operation.problems[0]
    return operation


def _about(visit: Visit, which: object, waits_in: str) -> str:
    """Describe briefly the jobs selected by a filter: failed ones, or those waiting in a queue."""
    if not isinstance(which, JobFilter):
        return ""
    if waits_in:
        return f"jobs waiting in {waits_in} with {which}"
    group = which.group and failed_jobs(visit.site).group_name(which.group)
    named = msgspec.structs.replace(which, group=group)
    return "all failed jobs" if which.everything else f"failed jobs with {named}"


# -- waiting jobs

#: The commands on waiting jobs.
ON_WAITING = ("cancel", "move", "discard")


def alter_waiting(
    visit: Visit,
    action: str,
    queue: str,
    which: WaitingJobs,
    *,
    to: str | None = None,
    unserved: bool = False,
    expected: int | None = None,
    wait: float = 5.0,
) -> Operation:
    """Cancel, move or discard waiting jobs of a queue. Returns when it has ended, or after `wait` seconds.

    Raises Unserved for a move to a queue without a worker, unless `unserved` is set.
    """
    if action == "move":
        check_move(queue, to or "")
        _check_served(visit, to, unserved)

    def act(operation: Operation, meant: WaitingJobs) -> None:
        jobs, watching = _without_time_limit(visit).jobs, operation.watching()
        match action:
            case "discard":
                jobs.discard(queue, meant, **watching)
            case "cancel":
                jobs.cancel_waiting(queue, meant, **watching)
            case _:
                jobs.move(queue, meant, to or "", **watching)

    name, details = f"{action} waiting", {"queue": queue, "to": to or "-"}
    return _operate(
        visit,
        action,
        name,
        which,
        act,
        details,
        expected=expected,
        wait=wait,
        place="queue",
        waits_in=queue,
    )


# -- single jobs, and keys of unique jobs


def enqueue(
    visit: Visit,
    job: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    **options: Unpack[EnqueueOptions],
) -> Job:
    """Enqueue one job. Its arguments are checked against its signature if its code is imported here.

    Raises Refused (409) if a hook rejected it, or another job holds its unique key.
    """
    with audited_action(visit, "enqueue", job=job) as facts:
        done = visit.site.client.enqueue(job, args, kwargs, **options)
        facts |= {"queue": done.queue, "id": done.id, "stored": done.enqueued}
        if done.enqueued:
            record_action(visit.site.client, visit.actor, "enqueue", queue=done.queue, ids=[done.id], what=job)
    if done.conflict is not None and not done.enqueued:
        raise Refused(409, f"nothing was enqueued: job {done.id} has the same key and is {done.conflict.state}.")
    if not done.enqueued:
        raise Refused(409, f"a before_enqueue hook rejected {job}.")
    return done


def run_again(visit: Visit, id: str, known: RecordedJob, *, unserved: bool = False, **changes: Any) -> Job:
    """Enqueue a finished job again. `changes` are as in inspector.jobs.run_again.

    Raises DuplicateJob, and Unserved for another queue without a worker, unless `unserved` is set.
    """
    _check_served(visit, changes.get("queue"), unserved)
    edited = any(changes.get(name) is not None for name in ("args", "kwargs"))
    return _act(
        visit,
        "run again",
        lambda inspector: inspector.jobs.run_again(id, known=known, **changes),
        lambda job: {"queue": job.queue, "new": job.id},
        id=id,
        edited=edited,
    )


def edit(visit: Visit, id: str, *, unserved: bool = False, **changes: Any) -> Job:
    """Change a waiting job. `changes` are as in inspector.jobs.edit.

    Raises NotFound, and Unserved for another queue without a worker, unless `unserved` is set.
    """
    _check_served(visit, changes.get("queue"), unserved)
    edited = any(changes.get(name) is not None for name in ("args", "kwargs"))
    return _act(
        visit,
        "edit",
        lambda known: known.jobs.edit(id, **changes),
        id=id,
        to=changes.get("queue") or "-",
        edited=edited,
    )


def cancel(visit: Visit, id: str) -> Row:
    """Cancel a waiting or running job. Returns the row of inspector.jobs.cancel."""
    return _act(visit, "cancel", lambda known: known.jobs.cancel(id)[0], lambda row: {"state": row["state"]}, id=id)


def free_keys(visit: Visit, keys: Sequence[str]) -> list[str]:
    """Free keys of unique jobs. Returns those that were held. Raises NotFound if none was."""
    named = ", ".join(keys[:20])
    return _act(
        visit, "free keys", lambda known: known.keys.free(keys), lambda freed: {"freed": len(freed)}, keys=named
    )


# -- queues


def purge(visit: Visit, queue: str) -> int:
    """Remove all waiting jobs of a queue, and return their number."""
    return _act(visit, "purge", lambda known: known.queues.purge(queue), _removed, queue=queue)


def purge_all(visit: Visit) -> dict[str, int]:
    """Remove all waiting jobs of all queues except failed ones. Returns their number by queue."""
    return _act(
        visit, "purge all", lambda known: known.queues.purge_all(), lambda removed: _removed(sum(removed.values()))
    )


def delete_queue(visit: Visit, queue: str) -> int:
    """Delete a queue with its waiting jobs, and return their number."""
    return _act(visit, "delete queue", lambda known: known.queues.delete(queue), _removed, queue=queue)


def clear_tenant(visit: Visit, queue: str, tenant: str) -> int:
    """Remove one tenant's waiting jobs from a queue, and return their number. Raises NotFound."""
    return _act(
        visit, "clear tenant", lambda known: known.tenants.clear(queue, tenant), _removed, queue=queue, tenant=tenant
    )


def pause(visit: Visit, queue: str, *, reason: str = "") -> QueueRow:
    """Pause a queue: no worker takes jobs from it. Returns its row. Raises NotFound."""
    return _paused(visit, queue, paused=True, reason=reason)


def resume(visit: Visit, queue: str) -> QueueRow:
    """Resume a queue. Returns its row. Raises NotFound."""
    return _paused(visit, queue, paused=False)


def pause_all(visit: Visit, *, reason: str = "") -> None:
    """Pause all queues, including queues created later."""
    with audited_action(visit, "pause all", **_because(reason)):
        visit.inspector.queues.pause_all(reason=reason)


def resume_all(visit: Visit) -> None:
    """End `pause_all`."""
    _act(visit, "resume all", lambda known: known.queues.resume_all())


def _paused(visit: Visit, queue: str, *, paused: bool, reason: str = "") -> QueueRow:
    with audited_action(visit, "pause" if paused else "resume", queue=queue, **_because(reason)):
        check_job_queue(queue)
        known = {row["name"]: row for row in visit.inspector.queues.list()}
        if queue not in known:
            raise NotFound(f"there is no queue {queue!r}.")
        if paused:
            visit.inspector.queues.pause(queue, reason=reason)
        else:
            visit.inspector.queues.resume(queue)
    return {**known[queue], "paused": paused or visit.inspector.queues.all_paused()}


def _because(reason: str) -> dict[str, object]:
    return {"reason": reason} if reason else {}


# -- scheduled jobs and retries


def alter_scheduled(
    visit: Visit,
    action: str,
    which: ScheduledWhich,
    *,
    at: float | None = None,
    later: float | None = None,
    retries: bool | None = None,
    wait: float = tuning.STALE,
) -> Operation:
    """Cancel, run, move, retry or give up on scheduled jobs. The rows are as in inspector.scheduled.cancel.

    Jobs are moved to the instant `at`, or each by `later` seconds. With `retries`, only retries are changed. Returns
    when it has ended, or after `wait` seconds.
    """

    def act(operation: Operation, meant: ScheduledWhich) -> None:
        alter = scheduled_view(visit.site).alter
        operation.rows = rows = alter(action, meant, at=at, later=later, actor=visit.actor, retries=retries)
        operation.expected, operation.taken = len(rows), sum(row["state"] != GONE for row in rows)

    about = None
    if isinstance(which, JobFilter):
        about = "all scheduled jobs" if which.everything else f"scheduled jobs with {which}"
    details = {"to": iso_instant(at) or (f"{later:g}s later" if later is not None else "-")}
    place = "retries" if retries else "scheduled"
    return _operate(visit, action, SCHEDULED[action], which, act, details, about=about, wait=wait, place=place)


# -- recurring jobs


def put_recurring(visit: Visit, name: str, job: str, *, replace: bool = False, **options: Any) -> None:
    """Add a recurring job. The options are as in inspector.recurring.put.

    Raises Refused (409) if the name is taken, unless `replace` is set.
    """
    with audited_action(visit, "put recurring", name=name, job=job):
        if not replace and any(row["name"] == name for row in visit.inspector.recurring.list()):
            raise Refused(409, f"a recurring job {name[:80]!r} already exists. Use another name, or remove it.")
        visit.inspector.recurring.put(name, job, **options)


def remove_recurring(visit: Visit, name: str) -> None:
    """Remove a recurring job. Raises NotFound."""
    _act(visit, "remove recurring", lambda known: known.recurring.remove(name), name=name)


def switch_recurring(visit: Visit, name: str, *, on: bool) -> None:
    """Enable or disable a recurring job. Raises NotFound."""
    _act(
        visit,
        "enable recurring" if on else "disable recurring",
        lambda known: known.recurring.switch(name, on),
        name=name,
    )


def run_recurring(visit: Visit, name: str) -> str:
    """Enqueue a recurring job now, and return the new job's id. Raises NotFound."""
    return _act(visit, "run recurring", lambda known: known.recurring.run(name), lambda id: {"id": id}, name=name)


# -- events


def replay(
    visit: Visit, group: str, *, topic: str | None = None, age: float | None = None, wait: float = 5.0
) -> Operation:
    """Replay the events of the last `age` seconds to a group. `taken` counts them.

    Returns when it has ended, or after `wait` seconds. Raises NotFound, TopicInvalid, BrokerRefused.
    """
    since = None if age is None else clock.now() - age

    def act(operation: Operation, _: object) -> None:
        if group not in {row["group"] for row in topology(visit.site).get()["groups"]}:
            raise NotFound(f"no group {group[:80]!r} subscribes to events.")
        operation.taken = _without_time_limit(visit).events.replay(group, topic=topic, since=since)
        topology(visit.site).clear()

    details, about = {"group": group, "topic": topic or "-"}, f"events of {group}"
    return _operate(visit, "replay", "replay events", (), act, details, about=about, wait=wait, place="topics")


def unsubscribe(visit: Visit, group: str) -> None:
    """Unsubscribe a group until one of its workers starts. Raises NotFound."""
    _act(visit, "unsubscribe", lambda known: known.events.unsubscribe(group), group=group)


# -- workflows


def retry_workflow(visit: Visit, id: str) -> list[TakenJob]:
    """Requeue a workflow's failed jobs. Raises NotFound, and UsageError for a workflow without failed steps."""
    return _act(
        visit, "retry workflow", lambda known: known.workflows.retry(id), lambda taken: {"jobs": len(taken)}, id=id
    )


def send_signal(visit: Visit, id: str, name: str, value: Any) -> str:
    """Send a signal to a workflow, as inspector.workflows.signal.

    Raises NotFound, and EncodeError and BodyTooLarge for the value.
    """
    return _act(visit, "signal", lambda known: known.workflows.signal(id, name, value), id=id, signal=name)


# -- workers


def control(visit: Visit, workers: Sequence[str] | None, action: str) -> list[Row]:
    """Send an order to the workers with these ids, or to all (None). Returns the rows of inspector.workers.control.

    Workers that have ended are skipped. Raises NotFound if none of them is running.
    """
    named = "all" if workers is None else ", ".join(workers)
    with audited_action(visit, f"worker {action}", worker=named) as facts:
        # The inspector also accepts the beginning of an id, which is wrong for a button.
        alive = {row["id"] for row in visit.inspector.workers.list()} if workers else set()
        meant = None if workers is None else [id for id in workers if id in alive]
        if workers and not meant:
            raise NotFound(f"no worker {workers[0][:80]!r} is running.")
        rows = visit.inspector.workers.control(action, meant)
        facts["answered"] = all(row["answered"] for row in rows)
        if workers is None:
            facts["workers"] = ", ".join(row["worker"] for row in rows)
    return rows
