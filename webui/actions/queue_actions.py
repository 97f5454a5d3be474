"""The actions on queues: purge, delete, clear a tenant, pause and resume."""

from palermo.contract.rows import Row
from palermo.core.topology import check_job_queue
from palermo.errors import NotFound
from palermo.webui.actions.audited_action import audited_action
from palermo.webui.base.site import Visit
from palermo.webui.base.users import Role


def purge(visit: Visit, queue: str) -> int:
    """Remove all jobs that wait in a queue. Returns how many."""
    with audited_action(visit, "purge", Role.ADMIN, queue=queue) as facts:
        facts["removed"] = removed = visit.inspector.purge(queue)
    return removed


def delete_queue(visit: Visit, queue: str) -> int:
    """Remove a queue and the jobs that wait in it. Returns how many."""
    with audited_action(visit, "delete queue", Role.ADMIN, queue=queue) as facts:
        facts["removed"] = removed = visit.inspector.delete_queue(queue)
    return removed


def clear_tenant(visit: Visit, queue: str, tenant: str) -> int:
    """Remove the waiting jobs of one tenant of a queue. Returns how many. Raises NotFound."""
    with audited_action(visit, "clear client", Role.ADMIN, queue=queue, tenant=tenant) as facts:
        facts["removed"] = removed = visit.inspector.clear_client(queue, tenant)
    return removed


def pause(visit: Visit, queue: str) -> Row:
    """Pause a queue: no worker takes jobs from it. Returns its row. Raises NotFound."""
    return _paused(visit, queue, paused=True)


def resume(visit: Visit, queue: str) -> Row:
    """Resume a queue. Returns its row. Raises NotFound."""
    return _paused(visit, queue, paused=False)


def _paused(visit: Visit, queue: str, *, paused: bool) -> Row:
    with audited_action(visit, "pause" if paused else "resume", Role.OPERATOR, queue=queue):
        check_job_queue(queue)
        known = {row["name"]: row for row in visit.inspector.queues()}
        if queue not in known:
            raise NotFound(f"there is no queue {queue!r}.")
        change = visit.inspector.pause if paused else visit.inspector.resume
        change(queue)
    return {**known[queue], "paused": paused}
