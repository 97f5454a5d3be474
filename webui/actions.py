"""Everything that can be done from the web: pages and API act by these functions and never otherwise.

Each checks the role, acts through the inspector, and writes the audit log.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from palermo.acting import write_down
from palermo.core.topology import check_id, check_job_queue
from palermo.errors import NotFound, PalermoError
from palermo.filters import FailedFilter
from palermo.jobs import Job
from palermo.rows import Row, instant
from palermo.scheduled import GONE
from palermo.scheduled import Which as ScheduledWhich
from palermo.timetable import CANCEL, GIVE_UP, MOVE, RUN, Chosen
from palermo.verdicts import Which
from palermo.webui import audit
from palermo.webui.ahead import RETRY, ahead
from palermo.webui.errors import Refused
from palermo.webui.failed import failures
from palermo.webui.failed.operations import Action, Operation, new_id
from palermo.webui.people import Role
from palermo.webui.site import Visit
from palermo.webui.watching import outdate


@contextmanager
def acting(visit: Visit, action: str, role: Role, **what: object) -> Iterator[dict[str, object]]:
    """Check that this user may, and write down what came of it; the body adds facts to what it gets.

    Raises Refused (403) for a user who may not.
    """
    if not visit.may(role):
        audit.refused(visit, action, **what)
        if visit.site.read_only:
            raise Refused(403, "these pages are read-only: nothing can be changed from here.")
        raise Refused(403, f"this takes the role {role.word}, and {visit.user.name} is {visit.user.role.word}.")
    facts: dict[str, object] = {}
    try:
        yield facts
    except PalermoError as error:
        audit.failed(visit, action, **what, error=type(error).__name__, **facts)
        raise
    finally:
        outdate(visit.site)
    audit.done(visit, action, **what, **facts)


def purge(visit: Visit, queue: str) -> int:
    """Remove all jobs that wait in a queue; returns how many."""
    with acting(visit, "purge", Role.ADMIN, queue=queue) as facts:
        facts["removed"] = removed = visit.inspector.purge(queue)
    return removed


def delete_queue(visit: Visit, queue: str) -> int:
    """Remove a queue and the jobs that wait in it; returns how many."""
    with acting(visit, "delete queue", Role.ADMIN, queue=queue) as facts:
        facts["removed"] = removed = visit.inspector.delete_queue(queue)
    return removed


def clear_client(visit: Visit, queue: str, tenant: str) -> int:
    """Remove the waiting jobs of one tenant of a queue; returns how many. Raises NotFound."""
    with acting(visit, "clear client", Role.ADMIN, queue=queue, tenant=tenant) as facts:
        facts["removed"] = removed = visit.inspector.clear_client(queue, tenant)
    return removed


def pause(visit: Visit, queue: str) -> Row:
    """Have no worker take jobs from a queue that exists; returns its row. Raises NotFound."""
    return _paused(visit, queue, paused=True)


def resume(visit: Visit, queue: str) -> Row:
    """End a pause; returns the queue's row. Raises NotFound."""
    return _paused(visit, queue, paused=False)


def _paused(visit: Visit, queue: str, *, paused: bool) -> Row:
    with acting(visit, "pause" if paused else "resume", Role.OPERATOR, queue=queue):
        check_job_queue(queue)
        known = {row["name"]: row for row in visit.inspector.queues()}
        if queue not in known:
            raise NotFound(f"there is no queue {queue!r}.")
        change = visit.inspector.pause if paused else visit.inspector.resume
        change(queue)
    return {**known[queue], "paused": paused}


def enqueue(
    visit: Visit,
    job: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    queue: str | None = None,
    id: str | None = None,
    keep_result: bool | None = None,
) -> Job:
    """Store one job, checked against its signature where its code is imported here.

    Raises Refused (409) where a hook kept it back.
    """
    with acting(visit, "enqueue", Role.OPERATOR, job=job) as facts:
        done = visit.site.client.enqueue(job, args, kwargs, queue=queue, id=id, keep_result=keep_result)
        facts |= {"queue": done.queue, "id": done.id, "stored": done.enqueued}
        if done.enqueued:
            write_down(visit.site.client, visit.actor, "enqueue", queue=done.queue, ids=[done.id], what=job)
    if done.duplicate and not done.enqueued:
        raise Refused(409, f"job {done.id} has the key of this one and is {done.duplicate}: nothing was enqueued.")
    if not done.enqueued:
        raise Refused(409, f"a before_enqueue hook kept {job} from being enqueued.")
    return done


def cancel(visit: Visit, id: str) -> Row:
    """Have a job not run, or end where it runs; what came of it, as Inspector.cancel says."""
    with acting(visit, "cancel", Role.OPERATOR, id=id) as facts:
        row = visit.inspector.cancel(id)[0]
        facts["state"] = row["state"]
    return row


#: What each order to a worker takes.
CONTROL_ROLES = {
    "quiet": Role.OPERATOR,
    "resume": Role.OPERATOR,
    "stack": Role.OPERATOR,
    "stop": Role.ADMIN,
    "kill": Role.ADMIN,
}


def control(visit: Visit, workers: Sequence[str] | None, action: str) -> list[Row]:
    """Tell workers, by their ids, or all (None) something at once; what each answered, as Inspector.control says.

    Raises NotFound, before anything is done, for one that is not there.
    """
    named = "all" if workers is None else ", ".join(workers)
    with acting(visit, f"worker {action}", CONTROL_ROLES[action], worker=named) as facts:
        # The inspector takes beginnings of ids too: good for people who type, not for a button.
        alive = {row["id"] for row in visit.inspector.workers()} if workers else set()
        if gone := [id for id in workers or () if id not in alive]:
            raise NotFound(f"no worker {gone[0][:80]!r} is alive.")
        rows = visit.inspector.control(action, workers)
        facts["answered"] = all(row["answered"] for row in rows)
        if workers is None:
            facts["workers"] = ", ".join(row["worker"] for row in rows)
    return rows


def requeue(
    visit: Visit,
    which: Which,
    *,
    args: Sequence[object] | None = None,
    kwargs: Mapping[str, object] | None = None,
    queue: str | None = None,
    expected: int | None = None,
    wait: float = 5.0,
) -> Operation:
    """Run failed jobs again; see Inspector.requeue. Returns when that is done, or after `wait` seconds."""
    return _on_failed(visit, "requeue", which, args=args, kwargs=kwargs, queue=queue, expected=expected, wait=wait)


def discard(visit: Visit, which: Which, *, expected: int | None = None, wait: float = 5.0) -> Operation:
    """Throw failed jobs away. Returns when that is done, or after `wait` seconds."""
    return _on_failed(visit, "discard", which, expected=expected, wait=wait)


#: Seconds that programs wait for what they asked about scheduled jobs.
PATIENCE = 30.0

#: What is done to scheduled jobs, for the audit log.
_SCHEDULED = {
    CANCEL: "cancel scheduled",
    RUN: "run scheduled",
    MOVE: "move scheduled",
    RETRY: "retry now",
    GIVE_UP: "give up retries",
}


def alter_scheduled(
    visit: Visit, action: str, which: ScheduledWhich, *, at: float | None = None, wait: float = PATIENCE
) -> list[Row] | None:
    """Cancel, run, move, retry or give up scheduled jobs; what became of each, as Inspector.cancel_scheduled says.

    None if that takes longer than `wait` seconds: it goes on.
    """
    ids = None if isinstance(which, Chosen) else [which] if isinstance(which, str) else list(dict.fromkeys(which))
    for id in ids or ():
        check_id(id)
    name, to = _SCHEDULED[action], instant(at) or "-"
    about = _about(ids) if ids is not None else _filtered(which) if isinstance(which, Chosen) else ""

    def tell(work: Future[list[Row]]) -> None:
        problem = work.exception()
        came = {"error": type(problem).__name__} if problem else _states(work.result())
        audit.done(visit, f"{name} ended", of=about, **came)

    with acting(visit, name, Role.OPERATOR, of=about, to=to) as facts:
        work = ahead(visit.site).alter(action, which if ids is None else ids, at=at, actor=visit.actor)
        if not futures.wait([work], wait).done:
            facts["ended"] = False
            work.add_done_callback(tell)
            return None
        rows = work.result()
        facts |= _states(rows)
    return rows


def _states(rows: list[Row]) -> dict[str, object]:
    gone = sum(row["state"] == GONE for row in rows)
    return {"jobs": len(rows) - gone, "gone": gone}


def _filtered(chosen: Chosen) -> str:
    """Which scheduled jobs are meant by a filter, in few words."""
    what = {None: "scheduled jobs", True: "retries", False: "scheduled jobs but retries"}[chosen.retries]
    parts = [f"{name}={value}" for name, value in (("queue", chosen.queue), ("job", chosen.job)) if value is not None]
    return f"{what} with {' '.join(parts)}" if parts else f"all {what}"


def put_recurring(visit: Visit, name: str, job: str, *, replace: bool = False, **options: Any) -> None:
    """Have a job run again and again; options as of Inspector.put_recurring.

    Raises Refused (409) for one whose name is taken, unless it is to be replaced.
    """
    with acting(visit, "put recurring", Role.OPERATOR, name=name, job=job):
        if not replace and any(row["name"] == name for row in visit.inspector.recurring()):
            raise Refused(409, f"there is a recurring job {name[:80]!r} already: give another name, or remove it.")
        visit.inspector.put_recurring(name, job, **options)
        ahead(visit.site).forget()


def remove_recurring(visit: Visit, name: str) -> None:
    """Take a recurring job away. Raises NotFound."""
    with acting(visit, "remove recurring", Role.OPERATOR, name=name):
        visit.inspector.remove_recurring(name)
        ahead(visit.site).forget()


def switch_recurring(visit: Visit, name: str, *, on: bool) -> None:
    """Have a recurring job run at its times, or not. Raises NotFound."""
    with acting(visit, "enable recurring" if on else "disable recurring", Role.OPERATOR, name=name):
        visit.inspector.switch_recurring(name, on)
        ahead(visit.site).forget()


def run_recurring(visit: Visit, name: str) -> str:
    """Enqueue a recurring job now; the id of the job. Raises NotFound."""
    with acting(visit, "run recurring", Role.OPERATOR, name=name) as facts:
        facts["id"] = id = visit.inspector.run_recurring(name)
        ahead(visit.site).forget()
    return id


def stop_operation(visit: Visit, id: str) -> Operation:
    """Have a long command end before its next job."""
    operation = failures(visit.site).operations.get(id)
    with acting(visit, "stop operation", Role.OPERATOR, operation=id):
        operation.stop()
    return operation


def _on_failed(
    visit: Visit,
    action: Action,
    which: Which,
    *,
    args: Sequence[object] | None = None,
    kwargs: Mapping[str, object] | None = None,
    queue: str | None = None,
    expected: int | None = None,
    wait: float,
) -> Operation:
    one = isinstance(which, str)
    chosen: Which = which if isinstance(which, str | FailedFilter) else list(dict.fromkeys(which))
    if expected is None and not isinstance(chosen, FailedFilter):
        expected = 1 if isinstance(chosen, str) else len(list(chosen))
    about = _about(chosen)
    operation = Operation(
        id=new_id(),
        action=action,
        by=visit.user.name,
        about=about,
        expected=expected,
        which=chosen,
        args=args,
        kwargs=kwargs,
        queue=queue,
    )

    def ended(operation: Operation) -> None:
        audit.done(
            visit, f"{action} ended", operation=operation.id, status=operation.status, jobs=operation.taken, of=about
        )

    with acting(visit, action, Role.OPERATOR, of=about, to=queue or "-", edited=bool(args or kwargs)) as facts:
        failures(visit.site).operations.start(operation, done=ended)
        facts["operation"] = operation.id
    if operation.wait(wait) and (one or operation.status == "failed") and operation.problems and not operation.taken:
        raise operation.problems[0]
    return operation


def _about(which: Which) -> str:
    """Which jobs are meant, in few words."""
    if isinstance(which, FailedFilter):
        return "all failed jobs" if which.everything else f"failed jobs with {which}"
    ids = [which] if isinstance(which, str) else list(which)
    return ", ".join(ids[:3]) + (f" and {len(ids) - 3:,} more" if len(ids) > 3 else "")


def free_keys(visit: Visit, keys: Sequence[str]) -> list[str]:
    """Take keys from the unique jobs that have them; which there were. Raises NotFound if none was."""
    with acting(visit, "free keys", Role.OPERATOR, keys=", ".join(keys[:20])) as facts:
        freed = visit.inspector.free_keys(keys)
        facts["freed"] = len(freed)
    return freed
