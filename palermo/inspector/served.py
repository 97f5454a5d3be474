"""Whether a worker takes jobs from a queue: asked before jobs are moved to a queue whose name may be mistyped."""

from palermo.core.queue_selection import QueueSelection
from palermo.core.text import nearest
from palermo.errors import QueueNameInvalid
from palermo.inspector.context import Context
from palermo.inspector.rates import Snapshot


def unserved_text(found: Snapshot, queue: str) -> str:
    """A sentence that no worker takes jobs from this queue, with the name that may be meant; "" if a worker does.

    A worker that does not answer counts as none, unless the broker's trouble may keep it from that: then it is not
    known, and the text is "". A pattern such as `*` also serves a queue that does not exist yet.
    """
    if found.trouble is not None:
        return ""
    named = any(row["name"] == queue and row["workers"] for row in found.queues)
    if named or any(row["answers"] and _serves(row["queues"], queue) for row in found.workers):
        return ""
    known = {row["name"] for row in found.queues if row["workers"]}
    return f"no worker serves queue {queue!r}.{nearest(queue, sorted(known))}"


def unserved(context: Context, queue: str) -> str:
    """`unserved_text` of this moment, for a queue that is to get jobs. Takes no job."""
    return unserved_text(context.snapshot(), queue)


def _serves(written: list[str], queue: str) -> bool:
    try:
        return queue in QueueSelection.parse(written).select([queue])
    except QueueNameInvalid:  # a worker's own report, which may hold anything
        return False
