"""The actions on failed jobs: requeue, discard, read them again, and stop a long command."""

from collections.abc import Mapping, Sequence

from palermo.inspector.failed_filter import FailedFilter
from palermo.inspector.judges import Which
from palermo.webui.actions.audited_action import audited_action, describe_ids
from palermo.webui.base.site import Visit
from palermo.webui.base.users import Role
from palermo.webui.failed.failed_jobs import failed_jobs
from palermo.webui.failed.operations import Action, Operation, new_id
from palermo.webui.security import audit


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
    """Requeue failed jobs; see Inspector.requeue. Returns when that is done, or after `wait` seconds."""
    return _on_failed(visit, "requeue", which, args=args, kwargs=kwargs, queue=queue, expected=expected, wait=wait)


def discard(visit: Visit, which: Which, *, expected: int | None = None, wait: float = 5.0) -> Operation:
    """Discard failed jobs. Returns when that is done, or after `wait` seconds."""
    return _on_failed(visit, "discard", which, expected=expected, wait=wait)


def read_failures(visit: Visit) -> None:
    """Have the failed jobs read again, however recent the last reading is. Others cannot reach them meanwhile."""
    with audited_action(visit, "read failed jobs", Role.OPERATOR):
        failed_jobs(visit.site).view.request_reading()


def stop_operation(visit: Visit, id: str) -> Operation:
    """Stop a long command before its next job."""
    operation = failed_jobs(visit.site).operations.get(id)
    with audited_action(visit, "stop operation", Role.OPERATOR, operation=id):
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

    with audited_action(visit, action, Role.OPERATOR, of=about, to=queue or "-", edited=bool(args or kwargs)) as facts:
        failed_jobs(visit.site).operations.start(operation, done=ended)
        facts["operation"] = operation.id
    if operation.wait(wait) and (one or operation.status == "failed") and operation.problems and not operation.taken:
        raise operation.problems[0]
    return operation


def _about(which: Which) -> str:
    """A short text for the failed jobs that are meant."""
    if isinstance(which, FailedFilter):
        return "all failed jobs" if which.everything else f"failed jobs with {which}"
    return describe_ids([which] if isinstance(which, str) else list(which))
