"""The context of every action: it checks the user's role and writes the audit log."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from palermo.errors import PalermoError
from palermo.webui.base.errors import Refused
from palermo.webui.base.site import Visit
from palermo.webui.base.users import Role
from palermo.webui.security import audit
from palermo.webui.state.live_state import invalidate_snapshot


@contextmanager
def audited_action(visit: Visit, action: str, role: Role, **what: object) -> Iterator[dict[str, object]]:
    """Check the user's role, and write the outcome of the action to the audit log.

    The body of the `with` statement adds facts for the log to the dictionary that it gets. Raises Refused (403) if
    the user lacks the role or the site is read-only.
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
        invalidate_snapshot(visit.site)
    audit.done(visit, action, **what, **facts)


def describe_ids(ids: Sequence[str]) -> str:
    """A short text for these jobs, for the audit log and for people."""
    return ", ".join(ids[:3]) + (f" and {len(ids) - 3:,} more" if len(ids) > 3 else "")
