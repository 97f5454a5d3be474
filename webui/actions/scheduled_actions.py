"""The actions on scheduled jobs and retries: cancel, run, move, retry and give up."""

from concurrent import futures
from concurrent.futures import Future

from palermo.contract.rows import Row, iso_instant
from palermo.contract.scheduled import CANCEL, GIVE_UP, MOVE, RUN, ScheduledFilter
from palermo.core.topology import check_id
from palermo.inspector.scheduled import GONE
from palermo.inspector.scheduled import Which as ScheduledWhich
from palermo.webui.actions.audited_action import audited_action, describe_ids
from palermo.webui.base.site import Visit
from palermo.webui.base.users import Role
from palermo.webui.security import audit
from palermo.webui.state.scheduled_view import RETRY, scheduled_view

#: Seconds that the API waits for the end of a command on scheduled jobs.
PATIENCE = 30.0


#: The names of the commands on scheduled jobs, for the audit log.
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
    """Cancel, run, move, retry or give up scheduled jobs. Returns the rows of Inspector.cancel_scheduled.

    Returns None if that takes longer than `wait` seconds; the command then goes on.
    """
    ids = (
        None
        if isinstance(which, ScheduledFilter)
        else [which]
        if isinstance(which, str)
        else list(dict.fromkeys(which))
    )
    for id in ids or ():
        check_id(id)
    name, to = _SCHEDULED[action], iso_instant(at) or "-"
    about = describe_ids(ids) if ids is not None else _filtered(which) if isinstance(which, ScheduledFilter) else ""

    def on_end(work: Future[list[Row]]) -> None:
        problem = work.exception()
        came = {"error": type(problem).__name__} if problem else _states(work.result())
        audit.done(visit, f"{name} ended", of=about, **came)

    with audited_action(visit, name, Role.OPERATOR, of=about, to=to) as facts:
        work = scheduled_view(visit.site).alter(action, which if ids is None else ids, at=at, actor=visit.actor)
        if not futures.wait([work], wait).done:
            facts["ended"] = False
            work.add_done_callback(on_end)
            return None
        rows = work.result()
        facts |= _states(rows)
    return rows


def _states(rows: list[Row]) -> dict[str, object]:
    gone = sum(row["state"] == GONE for row in rows)
    return {"jobs": len(rows) - gone, "gone": gone}


def _filtered(chosen: ScheduledFilter) -> str:
    """A short text for the scheduled jobs that a filter means."""
    what = {None: "scheduled jobs", True: "retries", False: "scheduled jobs but retries"}[chosen.retries]
    parts = [f"{name}={value}" for name, value in (("queue", chosen.queue), ("job", chosen.job)) if value is not None]
    return f"{what} with {' '.join(parts)}" if parts else f"all {what}"
