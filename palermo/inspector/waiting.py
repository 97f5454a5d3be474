"""The inspector's search for one job that waits in a queue."""

from palermo.client.locate import locate_waiting
from palermo.contract.rows import Row
from palermo.core.lifecycle import JobState
from palermo.inspector.context import Context


def waiting_job(context: Context, id: str, queue: str = "") -> Row | None:
    """The row of a job that `locate` sees in a queue; `queue` is the one to look in, "" if that is not known."""
    place = context._ask(lambda broker: locate_waiting(broker, id, queue), again=True)
    if place is None or place.message is None:
        return None
    return {**context._rows((place.message,), JobState.PENDING)[0], "state": place.state}
