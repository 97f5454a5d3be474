"""`inspector.queues`: list, pause, purge, delete and migrate queues, and check whether workers serve them."""

from contextlib import suppress

from palermo.contract.row_types import QueueRow
from palermo.core.queue_selection import EVERY_QUEUE, QueueSelection
from palermo.core.text import nearest
from palermo.core.topology import MIGRATABLE, check_job_queue, check_queue_name, is_failed
from palermo.errors import NotFound, QueueNameInvalid, UsageError
from palermo.inspector.context import Context, none_failed, queue_rows
from palermo.inspector.judges import Progress
from palermo.inspector.rates import Snapshot


class Queues(Context):
    """The queues of a broker."""

    def size(self, queue: str) -> int:
        """Return the number of waiting jobs. Raises NotFound."""
        check_queue_name(queue)
        for info in self._ask(lambda broker: broker.queues(), again=True):
            if info.name == queue:
                return info.pending
        return self._browse(queue, limit=1).total

    def pause(self, queue: str, *, by: str = "", reason: str = "") -> None:
        """Stop workers from taking jobs of a queue until `resume`, across restarts.

        The queue doesn't have to exist, and running jobs continue. `by` is the user and `reason` the reason, for the
        journal and the pages. Raises QueueNameInvalid for "*"; use `pause_all`.
        """
        check_job_queue(queue)
        if queue == "*":
            raise QueueNameInvalid(
                "'*' is not a queue name. To pause all queues, use `palermo pause --all` or pause_all()."
            )
        self._pause("pause", queue, by=by, reason=reason)

    def resume(self, queue: str, *, by: str = "") -> None:
        """End a pause. Does nothing if the queue isn't paused."""
        self._pause("resume", check_job_queue(queue), by=by)

    def pause_all(self, *, by: str = "", reason: str = "") -> None:
        """Stop workers from taking any jobs until `resume_all`, across restarts.

        Also applies to workers and queues added later. Running jobs continue, and jobs can be enqueued. `by` and
        `reason` are as in `pause`.
        """
        self._pause("pause all", EVERY_QUEUE, by=by, reason=reason)

    def resume_all(self, *, by: str = "") -> None:
        """End `pause_all`. Queues that were paused by name remain paused until `resume`."""
        self._pause("resume all", EVERY_QUEUE, by=by)

    def _pause(self, action: str, queue: str, *, by: str, reason: str = "") -> None:
        by = by or self._actor.name
        pauses = action.startswith("pause")
        self._ask(lambda broker: broker.pause(queue, by=by) if pauses else broker.resume(queue, by=by))
        self._record(action, by=by, queue=None if queue == EVERY_QUEUE else queue, what=reason or None)

    def all_paused(self) -> bool:
        """Return whether all queues are paused by `pause_all`."""
        return self._ask(lambda broker: broker.all_paused(), again=True)

    def purge(self, queue: str) -> int:
        """Remove all waiting jobs of a queue, and return their number. Raises NotFound."""
        check_queue_name(queue)
        count = none_failed(queue, 0, lambda: self._ask(lambda broker: broker.purge(queue)))
        self._record("purge", queue=queue, count=count)
        return count

    def purge_all(self) -> dict[str, int]:
        """Remove the waiting jobs of all queues, and return their number by queue.

        Running, scheduled and failed jobs are not removed.
        """
        removed = {}
        for name in [row["name"] for row in self.list() if row["pending"] and not is_failed(row["name"])]:
            with suppress(NotFound):  # deleted in the meantime
                removed[name] = self.purge(name)
        return removed

    def migrate(self, queue: str, kind: str, *, progress: Progress | None = None) -> int:
        """Change a queue's type to "classic", "quorum" or "priority", and keep its jobs. Returns the number of moved
        jobs.

        Workers and publishers can continue. After an interruption nothing is lost; call it again. Raises NotFound, and
        BrokerRefused on a broker with only one type.
        """
        check_queue_name(queue)
        if kind not in MIGRATABLE:
            raise UsageError(f"there is no queue type {kind!r}; the types are {', '.join(MIGRATABLE)}.")
        count = self._ask(lambda broker: broker.migrate(queue, kind, progress=progress))
        self._record("migrate", queue=queue, count=count, what=kind)
        return count

    def delete(self, queue: str) -> int:
        """Delete a queue with its waiting jobs, and return their number. Raises NotFound."""
        check_queue_name(queue, controls=True)
        count = none_failed(queue, 0, lambda: self._ask(lambda broker: broker.delete(queue)))
        self._record("delete queue", queue=queue, count=count)
        return count

    def unserved(self, queue: str) -> str:
        """Like `unserved_text`, with a new snapshot."""
        return unserved_text(self._snapshot(), queue)

    def list(self) -> list[QueueRow]:
        """List all queues by name, including `failed`."""
        return queue_rows(self._ask(lambda broker: broker.queues(), again=True))


def unserved_text(found: Snapshot, queue: str) -> str:
    """Return a sentence if no worker takes jobs from this queue, with a similarly named one; "" if a worker does.

    A worker that doesn't answer doesn't count. If the broker is in trouble, the result is "". A pattern such as `*`
    also serves queues that don't exist yet.
    """
    if found.trouble is not None:
        return ""
    named = any(row["name"] == queue and row["workers"] for row in found.queues)
    if named or any(row["answers"] and _serves(row["queues"], queue) for row in found.workers):
        return ""
    known = {row["name"] for row in found.queues if row["workers"]}
    return f"no worker serves queue {queue!r}.{nearest(queue, sorted(known))}"


def _serves(written: list[str], queue: str) -> bool:
    try:
        return queue in QueueSelection.parse(written).select([queue])
    except QueueNameInvalid:  # from a worker's report, which may contain anything
        return False
