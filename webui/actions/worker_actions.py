"""The orders to workers: quiet, resume, stop, kill, stack."""

from collections.abc import Sequence

from palermo.contract.rows import Row
from palermo.errors import NotFound
from palermo.webui.actions.audited_action import audited_action
from palermo.webui.base.site import Visit
from palermo.webui.base.users import Role

#: The role that each order to a worker needs.
CONTROL_ROLES = {
    "quiet": Role.OPERATOR,
    "resume": Role.OPERATOR,
    "stack": Role.OPERATOR,
    "stop": Role.ADMIN,
    "kill": Role.ADMIN,
}


def control(visit: Visit, workers: Sequence[str] | None, action: str) -> list[Row]:
    """Send an order to the workers with these ids, or to all (None). Returns the rows of Inspector.control.

    Raises NotFound, before any order is sent, if one of the workers is not alive.
    """
    named = "all" if workers is None else ", ".join(workers)
    with audited_action(visit, f"worker {action}", CONTROL_ROLES[action], worker=named) as facts:
        # The inspector also accepts the beginning of an id, which is good for typing but not for a button.
        alive = {row["id"] for row in visit.inspector.workers()} if workers else set()
        if gone := [id for id in workers or () if id not in alive]:
            raise NotFound(f"no worker {gone[0][:80]!r} is alive.")
        rows = visit.inspector.control(action, workers)
        facts["answered"] = all(row["answered"] for row in rows)
        if workers is None:
            facts["workers"] = ", ".join(row["worker"] for row in rows)
    return rows
