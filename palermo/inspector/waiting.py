"""The part of the inspector's noun `jobs` that counts, cancels, moves and discards many waiting jobs of a queue.

A JobFilter chooses the jobs.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Unpack

from palermo.contract import clock
from palermo.core.job_edit import JobEdit
from palermo.core.lifecycle import JobState
from palermo.core.message import Message
from palermo.core.topology import check_id, check_job_queue, check_new_queue
from palermo.errors import UsageError
from palermo.inspector.changes import check_options
from palermo.inspector.context import Context
from palermo.inspector.control import cancel
from palermo.inspector.judges import Judge, Progress, Selection, TakeJudge, TakenJob, Watching, reading, stoppable
from palermo.jobs.redaction import masked_row
from palermo.views.facts import facts_of_row, may_contain
from palermo.views.filter import JobFilter

#: The most jobs that one call cancels: the broker keeps so many marks.
MAX_CANCELLED = 100_000

#: The waiting jobs that are meant: one id, several, or those that a filter matches.
WaitingJobs = str | Iterable[str] | JobFilter


def check_move(queue: str, to: str) -> None:
    """Raise QueueNameInvalid or UsageError if jobs that wait in a queue cannot be moved to this other one."""
    check_job_queue(queue)
    check_new_queue(to)
    if to == queue:
        raise UsageError(f"the jobs are already in queue {queue}: name another queue.")


class JobsInQueue(Context):
    """Many jobs that wait in a queue: count, cancel, move and discard them."""

    def _selection(self, which: WaitingJobs) -> Selection:
        if not isinstance(which, JobFilter):
            return Selection(which)
        # Fast path: no row is made to compare a name.
        by_name = which == JobFilter(job=which.job)

        def matches(message: Message) -> bool:
            if not which.fits_name("job", message.job):
                return False
            if by_name or (which.text is not None and not may_contain(message, which.text.casefold())):
                return by_name
            [row] = self._rows((message,), JobState.PENDING)
            return which.matches(facts_of_row(masked_row(row, self._hidden)))

        return Selection((), matches)

    def discard(self, queue: str, which: WaitingJobs, **watching: Unpack[Watching]) -> list[TakenJob]:
        """Remove waiting jobs of a queue: one id, several ids, or all that a filter matches (JobFilter() for all).

        A job that a worker has taken in the meantime is left to it. For ids that no longer wait there, NotFound is
        raised after all other jobs are done, or given to `on_error`. `progress` gets the progress and `on_taken` the
        jobs that have gone while the command runs, and a `stop` that returns True ends it early. Raises NotFound for a
        queue that does not exist.
        """
        return self._take_waiting("discard", queue, which, TakeJudge(self._selection(which)), watching, queue)

    def move(self, queue: str, which: WaitingJobs, to: str, **watching: Unpack[Watching]) -> list[TakenJob]:
        """Move jobs that wait in a queue to the end of another. Options and errors as for `discard`.

        Each job is stored in its new queue before it leaves the old one, so an interruption loses none. Run the command
        again to move the rest.
        """
        check_move(queue, to)
        judge = TakeJudge(self._selection(which), JobEdit(queue=to).applied_to, queue=f"queue {queue}")
        return self._take_waiting("move", queue, which, judge, watching, to, details=f"from {queue}")

    def _take_waiting(
        self,
        action: str,
        queue: str,
        which: WaitingJobs,
        judge: TakeJudge,
        watching: Watching,
        place: str,
        details: str = "",
    ) -> list[TakenJob]:
        check_options(watching, Watching)
        check_job_queue(queue)

        def sweep(decide: Judge, progress: Progress) -> None:
            self._client.run(lambda broker: broker.sweep(queue, decide, progress=progress))

        missing = "no job {} waits there any more."
        return self._take(action, which, judge, sweep, watching, queue=place, details=details, missing=missing)

    def cancel_waiting(self, queue: str, which: WaitingJobs, **watching: Unpack[Watching]) -> list[TakenJob]:
        """Cancel jobs that wait in a queue: each stays there until a worker takes it, and drops it.

        A job that is already running is stopped, as by `cancel`. Options as for `discard`, but ids that do not wait
        there are cancelled too. Raises UsageError for more than 100,000 jobs, and NotBrowsable where reading the queue
        would change it.
        """
        check_options(watching, Watching)
        check_job_queue(queue)
        stop = watching.get("stop")
        if isinstance(which, JobFilter):
            chosen = self._found(queue, which, progress=watching.get("progress"), stop=stop)
        else:
            ids = [which] if isinstance(which, str) else dict.fromkeys(which)
            chosen = [TakenJob(check_id(id), "", queue) for id in ids]
        if not chosen or (stop is not None and stop()):
            return []
        if len(chosen) > MAX_CANCELLED:
            raise UsageError(
                f"{len(chosen):,} jobs are chosen, but one call cancels at most {MAX_CANCELLED:,}. Discard them."
            )
        began, ids = clock.now(), [job.id for job in chosen]
        self._ask(lambda broker: cancel(broker, ids, by=self._actor.name), again=True)
        self._record("cancel", ids=ids, what=str(which) if isinstance(which, JobFilter) else None, at=began)
        if (on_taken := watching.get("on_taken")) is not None:
            on_taken(chosen)
        return chosen

    def count(self, queue: str, filter: JobFilter, *, depth: int | None = None) -> int:
        """How many of the first `depth` jobs that wait in a queue a filter matches; of all unless given.

        Raises NotFound, and NotBrowsable where looking would harm.
        """
        check_job_queue(queue)
        seen = itertools.count()
        return len(self._found(queue, filter, stop=lambda: next(seen) == depth))

    def _found(
        self,
        queue: str,
        filter: JobFilter,
        *,
        progress: Progress | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> list[TakenJob]:
        """The jobs in a queue that a filter matches."""
        self._ask(lambda broker: broker.browse(queue, limit=0), again=True)
        found: dict[str, TakenJob] = {}
        selection = self._selection(filter)

        def see(message: Message) -> None:
            if selection.includes(message):
                found[message.id] = TakenJob(message.id, message.job, queue)

        judge = stoppable(stop, reading(see))
        self._client.run(lambda broker: broker.sweep(queue, judge, progress=progress, only_look=True), again=True)
        return list(found.values())
