"""The audit log: one line of the logger `palermo.audit` for each action of a user, even if it was refused.

It also checks the user's role and clears the caches that an action makes stale.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from palermo.client.actor import record_action
from palermo.contract.scheduled import CANCEL, GIVE_UP, MOVE, RUN
from palermo.core.failure import printable
from palermo.errors import NotFound, PalermoError
from palermo.webui import tuning
from palermo.webui.site import Refused, Role, Site, Visit
from palermo.webui.state.journal_views import by_whom
from palermo.webui.state.listings import topology
from palermo.webui.state.live_state import invalidate_snapshot
from palermo.webui.state.scheduled_view import RETRY, scheduled_view
from palermo.webui.state.workflows import live_workflows

log = logging.getLogger("palermo.audit")

#: The audit log's names of commands on scheduled jobs.
SCHEDULED = {
    CANCEL: "cancel scheduled",
    RUN: "run scheduled",
    MOVE: "move scheduled",
    RETRY: "retry now",
    GIVE_UP: "give up retries",
}

#: The role that each action requires, by the action's name in the audit log. Discarding waiting jobs needs
#: the same role as purging their queue.
_ROLES: dict[str, Role] = {
    **dict.fromkeys(("requeue", "discard", "read failed jobs", "stop operation"), Role.OPERATOR),
    **dict.fromkeys(("enqueue", "run again", "edit", "cancel", "free keys"), Role.OPERATOR),
    **dict.fromkeys(("cancel waiting", "move waiting", *SCHEDULED.values()), Role.OPERATOR),
    **dict.fromkeys(("pause", "resume", "pause all", "resume all", "replay events"), Role.OPERATOR),
    **dict.fromkeys(("put recurring", "remove recurring", "run recurring"), Role.OPERATOR),
    **dict.fromkeys(("enable recurring", "disable recurring", "retry workflow", "signal"), Role.OPERATOR),
    **dict.fromkeys(("worker quiet", "worker resume", "worker stack"), Role.OPERATOR),
    **dict.fromkeys(("purge", "purge all", "delete queue", "clear tenant", "discard waiting"), Role.ADMIN),
    **dict.fromkeys(("unsubscribe", "worker stop", "worker kill"), Role.ADMIN),
}


class Clearable(Protocol):
    """A cache."""

    def clear(self) -> None: ...


#: What an action makes stale, beside the snapshot of queues and workers.
_MAKES_STALE: dict[str, Callable[[Site], Clearable]] = {
    **dict.fromkeys(("edit", "put recurring", "remove recurring", "run recurring"), scheduled_view),
    **dict.fromkeys(("enable recurring", "disable recurring"), scheduled_view),
    **dict.fromkeys(("cancel", "retry workflow", "signal"), live_workflows),
    "unsubscribe": topology,
}


def audit_done(visit: Visit, action: str, **what: object) -> None:
    """Log a completed action, with its details."""
    _write(logging.INFO, action, visit, what)


def _audit_undone(visit: Visit, action: str, outcome: str, **what: object) -> None:
    """Log a refused or failed action, and record it in the journal.

    Completed actions are recorded by the inspector, with their jobs.
    """
    _write(logging.WARNING, f"{action} {outcome}", visit, what)
    about = " ".join(f"{name}={value}" for name, value in what.items() if value not in ("", "-", False))
    record_action(visit.site.client, visit.actor, action, outcome=outcome, what=printable(about)[: tuning.TEXT])


def _write(level: int, event: str, visit: Visit, what: dict[str, object]) -> None:
    # JSON may contain a lone surrogate, which a log file can't store, and the line would be lost.
    details = {name: printable(value) if isinstance(value, str) else value for name, value in what.items()}
    values = {"by": visit.user.name, "role": visit.user.role.word, "from": visit.client or "-", **details}
    tail = " ".join(f"{name}=%s" for name in values)
    # The formatter (palermo.worker.logs) quotes values that look like a separate pair.
    log.log(level, f"{event} {tail}", *values.values())


@contextmanager
def audited_action(visit: Visit, action: str, **what: object) -> Iterator[dict[str, object]]:
    """Check the user's role, write the outcome to the audit log, and clear the caches that the action makes stale.

    The value of the context is a dictionary, to which the body can add facts for the log. Raises Refused (403) if the
    user lacks the role or the site is read-only.
    """
    role = _ROLES[action]
    if not visit.may(role):
        _audit_undone(visit, action, "refused", **what)
        if visit.site.read_only:
            raise Refused(403, "these pages are read-only, so nothing can be changed here.")
        raise Refused(
            403, f"this requires the {role.word} role, but {visit.user.name} has the {visit.user.role.word} role."
        )
    facts: dict[str, object] = {}
    try:
        yield facts
    except PalermoError as error:
        _audit_undone(visit, action, "failed", **what, error=type(error).__name__, **facts)
        id = what.get("id")
        if isinstance(error, NotFound) and isinstance(id, str):
            raise gone(visit, id, error) from None
        raise
    finally:
        invalidate_snapshot(visit.site)
        if action in _MAKES_STALE:
            _MAKES_STALE[action](visit.site).clear()
    audit_done(visit, action, **what, **facts)


def gone(visit: Visit, id: str, error: NotFound) -> NotFound:
    """Return the error about a job that no longer exists, naming the user who acted on it first."""
    return NotFound(f"{error}{by_whom(visit.site, id)}")
