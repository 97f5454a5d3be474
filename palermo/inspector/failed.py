"""`inspector.failed`: list, count, group, requeue and discard failed jobs."""

from collections.abc import Collection
from functools import partial
from typing import Any, Unpack

from palermo.client.actor import OTHER_ARGUMENTS
from palermo.client.failed_queues import browse_failed, sweep_failed
from palermo.client.failed_queues import trim_failed as trim
from palermo.contract import clock
from palermo.contract.row_types import JobRow
from palermo.contract.rows import Listing, Row
from palermo.contract.trouble import unless_blocked
from palermo.core.lifecycle import JobState
from palermo.core.lifecycle import requeue as requeue_message
from palermo.core.message import Message
from palermo.core.times import Duration, in_seconds
from palermo.core.topology import check_job_queue
from palermo.errors import OptionInvalid
from palermo.inspector.changes import Changes, Rewriter, check_options
from palermo.inspector.context import Context
from palermo.inspector.judges import (
    FindJudge,
    GroupJudge,
    Judge,
    PageJudge,
    Progress,
    Selection,
    TakeJudge,
    TakenJob,
    Watching,
    Which,
    not_found_error,
    reading,
)
from palermo.views.filter import EVERYTHING, JobFilter


class Requeuing(Changes, Watching, total=False):
    """The options of `inspector.failed.requeue`."""


class FailedJobs(Context):
    """The failed jobs."""

    def show(self, id: str) -> JobRow:
        """Return the row of one failed job. Raises NotFound."""
        finding = FindJudge(id)
        self._read_failed(finding, ids=(id,))
        if finding.message is None:
            raise not_found_error([id])
        return self._rows((finding.message,), JobState.FAILED)[0]

    def count(self, which: Which = EVERYTHING) -> int:
        """Count the chosen failed jobs. Two copies of one id count as one.

        Reads the queue itself, so that the number matches what a requeue or discard will do.
        """
        selection = Selection.of(which, self._shown)

        def see(message: Message) -> None:
            if selection.includes(message):
                selection.seen.add(message.id)

        self._sweep(reading(see), ids=selection.ids)
        return len(selection.seen)

    def groups(self, filter: JobFilter = EVERYTHING, *, progress: Progress | None = None) -> list[Row]:
        """Group the failed jobs by kind, largest group first.

        A row has fingerprint, count, job, error, message, first_seen, last_seen and the id of the newest job.
        """
        grouping = GroupJudge(filter, self._shown)
        self._read_failed(grouping, progress)
        return grouping.rows()

    def requeue(self, which: Which, **options: Unpack[Requeuing]) -> list[TakenJob]:
        """Run failed jobs again: one id, several ids, or all that match a filter (JobFilter() for all).

        `args`, `kwargs`, `queue` and `priority` replace the job's own values; `at` is the time to run it. With new
        arguments, a filter must name a job, or OptionInvalid is raised. Each job is published and confirmed before it
        leaves `failed`, so an interruption loses none. Jobs that fail again during the command are not requeued a
        second time.

        Some jobs can't be requeued, because their queue's name is invalid or the new arguments don't fit. They remain
        in `failed`, and the command continues. At the end it raises the first such error, or NotFound for ids that
        don't exist, or passes the errors to `on_error`. During the command, `progress` is called with its progress and
        `on_taken` with the jobs taken so far. It stops early once `stop` returns True.
        """
        check_options(options, Requeuing)
        rewriter = Rewriter.of(self._client.serializers, options)
        if rewriter.rewrites_arguments and isinstance(which, JobFilter) and not which.job:
            raise OptionInvalid(
                "new arguments would replace those of all chosen jobs. Name jobs by their ids, or choose a class with"
                " --job NAME (the filter job:NAME)."
            )

        def change(message: Message) -> Message:
            fresh = requeue_message(message, queue=rewriter.rest.queue)
            check_job_queue(fresh.queue)
            return rewriter(fresh)

        judge = TakeJudge(Selection.of(which, self._shown), change)
        details = OTHER_ARGUMENTS if rewriter.rewrites_arguments else ""
        return self._take_failed("requeue", which, judge, options, queue=rewriter.rest.queue, details=details)

    def discard(self, which: Which, **watching: Unpack[Watching]) -> list[TakenJob]:
        """Discard failed jobs: one id, several ids, or all that match a filter. Other options are as in `requeue`.

        For ids that don't exist, NotFound is raised at the end, or passed to `on_error`.
        """
        check_options(watching, Watching)
        return self._take_failed("discard", which, TakeJudge(Selection.of(which, self._shown)), watching)

    def _take_failed(
        self, action: str, which: Which, judge: TakeJudge, watching: Watching, **facts: Any
    ) -> list[TakenJob]:
        sweep = partial(self._sweep, ids=judge.selection.ids)
        return self._take(action, which, judge, sweep, watching, **facts)

    def _sweep(self, judge: Judge, progress: Progress | None = None, *, ids: Collection[str]) -> None:
        self._client.run(lambda broker: unless_blocked(broker, sweep_failed(broker, judge, progress, ids=ids)))

    def trim(self, *, max_age: Duration | None = None, max_count: int | None = None, now: float | None = None) -> int:
        """Remove failed jobs older than `max_age`, and the oldest ones above `max_count`.

        `max_age` is in seconds or a timedelta. The defaults are the settings failed_max_age and failed_max_count.
        Returns the number of removed jobs.
        """
        settings = self._client.settings
        age = settings.failed_max_age if max_age is None else in_seconds(max_age)
        count = settings.failed_max_count if max_count is None else max_count
        if age is None and count is None:
            return 0
        at = clock.now() if now is None else now
        return self._ask(lambda broker: trim(broker, max_age=age, max_count=count, now=at))

    def list(
        self,
        *,
        offset: int = 0,
        limit: int = 100,
        newest: bool = False,
        filter: JobFilter = EVERYTHING,
        count: bool = True,
    ) -> Listing[JobRow]:
        """List failed jobs, oldest first unless `newest` is set. Only the first of two copies of one id is listed.

        If the page contains two copies, `total` counts them once, while `queues` counts messages. Without a filter only
        the page is read. With a filter all failed jobs are read. With `count=False` and without `newest`, reading stops
        at the end of the page, and `total` is None.
        """
        if not filter.everything:
            finding = PageJudge(filter, offset=offset, limit=limit, newest=newest, count=count, shown=self._shown)
            swept = self._read_failed(finding)
            return Listing(self._rows(finding.messages, JobState.FAILED), finding.total, swept.unseen)
        page = self._ask(lambda broker: browse_failed(broker, offset=offset, limit=limit, newest=newest), again=True)
        unique: dict[str, Message] = {}
        for message in page.messages:
            unique.setdefault(message.id, message)
        copies = len(page.messages) - len(unique)
        return Listing(self._rows(tuple(unique.values()), JobState.FAILED), page.total - copies, page.unseen)
