"""Everything that can be done from the web: pages and API act by these functions and never otherwise.

Each checks the role, acts through the inspector, and writes the audit log.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from palermo.errors import PalermoError
from palermo.webui import audit
from palermo.webui.errors import Refused
from palermo.webui.people import Role
from palermo.webui.site import Visit


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
        audit.refused(visit, action, **what, error=type(error).__name__, **facts)
        raise
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
