"""`inspector.scheduled`: list, cancel, run and reschedule scheduled jobs, and give up on retries.

A failed job waiting for a retry is a scheduled job with an error, in the state "retrying". Brokers evaluate a filter's
queue, job, time, and these two states; other conditions are evaluated here on the remaining jobs.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from palermo.client.dequeue import SameArguments
from palermo.contract import clock
from palermo.contract.finding import CANCELLED, SCHEDULED
from palermo.contract.row_types import Altered, AlteredRow, JobRow
from palermo.contract.rows import Listing, iso_instant
from palermo.contract.scheduled import CANCEL, GIVE_UP, MOVE, RUN, AlteredJob, ScheduledFilter, ScheduledPage
from palermo.core.lifecycle import JobState
from palermo.core.message import MAX_SECONDS, Message
from palermo.core.text import count
from palermo.core.times import Duration, Instant, delay_seconds, unix_seconds
from palermo.core.topology import check_id
from palermo.errors import OptionInvalid
from palermo.inspector.context import SEARCHED, Context
from palermo.jobs import registry
from palermo.views.filter import EVERYTHING, JobFilter

#: A selection of scheduled jobs: one id, several ids, or a filter.
Which = str | Iterable[str] | JobFilter

#: The limit for a page with all scheduled jobs.
ALL = 2**31

#: Maximum number of different due times, in seconds, of the jobs that one call postpones.
MAX_TIMES = 1_000

#: The state of an id that isn't scheduled, because its job has become due or never existed.
GONE: Altered = "not_found"

#: Each action's name in the journal, and the resulting state.
_CALLED = {CANCEL: "cancel scheduled", RUN: "run now", MOVE: "reschedule", GIVE_UP: "give up"}
DONE: dict[str, Altered] = {CANCEL: "cancelled", RUN: "enqueued", MOVE: "moved", GIVE_UP: "failed"}


def counted(number: int, retries: int) -> str:
    """Describe a number of jobs for a question: `12 scheduled jobs (2 of them retries of failed jobs)`."""
    if not retries:
        return count(number, "scheduled job")
    of_failed = "a retry of a failed job" if retries == 1 else "retries of failed jobs"
    some = "" if number == 1 else "all of them " if retries == number else f"{retries:,} of them "
    return f"{count(number, 'scheduled job')} ({some}{of_failed})"


def _missing(ids: Iterable[str]) -> list[AlteredRow]:
    return [{"id": id, "state": GONE, "job": None, "queue": None, "run_at": None} for id in ids]


#: The states that a broker distinguishes: whether the job waits for a retry.
_RETRIES = {None: None, "retrying": True, "scheduled": False}


def _divided(filter: JobFilter, ids: frozenset[str] | None) -> tuple[ScheduledFilter, JobFilter]:
    """Divide a filter into the conditions that a broker evaluates and the others."""
    due = None
    if filter.due_from is not None or filter.due_until is not None:
        due = filter.due_from or 0.0, MAX_SECONDS if filter.due_until is None else filter.due_until
    chosen = ScheduledFilter(ids=ids, queue=filter.queue, job=filter.job, retries=_RETRIES.get(filter.state), due=due)
    state = None if filter.state in _RETRIES else filter.state
    return chosen, replace(filter, state=state, queue=None, job=None, due_from=None, due_until=None)


def _row(altered: AlteredJob, action: str, at: float | None) -> AlteredRow:
    return {
        "id": altered.id,
        "state": DONE[action],
        "job": altered.job,
        "queue": altered.queue,
        "run_at": iso_instant(at if action == MOVE else altered.run_at),
    }


class ScheduledJobs(Context):
    """The scheduled jobs."""

    def progress(self) -> tuple[int, int] | None:
        """Return how many scheduled jobs a running listing has read, and the total; None if unknown."""
        return self._ask(lambda broker: broker.scheduled_progress(), again=True)

    def cancel(self, which: Which, *, within: JobFilter = EVERYTHING) -> list[AlteredRow]:
        """Cancel scheduled jobs, by ids or a filter. With `within`, cancel only those of the ids that match this
        filter.

        On RabbitMQ, the times in `within` limit the amount of data read. A row has `id`, `state`, `job`, `queue` and
        `run_at`. The state is "cancelled", or "not_found" if no such job is scheduled. A job that has just become due
        is "not_found" too, but `inspector.jobs.cancel` may still stop it. A job either becomes due or is cancelled,
        never both.
        """
        return self._alter(which, within, CANCEL)

    def ids_with(
        self,
        filter: JobFilter,
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
    ) -> list[str]:
        """Return the ids of the scheduled jobs that match a filter and have exactly these arguments.

        Pass the ids to `cancel`; a job that becomes due in between isn't cancelled. Without `args` and `kwargs`, all
        jobs that match the filter are returned. Raises EncodeError for arguments that can't be serialized.
        """
        same = SameArguments(filter.job or "", args, kwargs, serializers=self._client.serializers)
        every = args is None and kwargs is None

        def fits(message: Message) -> bool:
            definition = registry.find(message.job)
            return every or same(message, one=definition is not None and definition.one)

        found, _ = self._found(filter)
        return [message.id for message, row in found if row["state"] != CANCELLED and fits(message)]

    def run_now(self, which: Which, *, within: JobFilter = EVERYTHING) -> list[AlteredRow]:
        """Enqueue scheduled jobs now. Rows are as in `cancel`, with the state "enqueued"."""
        return self._alter(which, within, RUN)

    def reschedule(
        self,
        which: Which,
        at: Instant | None = None,
        *,
        later: Duration | None = None,
        within: JobFilter = EVERYTHING,
    ) -> list[AlteredRow]:
        """Reschedule jobs. Rows are as in `cancel`, with the state "moved".

        `at` is a datetime with a time zone, or Unix seconds; a past time means now. `later`, in seconds or a timedelta,
        postpones each job, with a precision of a second. Raises OptionInvalid, also if `later` is used for jobs with
        more than 1,000 different due times.
        """
        if (at is None) == (later is None):
            raise OptionInvalid('exactly one of "at" and "later" is needed as the new time.')
        if later is None:
            return self._alter(which, within, MOVE, unix_seconds(at))
        return self._move_later(which, within, delay_seconds(later))

    def _move_later(self, which: Which, within: JobFilter, seconds: float) -> list[AlteredRow]:
        """Postpone each of the chosen jobs.

        The jobs are listed first, and each is moved only from the listed time. If the command is repeated after a lost
        answer, no job is postponed twice.
        """
        due: dict[int, list[str]] = {}
        filter, named = _chosen(which, within)
        for message, row in self._found(filter, named)[0]:
            if row["run_at"] is not None:  # outside of the calendar
                due.setdefault(int(message.run_at or 0.0), []).append(message.id)
        if len(due) > MAX_TIMES:
            raise OptionInvalid(
                f"these jobs are due at {len(due):,} different times, but a delay can only"
                f" be added to {MAX_TIMES:,} of them. Filter by due time, or move them all to one time."
            )
        rows = []
        for second, ids in sorted(due.items(), reverse=True):
            due_then = JobFilter(due_from=float(second), due_until=second + 0.9999)
            rows += self._alter(ids, due_then, MOVE, unix_seconds(second + seconds))
        return rows + _missing(sorted((named or frozenset()) - {row["id"] for row in rows}))

    def retry_now(self, which: Which, *, within: JobFilter = EVERYTHING) -> list[AlteredRow]:
        """Like `run_now`, for retries only."""
        return self._alter(which, within, RUN, retries=True)

    def give_up(self, which: Which, *, within: JobFilter = EVERYTHING) -> list[AlteredRow]:
        """Move retries to the failed jobs with all their attempts, as if no retry were left.

        Rows are as in `cancel`, with the state "failed". Hooks and failure backends aren't called, because no worker is
        involved.
        """
        return self._alter(which, within, GIVE_UP, retries=True)

    def _alter(
        self, which: Which, within: JobFilter, action: str, at: float | None = None, *, retries: bool = False
    ) -> list[AlteredRow]:
        filter, named = _chosen(which, within)
        chosen, others = _divided(filter, named)
        if not others.everything:
            # They may become due from now on, and aren't changed then.
            chosen = ScheduledFilter(ids=frozenset(message.id for message, _ in self._found(filter, named)[0]))
        if chosen.ids == frozenset() or (retries and chosen.retries is False):
            return _missing(sorted(named or ()))
        if retries:
            chosen = replace(chosen, retries=True)
        if at is not None and at <= clock.now():
            action = RUN
        apart = self._client.settings.failed_per_queue
        began = clock.now()
        altered = self._ask(lambda broker: broker.alter_scheduled(chosen, action, at=at, failed_per_queue=apart))
        rows = {one.id: _row(one, action, at) for one in altered}
        to = iso_instant(at) if action == MOVE else None
        what = ", ".join(text for text in (to, None if named is not None else str(filter)) if text)
        self._record(_CALLED[action], ids=list(rows), what=what or None, at=began)
        return [*rows.values(), *_missing(sorted((named or frozenset()) - rows.keys()))]

    def _found(
        self, filter: JobFilter, ids: frozenset[str] | None = None, *, depth: int = ALL
    ) -> tuple[list[tuple[Message, JobRow]], int]:
        """Return the matching jobs, and the number of jobs beyond the first `depth`, which weren't compared."""
        chosen, others = _divided(filter, ids)
        # In a single page, because jobs that become due between pages would shift the next one.
        page = self._page(chosen, offset=0, limit=depth)
        found = list(zip(page.messages, self._listed(page), strict=True))
        if not others.everything:
            found = [one for one in found if self._fits(one[1], others)]
        return found, max(0, page.total - depth)

    def _page(self, chosen: ScheduledFilter, *, offset: int, limit: int) -> ScheduledPage:
        return self._ask(lambda broker: broker.scheduled(chosen, offset=offset, limit=limit), again=True)

    def _listed(self, page: ScheduledPage) -> list[JobRow]:
        rows = self._rows(page.messages, JobState.PENDING, page.cancelled)
        for row in rows:
            if row["state"] == JobState.PENDING:
                row["state"] = SCHEDULED
        return rows

    def list(
        self,
        filter: JobFilter = EVERYTHING,
        *,
        ids: Iterable[str] | None = None,
        offset: int = 0,
        limit: int = 100,
        depth: int = SEARCHED,
    ) -> Listing[JobRow]:
        """List scheduled jobs, soonest first; with `ids` only these.

        A row is a job's row with `run_at`. The state is "scheduled"; "retrying" for a retry; or "cancelled" for a job
        that will not run. A retry has its last `error`, and all errors in `attempts`. Due jobs aren't listed, because
        they are in their queue.

        Conditions on the queue, the job, the due time, and the states "scheduled" and "retrying" are compared with all
        jobs. Others are compared with the soonest `depth` of the remaining jobs: `total` is then the number of matches,
        and `unseen` the number of jobs that weren't compared.
        """
        named = None if ids is None else frozenset(ids)
        chosen, others = _divided(filter, named)
        if others.everything:
            page = self._page(chosen, offset=offset, limit=limit)
            return Listing(self._listed(page), page.total)
        found, unseen = self._found(filter, named, depth=depth)
        return Listing([row for _, row in found[offset : offset + limit]], len(found), unseen)


def _chosen(which: Which, within: JobFilter) -> tuple[JobFilter, frozenset[str] | None]:
    """Return a filter for the chosen jobs, and their ids if given."""
    if isinstance(which, JobFilter):
        return which, None
    return within, frozenset(check_id(id) for id in ([which] if isinstance(which, str) else which))
