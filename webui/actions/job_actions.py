"""The actions on single jobs: enqueue and cancel one, free the keys of unique jobs."""

from collections.abc import Mapping, Sequence
from typing import Any

from palermo.client.actor import record_action
from palermo.client.handle import Job
from palermo.contract.rows import Row
from palermo.webui.actions.audited_action import audited_action
from palermo.webui.base.errors import Refused
from palermo.webui.base.site import Visit
from palermo.webui.base.users import Role


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
    """Enqueue one job. Its arguments are checked against its signature if its code is imported here.

    Raises Refused (409) if a hook kept it from being enqueued, or if another job has its unique key.
    """
    with audited_action(visit, "enqueue", Role.OPERATOR, job=job) as facts:
        done = visit.site.client.enqueue(job, args, kwargs, queue=queue, id=id, keep_result=keep_result)
        facts |= {"queue": done.queue, "id": done.id, "stored": done.enqueued}
        if done.enqueued:
            record_action(visit.site.client, visit.actor, "enqueue", queue=done.queue, ids=[done.id], what=job)
    if done.duplicate and not done.enqueued:
        raise Refused(409, f"job {done.id} has the key of this one and is {done.duplicate}: nothing was enqueued.")
    if not done.enqueued:
        raise Refused(409, f"a before_enqueue hook kept {job} from being enqueued.")
    return done


def cancel(visit: Visit, id: str) -> Row:
    """Cancel a job: it does not run, or its run is ended. Returns the row of Inspector.cancel."""
    with audited_action(visit, "cancel", Role.OPERATOR, id=id) as facts:
        row = visit.inspector.cancel(id)[0]
        facts["state"] = row["state"]
    return row


def free_keys(visit: Visit, keys: Sequence[str]) -> list[str]:
    """Free these keys of unique jobs. Returns those that a job held. Raises NotFound if there was none."""
    with audited_action(visit, "free keys", Role.OPERATOR, keys=", ".join(keys[:20])) as facts:
        freed = visit.inspector.free_keys(keys)
        facts["freed"] = len(freed)
    return freed
