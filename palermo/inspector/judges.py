"""The judges of a sweep through a queue: each decides about every message, for one of the inspector's commands.

A sweep calls its judge once per message, oldest first, and the judge answers with a SweepDecision. The judge keeps what
it has seen. None of them talks to a broker. Memory is bounded by what a judge must
remember: the ids it took, so that two copies of one id (a crash between publish and ack
leaves them) count as one job and go together.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct

from palermo.contract.rows import Row, as_json, iso_instant
from palermo.contract.sweep import Keep, Move, Remove, Stop, SweepDecision, SweepProgress
from palermo.core.failure import fingerprint
from palermo.core.lifecycle import requeue
from palermo.core.message import Message
from palermo.core.topology import check_id, check_job_queue
from palermo.core.unique_keys import UNIQUE_KEY
from palermo.errors import DuplicateJob, NotFound, PalermoError
from palermo.inspector.failed_filter import FailedFilter, PreviewOf, wire_preview

#: The jobs that are meant: one id, several, or those that a filter matches.
Which = str | Iterable[str] | FailedFilter


class TakenJob(NamedTuple):
    """One job that a requeue, discard or dequeue took out of its queue."""

    id: str
    job: str
    #: For a requeue the queue it went to, else the one it had.
    queue: str


class Selection:
    """The failed jobs that are meant, and which of those were there."""

    def __init__(self, which: Which, shown: PreviewOf = wire_preview) -> None:
        """`shown` gives the text of a message's arguments that a text filter searches."""
        self._shown = shown
        self.filter = which if isinstance(which, FailedFilter) else None
        ids = [] if isinstance(which, FailedFilter) else [which] if isinstance(which, str) else which
        self.ids = dict.fromkeys(check_id(id) for id in ids)
        self.seen: set[str] = set()

    def includes(self, message: Message) -> bool:
        """Whether this message is meant; so is a second copy of a message that was."""
        if message.id in self.seen:
            return True
        if self.filter is not None:
            return self.filter.matches(message, self._shown)
        return message.id in self.ids

    def is_repeated(self, message: Message) -> bool:
        """Whether a copy of this id came before; remembers this one for the next."""
        known = message.id in self.seen
        self.seen.add(message.id)
        return known

    @property
    def missing(self) -> list[str]:
        """The given ids that were not there."""
        return [id for id in self.ids if id not in self.seen]

    @property
    def missing_error(self) -> NotFound | None:
        """NotFound for the missing ids; None if all were there."""
        return not_found_error(self.missing) if self.missing else None


class DiscardJudge:
    """Takes the jobs that are meant out of `failed`."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self.taken: list[TakenJob] = []

    def __call__(self, message: Message) -> SweepDecision:
        if not self.selection.includes(message):
            return Keep()
        if not self.selection.is_repeated(message):
            self.taken.append(TakenJob(message.id, message.job, message.queue))
        return Remove()


class RequeueJudge:
    """Sends the jobs that are meant back to their queues, or to another, after `rewrite` has changed them."""

    def __init__(
        self, selection: Selection, *, queue: str | None, rewrite: Callable[[Message], Message] | None = None
    ) -> None:
        self.selection = selection
        self.taken: list[TakenJob] = []
        self._refusal: PalermoError | None = None
        self._refused = 0
        self._queue = queue
        self._rewrite = rewrite

    def __call__(self, message: Message) -> SweepDecision:
        if not self.selection.includes(message):
            return Keep()
        try:
            fresh = requeue(message, queue=self._queue)
            check_job_queue(fresh.queue)
            if self._rewrite is not None:
                fresh = self._rewrite(fresh)
        except PalermoError as error:
            # Raising here would end the sweep half-way for one job that another program wrote badly.
            self.selection.seen.add(message.id)
            self._refused += 1
            self._refusal = self._refusal or error
            return Keep()
        if self.selection.is_repeated(message):
            return Remove()
        taken = TakenJob(fresh.id, fresh.job, fresh.queue)
        self.taken.append(taken)
        return Move(fresh, lambda: self._kept_back(taken, fresh))

    def _kept_back(self, taken: TakenJob, message: Message) -> None:
        """Keep a job in `failed`, since another job has its key, or a run of it is not over."""
        if taken in self.taken:
            self.taken.remove(taken)
        self._refused += 1
        key = message.extra.get(UNIQUE_KEY)
        self._refusal = self._refusal or DuplicateJob(
            f"job {message.id} needs the key {key!r}, which another job has, or a run of this job that is not over."
        )

    @property
    def refusal(self) -> PalermoError | None:
        """Why jobs that are meant stay in `failed`: the first one's reason, and how many stay."""
        if self._refusal is None:
            return None
        stay = "The job stays" if self._refused == 1 else f"{self._refused:,} such jobs stay"
        refusal = type(self._refusal)(f"{self._refusal} {stay} in `failed`.")
        refusal.jobs = self._refused
        return refusal


class CountJudge:
    """Counts the jobs that are meant, and takes none."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self.count = 0

    def __call__(self, message: Message) -> SweepDecision:
        if self.selection.includes(message) and not self.selection.is_repeated(message):
            self.count += 1
        return Keep()


class PageJudge:
    """Keeps a page of the jobs that a filter matches. It stops behind the page unless it must count them all."""

    def __init__(
        self,
        filter: FailedFilter,
        *,
        offset: int,
        limit: int,
        newest: bool,
        count: bool = True,
        shown: PreviewOf = wire_preview,
    ) -> None:
        #: How many match; None if it stopped and there are more.
        self.total: int | None = 0
        self._filter, self._shown = filter, shown
        self._seen: set[str] = set()
        self._first, self._end, self._newest = offset, offset + limit, newest
        self._stops = not (count or newest)
        self._found: deque[Message] = deque(maxlen=self._end if newest else None)

    def __call__(self, message: Message) -> SweepDecision:
        if self.total is None:
            return Stop()
        if not self._filter.matches(message, self._shown) or message.id in self._seen:
            return Keep()
        if self._stops and self.total == self._end:
            self.total = None
            return Stop()
        self._seen.add(message.id)
        if self._newest or self._first <= self.total < self._end:
            self._found.append(message)
        self.total += 1
        return Keep()

    @property
    def messages(self) -> list[Message]:
        """The page, in the order asked for."""
        return list(reversed(self._found))[self._first :] if self._newest else list(self._found)


class FindJudge:
    """Stops at the first message with this id."""

    def __init__(self, id: str) -> None:
        self.message: Message | None = None
        self._id = id

    def __call__(self, message: Message) -> SweepDecision:
        if self.message is not None:
            return Stop()
        if message.id == self._id:
            self.message = message
            return Stop()
        return Keep()


class _Group(Struct):
    count: int
    first: int | None
    last: int | None
    sample: Message


class GroupJudge:
    """Gathers failures of one kind: same job, same exception class, same place in the code."""

    def __init__(self, filter: FailedFilter, shown: PreviewOf = wire_preview) -> None:
        self._filter, self._shown = filter, shown
        self._seen: set[str] = set()
        self._groups: dict[str, _Group] = {}

    def __call__(self, message: Message) -> SweepDecision:
        failure = message.failure
        if failure is None or message.id in self._seen or not self._filter.matches(message, self._shown):
            return Keep()
        self._seen.add(message.id)
        key = fingerprint(message.job, failure)
        at = failure.failed_at or None
        group = self._groups.get(key)
        if group is None:
            self._groups[key] = _Group(1, at, at, message)
            return Keep()
        group.count += 1
        group.sample = message
        if at is not None:
            group.first = at if group.first is None else min(group.first, at)
            group.last = at if group.last is None else max(group.last, at)
        return Keep()

    def rows(self) -> list[Row]:
        """One row a group, the largest first; `message` and `id` are those of its newest failure."""
        ordered = sorted(self._groups.items(), key=lambda item: (-item[1].count, item[0]))
        return [
            {
                "fingerprint": key,
                "count": group.count,
                "job": as_json(group.sample.job) or None,
                "error": as_json(group.sample.failure.exception_class),
                "message": as_json(group.sample.failure.message),
                "first_seen": iso_instant(group.first),
                "last_seen": iso_instant(group.last),
                "id": as_json(group.sample.id),
            }
            for key, group in ordered
            if group.sample.failure is not None
        ]


class VisitJudge:
    """Shows every message to a function and takes none."""

    def __init__(self, see: Callable[[Message], object]) -> None:
        self._see = see

    def __call__(self, message: Message) -> SweepDecision:
        self._see(message)
        return Keep()


def stoppable(
    stop: Callable[[], bool] | None, judge: Callable[[Message], SweepDecision]
) -> Callable[[Message], SweepDecision]:
    """The same judge, but the sweep ends before the first message at which `stop` returns True."""
    if stop is None:
        return judge
    return lambda message: Stop() if stop() else judge(message)


def report_taken(
    taken: Sequence[TakenJob],
    progress: Callable[[SweepProgress], None] | None,
    on_taken: Callable[[Sequence[TakenJob]], None] | None,
) -> Callable[[SweepProgress], None] | None:
    """A progress callback that also tells, step by step, which jobs are gone for certain.

    A judge has taken a job once it said so; the job is gone once the sweep's next step is reported.
    """
    if on_taken is None:
        return progress
    told = 0

    def tell(swept: SweepProgress) -> None:
        nonlocal told
        if len(taken) > told:
            on_taken(taken[told:])
            told = len(taken)
        if progress is not None:
            progress(swept)

    return tell


def report_errors(on_error: Callable[[PalermoError], None] | None, *errors: PalermoError | None) -> None:
    """Give these errors to `on_error`, or raise the first one if there is no `on_error`."""
    for error in errors:
        if error is None:
            continue
        if on_error is None:
            raise error
        on_error(error)


def not_found_error(ids: Sequence[str]) -> NotFound:
    """The error for ids that are not in `failed`."""
    shown = ", ".join(ids[:5]) + (f" and {len(ids) - 5:,} more" if len(ids) > 5 else "")
    error = NotFound(f"no failed job {shown}. `palermo failed list` shows those there are.")
    error.jobs = len(ids)
    return error
