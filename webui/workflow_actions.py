"""The actions on workflows. Like those in webui/actions.py, they check the role and write the audit log."""

from typing import Any

from palermo.contract.rows import Row
from palermo.inspector.judges import TakenJob
from palermo.webui import actions
from palermo.webui.actions import audited_action
from palermo.webui.site import Role, Visit
from palermo.webui.state.workflows import live_workflows


def retry(visit: Visit, id: str) -> list[TakenJob]:
    """Requeue a workflow's failed jobs. Raises NotFound, and UsageError for a workflow without failed steps."""
    with audited_action(visit, "retry workflow", Role.OPERATOR, id=id) as facts:
        taken = visit.inspector.workflows.retry(id)
        facts["jobs"] = len(taken)
        live_workflows(visit.site).clear()
    return taken


def cancel(visit: Visit, id: str) -> Row:
    """Cancel a workflow with its steps. Returns the row of inspector.jobs.cancel."""
    row = actions.cancel(visit, id)
    live_workflows(visit.site).clear()
    return row


def signal(visit: Visit, id: str, name: str, value: Any) -> None:
    """Send a signal to a workflow. Raises NotFound, and EncodeError and BodyTooLarge for the value."""
    with audited_action(visit, "signal", Role.OPERATOR, id=id, signal=name):
        visit.inspector.workflows.signal(id, name, value)
        live_workflows(visit.site).clear()
