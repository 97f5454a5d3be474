"""Who did what, and when: a line of the logger `palermo.audit` for each action, and for each that was refused."""

import logging

from palermo.acting import write_down
from palermo.core.failure import printable
from palermo.webui.site import Visit

log = logging.getLogger("palermo.audit")

#: Characters of what an action was about, in the journal.
_MAX_TEXT = 500


def done(visit: Visit, action: str, **what: object) -> None:
    """Write down an action that was carried out, with what it was about."""
    _write(logging.INFO, action, visit, what)


def refused(visit: Visit, action: str, **what: object) -> None:
    """Write down an action that this user may not do."""
    _write(logging.WARNING, f"{action} refused", visit, what)
    _journal(visit, action, "refused", what)


def failed(visit: Visit, action: str, **what: object) -> None:
    """Write down an action that was tried and went wrong."""
    _write(logging.WARNING, f"{action} failed", visit, what)
    _journal(visit, action, "failed", what)


def _journal(visit: Visit, action: str, outcome: str, what: dict[str, object]) -> None:
    """What was carried out the inspector writes down, with the jobs that it was about."""
    about = " ".join(f"{name}={value}" for name, value in what.items() if value not in ("", "-", False))
    write_down(visit.site.client, visit.actor, action, outcome=outcome, what=printable(about)[:_MAX_TEXT])


def _write(level: int, event: str, visit: Visit, what: dict[str, object]) -> None:
    # A lone surrogate, as JSON can bring one, is nothing that a log file can hold: the line would be lost.
    said = {name: printable(value) if isinstance(value, str) else value for name, value in what.items()}
    values = {"by": visit.user.name, "role": visit.user.role.word, "from": visit.client or "-", **said}
    tail = " ".join(f"{name}=%s" for name in values)
    # repr, where a name could pass for a pair of its own, is the formatter's business: palermo.worker.logs.
    log.log(level, f"{event} {tail}", *values.values())
