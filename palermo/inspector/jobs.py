"""Jobs by their ids or by their queue: list, count, cancel, move, discard, change them, and run them again."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from palermo.client import dequeue as dequeuing
from palermo.contract import clock
from palermo.contract.finding import CANCELLED
from palermo.contract.row_types import JobRow
from palermo.contract.rows import Listing, Row
from palermo.contract.worker_info import WorkerCommand
from palermo.core.lifecycle import JobState
from palermo.core.message import Message
from palermo.core.topology import check_id, check_queue_name, is_failed
from palermo.inspector import waiting
from palermo.inspector.again import EndedJobs
from palermo.inspector.context import PROMPT
from palermo.inspector.control import cancel
from palermo.inspector.judges import Progress
from palermo.jobs.redaction import masked_row
from palermo.views.facts import facts_of_row, may_contain
from palermo.views.filter import EVERYTHING, JobFilter


class Jobs(EndedJobs, waiting.JobsInQueue):
    """Jobs in any state but failed, scheduled and recurring ones, which have nouns of their own."""

    def peek(self, queue: str, *, start: int = 0, count: int = 1) -> list[JobRow]:
        """The next jobs of a queue, from `start` on. Raises NotFound."""
        return self.list(queue, offset=start, limit=count).rows

    def dequeue(
        self,
        job: Any,
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
        *,
        queue: str | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Take waiting jobs out of their queue: all of this job, or those with exactly these arguments.

        `job` is a decorated class or function, or a name. Without `queue` it is the job's own queue, or the
        default queue if the job's code is not imported here. If it is imported, the job's hooks before_dequeue
        (which may veto) and after_dequeue run, with the arguments given. Returns how many were taken.
        """
        client, actor = self._client, self._actor
        return dequeuing.dequeue(client, job, args, kwargs, actor=actor, ask=self._ask, queue=queue, progress=progress)

    def count_matching(
        self,
        job: str,
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
        *,
        queue: str | None = None,
    ) -> int:
        """How many waiting jobs `dequeue` would take."""
        return dequeuing.count(self._client, job, args, kwargs, ask=self._ask, queue=queue)

    def queue_of(self, job: str) -> str:
        """The queue of a job by its name: its own if its code is imported here, else the default queue."""
        return dequeuing.queue_of(self._client.settings, job)

    def cancel(self, ids: str | Iterable[str], *, by: str = "") -> list[Row]:
        """Keep jobs from running, or end them where they run; a row for each id: see palermo.inspector.control.cancel.

        Failed jobs stay where they are; `discard` throws them away.
        """
        chosen = [ids] if isinstance(ids, str) else list(dict.fromkeys(ids))
        for id in chosen:
            check_id(id)
        by = by or self._actor.name
        began = clock.now()
        rows = self._ask(lambda broker: cancel(broker, chosen, by=by), again=True)
        self._record("cancel", by=by, ids=chosen, at=began)
        return rows

    def lines(self, id: str, worker: str) -> list[str]:
        """The last 100 lines that the job with this id, which this worker runs, has logged about itself."""
        order = WorkerCommand(action="lines", id=check_id(id), workers=(worker,))
        answers = self._ask(lambda broker: broker.command(order, timeout=PROMPT), again=True)
        return [str(line) for answer in answers for line in answer.values.get("lines", ())]

    def waiting(self, id: str, queue: str = "") -> tuple[JobRow, Message] | None:
        """A job that is seen to wait in a queue, its row and its message; `queue` is where to look, "" if unknown."""
        found = self._ask(lambda broker: broker.find((id,), queue=queue, failed=False), again=True)
        for place in found.jobs:
            if place.message is not None and place.state in (JobState.PENDING, JobState.RETRYING, CANCELLED):
                return {**self._rows((place.message,), JobState.PENDING)[0], "state": place.state}, place.message
        return None

    def list(
        self, queue: str, *, offset: int = 0, limit: int = 100, newest: bool = False, filter: JobFilter = EVERYTHING
    ) -> Listing[JobRow]:
        """Jobs that wait in a queue, oldest first; those whose state is "cancelled" will not run.

        With a filter only the jobs of the page that match.

        Raises NotFound for a queue that does not exist.
        """
        check_queue_name(queue)
        page = self._browse(queue, offset=offset, limit=limit, newest=newest)
        state = JobState.FAILED if is_failed(queue) else JobState.PENDING
        text = (filter.text or "").casefold()
        messages = [one for one in page.messages if not text or may_contain(one, text)]
        rows = self._rows(messages, state)
        for row, message in zip(rows, messages, strict=True):
            if message.id in page.cancelled:
                row["state"] = CANCELLED
        if not filter.everything:
            rows = [row for row in rows if filter.matches(facts_of_row(masked_row(row, self._hidden)))]
        return Listing(rows, page.total, page.unseen)
