"""The actions on recurring jobs: add, remove, enable, disable and run now."""

from typing import Any

from palermo.webui.actions.audited_action import audited_action
from palermo.webui.base.errors import Refused
from palermo.webui.base.site import Visit
from palermo.webui.base.users import Role
from palermo.webui.state.scheduled_view import scheduled_view


def put_recurring(visit: Visit, name: str, job: str, *, replace: bool = False, **options: Any) -> None:
    """Add a recurring job; the options are those of Inspector.put_recurring.

    Raises Refused (409) if the name is taken, unless `replace` is set.
    """
    with audited_action(visit, "put recurring", Role.OPERATOR, name=name, job=job):
        if not replace and any(row["name"] == name for row in visit.inspector.recurring()):
            raise Refused(409, f"there is a recurring job {name[:80]!r} already: give another name, or remove it.")
        visit.inspector.put_recurring(name, job, **options)
        scheduled_view(visit.site).clear()


def remove_recurring(visit: Visit, name: str) -> None:
    """Remove a recurring job. Raises NotFound."""
    with audited_action(visit, "remove recurring", Role.OPERATOR, name=name):
        visit.inspector.remove_recurring(name)
        scheduled_view(visit.site).clear()


def switch_recurring(visit: Visit, name: str, *, on: bool) -> None:
    """Enable or disable a recurring job. Raises NotFound."""
    with audited_action(visit, "enable recurring" if on else "disable recurring", Role.OPERATOR, name=name):
        visit.inspector.switch_recurring(name, on)
        scheduled_view(visit.site).clear()


def run_recurring(visit: Visit, name: str) -> str:
    """Enqueue a recurring job now. Returns the id of the enqueued job. Raises NotFound."""
    with audited_action(visit, "run recurring", Role.OPERATOR, name=name) as facts:
        facts["id"] = id = visit.inspector.run_recurring(name)
        scheduled_view(visit.site).clear()
    return id
