"""`inspector.jobs`: list, cancel, move, discard and change jobs, by id or queue.

`run_again` enqueues a finished job as a new one, from the journal. `edit` changes a waiting, scheduled or retrying job.
A JobFilter chooses among many waiting jobs.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Unpack

from msgspec.structs import replace

from palermo.client import dequeue as dequeuing
from palermo.client.actor import OTHER_ARGUMENTS
from palermo.client.control import cancel_jobs
from palermo.client.handle import Job
from palermo.client.prepare import new_id
from palermo.client.recorded_jobs import CONVERTED, EDITED, HIDDEN, SHORTENED, UNREADABLE, RecordedJob
from palermo.client.status import State, find_status, locate
from palermo.contract import clock
from palermo.contract.finding import CANCELLED
from palermo.contract.recurring_entries import RECURRING, TICK
from palermo.contract.row_types import JobRow
from palermo.contract.rows import Listing, Row
from palermo.contract.worker_info import WorkerCommand
from palermo.core.job_edit import JobEdit
from palermo.core.lifecycle import JobState
from palermo.core.message import MAX_SECONDS, PARENT, Message
from palermo.core.topology import check_id, check_job_queue, check_new_queue, check_queue_name, is_failed
from palermo.errors import ArgumentsInvalid, NotFound, PalermoError, UsageError
from palermo.inspector.changes import Changes, Rewriter, check_options
from palermo.inspector.context import PROMPT, SEARCHED, Context
from palermo.inspector.judges import Progress, Selection, TakeJudge, TakenJob, Watching, reading, stoppable
from palermo.inspector.rates import Snapshot
from palermo.views.facts import may_contain
from palermo.views.filter import EVERYTHING, JobFilter

#: Maximum number of jobs cancelled by one call, which is the number of marks that the broker keeps.
MAX_CANCELLED = 100_000

#: A selection of waiting jobs: one id, several ids, or a filter.
WaitingJobs = str | Iterable[str] | JobFilter


def check_move(queue: str, to: str) -> None:
    """Raise QueueNameInvalid or UsageError if waiting jobs of `queue` can't be moved to `to`."""
    check_job_queue(queue)
    check_new_queue(to)
    if to == queue:
        raise UsageError(f"the jobs are already in queue {queue}. Name another queue.")


#: Why the recorded arguments aren't the job's exact ones, as shown to users.
REASONS = {
    SHORTENED: "its arguments are longer than journal_arguments allows, so the journal has only their beginning",
    HIDDEN: "some values of its arguments are hidden by the web_redact setting",
    CONVERTED: "its arguments were not serialized as JSON, but the journal recorded them as JSON",
    UNREADABLE: "its arguments cannot be decoded safely, so the journal has only a preview",
    EDITED: "an operator changed its arguments after they were recorded",
}

#: The states in which a job can be changed.
_EDITABLE = ("pending", "retrying", "scheduled")


class Jobs(Context):
    """Jobs in any state. There are separate attributes for failed, scheduled and recurring jobs."""

    def dequeue(
        self,
        job: Any,
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
        *,
        queue: str | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Remove waiting jobs from their queue: all with this name, or those with exactly these arguments.

        `job` is a decorated class or function, or a name. `queue` defaults to the job's own queue, or to the default
        queue if the job's code isn't imported here. If it is imported, its before_dequeue hooks (which can veto) and
        after_dequeue hooks run with the given arguments. Returns the number of removed jobs.
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
        """Count the waiting jobs that `dequeue` would remove."""
        return dequeuing.count(self._client, job, args, kwargs, ask=self._ask, queue=queue)

    def queue_of(self, job: str) -> str:
        """Return a job's own queue if its code is imported here, otherwise the default queue."""
        return dequeuing.queue_of(self._client.settings, job)

    def status(self, id: str, patience: float | None = None, *, snapshot: Callable[[], Snapshot] | None = None) -> Row:
        """Return the row of a job's status (see JobStatus). Its `reason` also says why no worker takes a waiting job.

        Reads the journal for at most `patience` seconds (default: publish_timeout). `snapshot` returns the queues and
        workers, if they are already known.
        """
        from palermo.inspector.problems import why_waiting

        found = self._client.watch(find_status(self._client, self._client.job_by_id(check_id(id)), patience))
        waits = found.state in (State.PENDING, State.RETRYING) and (found.run_at or 0.0) <= clock.now()
        why = ""
        if waits:
            with suppress(PalermoError):
                why = why_waiting((snapshot or self._snapshot)(), found.queue)
        return {**found.row(), "reason": f"{found.reason} {why}".strip()}

    def cancel(self, ids: str | Iterable[str], *, by: str = "") -> list[Row]:
        """Cancel waiting and running jobs. Returns a row per id: see palermo.client.control.cancel_jobs.

        Failed jobs are unchanged; use `discard` in `inspector.failed`.
        """
        chosen = [ids] if isinstance(ids, str) else list(dict.fromkeys(ids))
        for id in chosen:
            check_id(id)
        by = by or self._actor.name
        began = clock.now()
        rows = self._ask(lambda broker: cancel_jobs(broker, chosen, by=by), again=True)
        self._record("cancel", by=by, ids=chosen, at=began)
        return rows

    def lines(self, id: str, worker: str) -> list[str]:
        """Return the last 100 log lines of a running job, from its worker."""
        order = WorkerCommand(action="lines", id=check_id(id), workers=(worker,))
        answers = self._ask(lambda broker: broker.command(order, timeout=PROMPT), again=True)
        return [str(line) for answer in answers for line in answer.values.get("lines", ())]

    def waiting(self, id: str, queue: str = "") -> tuple[JobRow, Message] | None:
        """Return a waiting job's row and message, if found. `queue` is the queue to search, or ""."""
        found = self._ask(lambda broker: broker.find((id,), queue=queue, failed=False), again=True)
        for place in found.jobs:
            if place.message is not None and place.state in (JobState.PENDING, JobState.RETRYING, CANCELLED):
                return {**self._rows((place.message,), JobState.PENDING)[0], "state": place.state}, place.message
        return None

    def _selection(self, which: WaitingJobs) -> Selection:
        if not isinstance(which, JobFilter):
            return Selection(which)
        # Fast path: comparing names needs no rows.
        by_name = which == JobFilter(job=which.job)

        def matches(message: Message) -> bool:
            if not which.fits_name("job", message.job):
                return False
            if by_name or (which.text is not None and not may_contain(message, which.text.casefold())):
                return by_name
            [row] = self._rows((message,), JobState.PENDING)
            return self._fits(row, which)

        return Selection((), matches)

    def discard(self, queue: str, which: WaitingJobs, **watching: Unpack[Watching]) -> list[TakenJob]:
        """Remove waiting jobs from a queue: one id, several ids, or all that match a filter (JobFilter() for all).

        Jobs taken by a worker in the meantime are not removed. For ids that are no longer waiting there, NotFound is
        raised at the end, or passed to `on_error`. During the command, `progress` is called with its progress and
        `on_taken` with the jobs taken so far. It stops early once `stop` returns True. Raises NotFound for a queue that
        doesn't exist.
        """
        return self._take_waiting("discard", queue, which, TakeJudge(self._selection(which)), watching, queue)

    def move(self, queue: str, which: WaitingJobs, to: str, **watching: Unpack[Watching]) -> list[TakenJob]:
        """Move waiting jobs to the end of another queue. Options and errors are as in `discard`.

        Each job is stored in its new queue before it leaves the old one, so an interruption loses none. Repeat the
        command to move the rest.
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
        return self._take(
            action,
            which,
            judge,
            lambda decide, progress: self._client.run(lambda broker: broker.sweep(queue, decide, progress=progress)),
            watching,
            queue=place,
            details=details,
            missing="no job {} is waiting there.",
        )

    def cancel_waiting(self, queue: str, which: WaitingJobs, **watching: Unpack[Watching]) -> list[TakenJob]:
        """Cancel waiting jobs of a queue. They remain in the queue until a worker receives and drops them.

        Running jobs are stopped, as by `cancel`. Options are as in `discard`, but ids that aren't waiting there are
        cancelled too. Raises UsageError for more than 100,000 jobs, and NotBrowsable if reading the queue would change
        it.
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
                f"{len(chosen):,} jobs are selected, but one call can cancel at most {MAX_CANCELLED:,}. Select"
                " fewer, or discard them."
            )
        began, ids = clock.now(), [job.id for job in chosen]
        self._ask(lambda broker: cancel_jobs(broker, ids, by=self._actor.name), again=True)
        self._record("cancel", ids=ids, what=str(which) if isinstance(which, JobFilter) else None, at=began)
        if (on_taken := watching.get("on_taken")) is not None:
            on_taken(chosen)
        return chosen

    def count(self, queue: str, filter: JobFilter, *, depth: int | None = None) -> int:
        """Count the waiting jobs that match a filter, in the whole queue or among its first `depth` jobs.

        Raises NotFound, and NotBrowsable if reading the queue would change it.
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
        self._ask(lambda broker: broker.browse(queue, limit=0), again=True)
        found: dict[str, TakenJob] = {}
        selection = self._selection(filter)

        def see(message: Message) -> None:
            if selection.includes(message):
                found[message.id] = TakenJob(message.id, message.job, queue)

        judge = stoppable(stop, reading(see))
        self._client.run(lambda broker: broker.sweep(queue, judge, progress=progress, only_look=True), again=True)
        return list(found.values())

    def recorded(self, id: str, *, progress: Progress | None = None) -> RecordedJob | None:
        """Return the recorded arguments and options of a job, or None. Reads the whole journal."""
        from palermo.history import listings

        return listings.recorded_of(self._client, check_id(id), progress=progress)

    def run_again(self, id: str, *, known: RecordedJob | None = None, **changes: Unpack[Changes]) -> Job:
        """Enqueue a finished job again, as a new job with the recorded arguments and options, and return it.

        `args`, `kwargs`, `queue`, `priority` and `at` replace the recorded values. `known` is the result of `recorded`;
        by default the journal is read.

        Raises NotFound if the job isn't in the journal, ArgumentsInvalid if its exact arguments aren't and `args` or
        `kwargs` is missing, and UsageError if the job hasn't ended.
        """
        check_options(changes, Changes)
        found = known or self.recorded(id)
        if found is None:
            raise NotFound(
                f"the journal has no arguments of job {id}. They are recorded when a job ends if its worker has"
                ' journal = "all".'
            )
        if (why := REASONS.get(found.inexact)) and None in (changes.get("args"), changes.get("kwargs")):
            raise ArgumentsInvalid(f"job {id} cannot be run again unchanged: {why}. Give its args and kwargs.")
        place = self._ask(lambda broker: locate(broker, id, found.message.queue, failed=False), again=True)
        if place.state:
            raise UsageError(f"job {id} is {place.state} and has not ended. Wait until it ends, or edit it.")
        now = clock.now()
        extra = {name: value for name, value in found.message.extra.items() if name not in (RECURRING, TICK, PARENT)}
        expires = None if found.expires is None else min(MAX_SECONDS - 1, now + found.expires)
        fresh = replace(
            found.message, id=new_id(), extra=extra, created_at=int(now), queued_at=now, run_at=now, expires_at=expires
        )
        if found.inexact:
            # The new arguments are serialized like the old ones, and signed if those were.
            fresh = replace(fresh, body=b"", content_type=found.content_type)
        # The expiry is moved by the same amount as the instant.
        again = Rewriter.of(self._client.serializers, changes)(fresh)
        job = self._client.enqueue_message(again if changes.get("at") is not None else replace(again, run_at=None))
        self._record("run again", queue=job.queue, ids=[id, job.id], count=1, what=f"{id} as {job.id}", at=now)
        return job

    def edit(self, id: str, *, waits_in: str = "", **changes: Unpack[Changes]) -> Job:
        """Change a waiting, scheduled or retrying job. Takes the same changes as `run_again`.

        The job keeps its id, and moves to the end of its queue. The changed job is stored before the old one is
        removed, so the job may run twice if the program is killed in between. `waits_in` is the queue to search first.
        Raises NotFound if the job isn't waiting or has just started.
        """
        check_options(changes, Changes)
        check_id(id)
        place = self._ask(lambda broker: locate(broker, id, waits_in, failed=False), again=True)
        message = place.message
        if message is None or place.state not in _EDITABLE:
            raise NotFound(
                f"job {id} is {place.state}, so it cannot be edited."
                if place.state
                else f"job {id} was not found among the waiting jobs. It has ended, or is in the middle of a long"
                " queue."
            )
        change = Rewriter.of(self._client.serializers, changes).edit(message)
        if not change.empty:
            began = clock.now()
            self._change(message, change)
            what = OTHER_ARGUMENTS if change.content is not None else None
            self._record("edit", queue=change.queue, ids=[id], what=what, at=began)
        return Job(id, change.queue or message.queue, message.job, _client=self._client)

    def _change(self, message: Message, change: JobEdit) -> None:
        """Replace a message where it waits. Raises NotFound if it is no longer waiting."""
        if message.run_at is not None and message.run_at > clock.now():
            dated = change if change.run_at is not None else replace(change, run_at=message.run_at)
            if self._ask(lambda broker: broker.edit_scheduled(message.id, dated)):
                return
            # It has become due and may now be waiting in its queue.
        judge = TakeJudge(Selection(message.id), change.applied_to, queue=f"queue {message.queue}")
        decide = stoppable(lambda: message.id in judge.selection.seen, judge)
        self._ask(lambda broker: broker.sweep(message.queue, decide))
        if judge.refusal is not None:
            raise UsageError(f"{judge.refusal} Nothing was changed.")
        if not judge.taken:
            raise NotFound(
                f"job {message.id} is no longer waiting, because a worker or another operator has taken it. Nothing was"
                " changed."
            )

    def list(
        self,
        queue: str,
        *,
        offset: int = 0,
        limit: int = 100,
        newest: bool = False,
        filter: JobFilter = EVERYTHING,
        depth: int = SEARCHED,
    ) -> Listing[JobRow]:
        """List the waiting jobs of a queue, oldest first. Jobs in the state "cancelled" will not run.

        A filter is compared with the first `depth` jobs, or the last ones if `newest` is set. `total` is then the
        number of matching jobs, and `unseen` the number of jobs that weren't compared. Raises NotFound for a queue that
        doesn't exist.
        """
        check_queue_name(queue)
        searched = not filter.everything
        page = self._browse(queue, offset=0 if searched else offset, limit=depth if searched else limit, newest=newest)
        state = JobState.FAILED if is_failed(queue) else JobState.PENDING
        text = (filter.text or "").casefold()
        messages = [one for one in page.messages if not text or may_contain(one, text)]
        rows = self._rows(messages, state, page.cancelled)
        if not searched:
            return Listing(rows, page.total, page.unseen)
        found = [row for row in rows if self._fits(row, filter)]
        return Listing(found[offset : offset + limit], len(found), max(0, page.total - depth))
