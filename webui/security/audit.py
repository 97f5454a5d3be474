"""The audit log: a line of the logger `palermo.audit` for each action of a user, and for each refused one."""

import logging

from palermo.client.actor import record_action
from palermo.core.failure import printable
from palermo.webui.base.site import Visit

log = logging.getLogger("palermo.audit")

#: The most characters of an action's details in the journal.
_MAX_TEXT = 500


def done(visit: Visit, action: str, **what: object) -> None:
    """Log an action that was carried out, with its details."""
    _write(logging.INFO, action, visit, what)


def refused(visit: Visit, action: str, **what: object) -> None:
    """Log an action that this user may not do, and write it to the journal."""
    _write(logging.WARNING, f"{action} refused", visit, what)
    _journal(visit, action, "refused", what)


def failed(visit: Visit, action: str, **what: object) -> None:
    """Log an action that went wrong, and write it to the journal."""
    _write(logging.WARNING, f"{action} failed", visit, what)
    _journal(visit, action, "failed", what)


def _journal(visit: Visit, action: str, outcome: str, what: dict[str, object]) -> None:
    """Write the action to the journal. For actions that were carried out the inspector does so, with their jobs."""
    about = " ".join(f"{name}={value}" for name, value in what.items() if value not in ("", "-", False))
    record_action(visit.site.client, visit.actor, action, outcome=outcome, what=printable(about)[:_MAX_TEXT])


def _write(level: int, event: str, visit: Visit, what: dict[str, object]) -> None:
    # JSON can contain a lone surrogate. A log file cannot store one, and the line would be lost.
    said = {name: printable(value) if isinstance(value, str) else value for name, value in what.items()}
    values = {"by": visit.user.name, "role": visit.user.role.word, "from": visit.client or "-", **said}
    tail = " ".join(f"{name}=%s" for name in values)
    # The formatter (palermo.worker.logs) applies repr to values that would look like a pair of their own.
    log.log(level, f"{event} {tail}", *values.values())
