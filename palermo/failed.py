"""Failed jobs for the inspector: seen, counted and grouped, run again, thrown away.

These are methods of palermo.inspector.Inspector, which names them.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from palermo.broker import Swept
from palermo.core.lifecycle import JobState
from palermo.core.message import Message
from palermo.core.topology import check_job_queue
from palermo.errors import PalermoError
from palermo.failures import browse_failed
from palermo.failures import trim_failed as trim
from palermo.filters import FailedFilter
from palermo.rows import Listing, Row
from palermo.verdicts import (
    Counting,
    Discarding,
    Finding,
    FindingOne,
    Grouping,
    Requeueing,
    Selection,
    Taken,
    Which,
    interrupted_by,
    no_failed_jobs,
    report,
    telling,
)

if TYPE_CHECKING:
    from palermo.inspector import Inspector

Progress = Callable[[Swept], None]
#: Gets what would else be raised at the end of a command that did all it could.
OnError = Callable[[PalermoError], None]
#: Gets the jobs that are gone for certain, while a long command runs.
OnTaken = Callable[[Sequence[Taken]], None]
#: Asked before each job; once it is true a long command ends, and the jobs it has not come to stay.
Stopping = Callable[[], bool]
#: Every failed job.
ALL = FailedFilter()


def failed(
    inspector: "Inspector",
    *,
    offset: int = 0,
    limit: int = 100,
    newest: bool = False,
    filter: FailedFilter = ALL,
    count: bool = True,
) -> Listing:
    """Failed jobs, the one that failed first on top; of two copies of one id only the first.

    Without a filter only the page is read. With one all are, unless `count` is False and
    the oldest are asked for: then the search ends where the page does, and `total` is None.
    """
    if not filter.everything:
        finding = Finding(filter, offset=offset, limit=limit, newest=newest, count=count)
        swept = inspector._look(finding)
        return Listing(inspector._rows(finding.messages, JobState.FAILED), finding.total, swept.unseen)
    page = inspector._ask(lambda broker: browse_failed(broker, offset=offset, limit=limit, newest=newest), again=True)
    unique: dict[str, Message] = {}
    for message in page.messages:
        unique.setdefault(message.id, message)
    return Listing(inspector._rows(tuple(unique.values()), JobState.FAILED), page.total, page.unseen)


def failed_job(inspector: "Inspector", id: str) -> Row:
    """One failed job. Raises NotFound."""
    finding = FindingOne(id)
    inspector._look(finding, id=id)
    if finding.message is None:
        raise no_failed_jobs([id])
    return inspector._rows((finding.message,), JobState.FAILED)[0]


def count_failed(inspector: "Inspector", which: Which = ALL) -> int:
    """How many failed jobs are meant; two copies of one id are one job.

    It reads what a requeue or discard would, so in quorum queues too: what they will do must be known, not shown.
    """
    counting = Counting(Selection(which))
    inspector._sweep(counting)
    return counting.count


def groups(inspector: "Inspector", filter: FailedFilter = ALL, *, progress: Progress | None = None) -> list[Row]:
    """Failed jobs of one kind together, the largest group first.

    A row is fingerprint, count, job, error, message, first_seen, last_seen and the id of the newest.
    """
    grouping = Grouping(filter)
    inspector._look(grouping, progress)
    return grouping.rows()


def requeue(
    inspector: "Inspector",
    which: Which,
    *,
    args: Sequence[object] | None = None,
    kwargs: Mapping[str, object] | None = None,
    queue: str | None = None,
    progress: Progress | None = None,
    on_error: OnError | None = None,
    on_taken: OnTaken | None = None,
    stop: Stopping | None = None,
) -> list[Taken]:
    """Run failed jobs again: one id, several ids, or all that a filter matches (FailedFilter() for all).

    Each is published and confirmed before it leaves `failed`, so an interruption loses
    none; those that fail again meanwhile are not looked at. `args` and `kwargs` replace
    their half of the arguments, `queue` the queue it came from.

    Ids that are not there, and jobs that cannot be requeued and so stay in `failed` (their
    queue's name is no name, the new arguments do not fit), stop none of the others; in the
    end NotFound, or the first reason, is raised, or given to `on_error` where that is given.
    `on_taken` hears on the way what has gone, and `stop` can end it early.
    """
    if queue is not None:
        check_job_queue(queue)
    selection = Selection(which)
    judge = Requeueing(selection, queue=queue, rewrite=inspector._rewriting(args, kwargs))
    inspector._sweep(interrupted_by(stop, judge), telling(judge.taken, progress, on_taken))
    report(on_error, judge.refusal, selection.missing_error)
    return judge.taken


def discard(
    inspector: "Inspector",
    which: Which,
    *,
    progress: Progress | None = None,
    on_error: OnError | None = None,
    on_taken: OnTaken | None = None,
    stop: Stopping | None = None,
) -> list[Taken]:
    """Throw failed jobs away: one id, several ids, or all that a filter matches.

    For ids that are not there NotFound is raised after the others, or given to `on_error`.
    """
    judge = Discarding(Selection(which))
    inspector._sweep(interrupted_by(stop, judge), telling(judge.taken, progress, on_taken))
    report(on_error, judge.selection.missing_error)
    return judge.taken


def trim_failed(
    inspector: "Inspector", *, max_age: float | None = None, max_count: int | None = None, now: float | None = None
) -> int:
    """Take out of `failed` what is older than `max_age` seconds and what exceeds `max_count`, oldest first.

    Both default to the settings failed_max_age and failed_max_count. Returns how many were taken.
    """
    settings = inspector._client.settings
    age = settings.failed_max_age if max_age is None else max_age
    count = settings.failed_max_count if max_count is None else max_count
    if age is None and count is None:
        return 0
    at = time.time() if now is None else now
    return inspector._ask(lambda broker: trim(broker, max_age=age, max_count=count, now=at))
