"""The inspector's noun for scheduled jobs: list, cancel, run now and reschedule them, and give up retries.

A job that has failed and waits for its next try is a scheduled job with an error; ScheduledFilter tells them apart.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from palermo.client.dequeue import SameArguments
from palermo.contract import clock
from palermo.contract.finding import CANCELLED, SCHEDULED
from palermo.contract.row_types import ScheduledRow
from palermo.contract.rows import Listing, Row, iso_instant
from palermo.contract.scheduled import CANCEL, GIVE_UP, MOVE, RUN, AlteredJob, ScheduledFilter
from palermo.core.lifecycle import JobState
from palermo.core.message import Message
from palermo.core.text import count
from palermo.core.times import Duration, Instant, delay_seconds, parse_instant, unix_seconds
from palermo.core.topology import check_id
from palermo.errors import OptionInvalid
from palermo.inspector.context import Context
from palermo.jobs import registry

#: The scheduled jobs that are meant: one id, several, or those that a filter matches.
Which = str | Iterable[str] | ScheduledFilter

#: All scheduled jobs.
EVERYTHING = ScheduledFilter()

#: The limit of a page that has all scheduled jobs.
_ALL = 2**31

#: The most different times, to the second, from which one call moves jobs by a delay.
MAX_TIMES = 1_000

#: The state of an id that isn't scheduled: its job has become due, or never existed.
GONE = "not_found"

#: By action: its name in the journal, and the state that is answered about a job.
_CALLED = {CANCEL: "cancel scheduled", RUN: "run now", MOVE: "reschedule", GIVE_UP: "give up"}
DONE = {CANCEL: "cancelled", RUN: "enqueued", MOVE: "moved", GIVE_UP: "failed"}


def counted(number: int, retries: int) -> str:
    """A number of scheduled jobs, for a question: `12 scheduled jobs (2 of them retries of failed jobs)`."""
    if not retries:
        return count(number, "scheduled job")
    of_failed = "a retry of a failed job" if retries == 1 else "retries of failed jobs"
    some = "" if number == 1 else "all of them " if retries == number else f"{retries:,} of them "
    return f"{count(number, 'scheduled job')} ({some}{of_failed})"


def _missing(ids: Iterable[str]) -> list[Row]:
    """The rows of ids that aren't scheduled."""
    none = {"job": None, "queue": None, "run_at": None}
    return [{"id": id, "state": GONE, **none} for id in ids]


def _asked(chosen: ScheduledFilter) -> str:
    """The conditions of a filter, for the audit log; "" if it names ids, which the log has."""
    if chosen.ids is not None:
        return ""
    named = [f"{name}={value!r}" for name in ("queue", "job") if (value := getattr(chosen, name)) is not None]
    if chosen.due is not None:
        named += [f"due {iso_instant(chosen.due[0]) or 'ever'} to {iso_instant(chosen.due[1]) or 'ever'}"]
    return " ".join(named) or "everything"


def _chosen(which: Which) -> tuple[ScheduledFilter, list[str]]:
    if isinstance(which, ScheduledFilter):
        return which, sorted(which.ids or ())
    ids = [which] if isinstance(which, str) else list(dict.fromkeys(which))
    for id in ids:
        check_id(id)
    return ScheduledFilter(ids=frozenset(ids)), ids


def _row(altered: AlteredJob, action: str, at: float | None) -> Row:
    return {
        "id": altered.id,
        "state": DONE[action],
        "job": altered.job,
        "queue": altered.queue,
        "run_at": iso_instant(at if action == MOVE else altered.run_at),
    }


class ScheduledJobs(Context):
    """The scheduled jobs: list, cancel, run now and reschedule them, and give up retries."""

    def progress(self) -> tuple[int, int] | None:
        """How many jobs were read for the look at scheduled jobs under way, and how many are to be; None if unknown."""
        return self._ask(lambda broker: broker.scheduled_progress(), again=True)

    def cancel(self, which: Which) -> list[Row]:
        """Cancel scheduled jobs: these ids, or all that a filter matches.

        A row has `id`, `state`, `job`, `queue` and `run_at`. The state is "cancelled", or "not_found" if no such job is
        scheduled. A job that has just become due is "not_found" too; `inspector.jobs.cancel` may still stop it. A job
        either becomes due or is cancelled, never both.
        """
        return self._alter(which, CANCEL)

    def ids_with(
        self,
        filter: ScheduledFilter,
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
    ) -> list[str]:
        """The ids of the scheduled jobs that a filter matches and that have exactly these arguments.

        To cancel them, give the ids to `cancel`: a job that comes due in between is left alone. Without
        `args` and `kwargs` all that the filter matches. Raises EncodeError for arguments that no message can hold.
        """
        same = SameArguments(filter.job or "", args, kwargs, serializers=self._client.serializers)
        every = args is None and kwargs is None

        def fits(message: Message) -> bool:
            definition = registry.find(message.job)
            return every or same(message, one=definition is not None and definition.one)

        # One page: between two pages jobs come due, and the next page would leave out as many.
        found = self._ask(lambda broker: broker.scheduled(filter, limit=_ALL), again=True)
        return [message.id for message in found.messages if message.id not in found.cancelled and fits(message)]

    def run_now(self, which: Which) -> list[Row]:
        """Put scheduled jobs into their queues at once; rows as of cancel, with the state "enqueued"."""
        return self._alter(which, RUN)

    def reschedule(self, which: Which, at: Instant | None = None, *, later: Duration | None = None) -> list[Row]:
        """Let scheduled jobs run at another instant; rows as of cancel, with the state "moved".

        `at` is a datetime with a time zone, or Unix seconds; an instant that has passed means now. With `later`,
        seconds or a timedelta, each job is moved so much later than it is due, to the second. Raises OptionInvalid,
        also for a `later` of jobs that are due in more than 1,000 different seconds.
        """
        if (at is None) == (later is None):
            raise OptionInvalid("say to when the jobs are moved: give at or later, and not both.")
        if later is None:
            return self._alter(which, MOVE, unix_seconds(at))
        return self._move_later(_chosen(which)[0], delay_seconds(later))

    def _move_later(self, chosen: ScheduledFilter, seconds: float) -> list[Row]:
        """Move each of the chosen jobs so many seconds later.

        The jobs are listed first, and each is moved only from the time that was listed: none is moved twice, also where
        the broker does a command twice because an answer was lost.
        """
        due: dict[int, list[str]] = {}
        for row in self.list(chosen, limit=_ALL).rows:
            if row["run_at"] is not None:
                due.setdefault(int(parse_instant(row["run_at"])), []).append(row["id"])
        if len(due) > MAX_TIMES:
            raise OptionInvalid(
                f"these jobs are due at {len(due):,} different times, and a delay moves at most {MAX_TIMES:,}:"
                " filter by the time at which they are due, or move them all to one time."
            )
        rows = []
        for second, ids in sorted(due.items(), reverse=True):
            there = replace(chosen, ids=frozenset(ids), due=(float(second), second + 0.9999))
            rows += self._alter(there, MOVE, unix_seconds(second + seconds))
        return rows + _missing(sorted((chosen.ids or frozenset()) - {row["id"] for row in rows}))

    def retry_now(self, which: Which) -> list[Row]:
        """`run_now` for jobs that wait to be tried again, and for no others."""
        return self._alter(which, RUN, retries=True)

    def give_up(self, which: Which) -> list[Row]:
        """Put jobs that wait to be tried again among the failed, with all their attempts, as if no retry had been left.

        Rows as of cancel, with the state "failed". Hooks and failure backends are not called: no
        worker is there to call them.
        """
        return self._alter(which, GIVE_UP, retries=True)

    def _alter(self, which: Which, action: str, at: float | None = None, *, retries: bool | None = None) -> list[Row]:
        chosen, ids = _chosen(which)
        if not ids and not isinstance(which, ScheduledFilter):
            return []
        if retries is not None:
            chosen = replace(chosen, retries=retries)
        if at is not None and at <= clock.now():
            action = RUN
        apart = self._client.settings.failed_per_queue
        began = clock.now()
        altered = self._ask(lambda broker: broker.alter_scheduled(chosen, action, at=at, failed_per_queue=apart))
        rows = {one.id: _row(one, action, at) for one in altered}
        to = iso_instant(at) if action == MOVE else None
        what = ", ".join(filter(None, (to, _asked(chosen))))
        self._record(_CALLED[action], ids=list(rows), what=what or None, at=began)
        return [*rows.values(), *_missing([id for id in ids if id not in rows])]

    def list(self, filter: ScheduledFilter = EVERYTHING, *, offset: int = 0, limit: int = 100) -> Listing[ScheduledRow]:
        """Jobs that are due later, soonest first.

        A row is that of a job, with `run_at`. Its state is "scheduled"; "retrying" for a job that has failed and waits
        to be tried again; "cancelled" for a job that will not run. The `error` of a retry says why, and its `attempts`
        what went wrong each time. A job that has come due waits in its queue.
        """
        found = self._ask(lambda broker: broker.scheduled(filter, offset=offset, limit=limit), again=True)
        rows = self._rows(found.messages, JobState.PENDING)
        for row, message in zip(rows, found.messages, strict=True):
            if message.id in found.cancelled:
                row["state"] = CANCELLED
            elif row["state"] == JobState.PENDING:
                row["state"] = SCHEDULED
        return Listing(rows, found.total)
