"""What a sweep through a queue decides about each message: the judges behind the inspector's commands.

A judge is called once per message, oldest first, and answers with a Verdict; what it has
seen stays on it. None of them talks to a broker. Memory is bounded by what they must
remember: the ids they took, so that two copies of one id (a crash between publish and ack
leaves them) count as one job and go together.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from palermo.broker import Keep, Move, Remove, Stop, Swept, Verdict
from palermo.core.failure import fingerprint
from palermo.core.keys import UNIQUE_KEY
from palermo.core.lifecycle import requeue
from palermo.core.message import Message
from palermo.core.topology import check_id, check_job_queue
from palermo.core.values import dataclass
from palermo.errors import DuplicateJob, NotFound, PalermoError
from palermo.filters import FailedFilter
from palermo.rows import Row, instant, plain

#: The jobs that are meant: one id, several, or those that a filter matches.
Which = str | Iterable[str] | FailedFilter


class Taken(NamedTuple):
    """One job that a requeue, discard or dequeue took out of its queue."""

    id: str
    job: str
    #: For a requeue the queue it went to, else the one it had.
    queue: str


class Selection:
    """Which failed jobs are meant, and which of those were there."""

    def __init__(self, which: Which) -> None:
        self.filter = which if isinstance(which, FailedFilter) else None
        ids = [] if isinstance(which, FailedFilter) else [which] if isinstance(which, str) else which
        self.ids = dict.fromkeys(check_id(id) for id in ids)
        self.seen: set[str] = set()

    def means(self, message: Message) -> bool:
        """Whether this message is meant; a second copy of one that was is, too."""
        if message.id in self.seen:
            return True
        if self.filter is not None:
            return self.filter.matches(message)
        return message.id in self.ids

    def again(self, message: Message) -> bool:
        """Whether a copy of this id has gone before; remembers it for the next."""
        known = message.id in self.seen
        self.seen.add(message.id)
        return known

    @property
    def missing(self) -> list[str]:
        """The ids asked for that were not there."""
        return [id for id in self.ids if id not in self.seen]

    @property
    def missing_error(self) -> NotFound | None:
        """NotFound for these ids; None if all were there."""
        return no_failed_jobs(self.missing) if self.missing else None


class Discarding:
    """Takes what is meant out of `failed`."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self.taken: list[Taken] = []

    def __call__(self, message: Message) -> Verdict:
        if not self.selection.means(message):
            return Keep()
        if not self.selection.again(message):
            self.taken.append(Taken(message.id, message.job, message.queue))
        return Remove()


class Requeueing:
    """Sends what is meant back to its queue, or to another, after `rewrite` has been over it."""

    def __init__(
        self, selection: Selection, *, queue: str | None, rewrite: Callable[[Message], Message] | None = None
    ) -> None:
        self.selection = selection
        self.taken: list[Taken] = []
        self._refusal: PalermoError | None = None
        self._refused = 0
        self._queue = queue
        self._rewrite = rewrite

    def __call__(self, message: Message) -> Verdict:
        if not self.selection.means(message):
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
        if self.selection.again(message):
            return Remove()
        taken = Taken(fresh.id, fresh.job, fresh.queue)
        self.taken.append(taken)
        return Move(fresh, lambda: self._kept_back(taken, fresh))

    def _kept_back(self, taken: Taken, message: Message) -> None:
        """Another job has its key."""
        if taken in self.taken:
            self.taken.remove(taken)
        self._refused += 1
        key = message.extra.get(UNIQUE_KEY)
        self._refusal = self._refusal or DuplicateJob(f"job {message.id} needs the key {key!r}, which another job has.")

    @property
    def refusal(self) -> PalermoError | None:
        """Why jobs that are meant stay in `failed`: the first one's reason, and how many stay."""
        if self._refusal is None:
            return None
        stay = "The job stays" if self._refused == 1 else f"{self._refused:,} such jobs stay"
        refusal = type(self._refusal)(f"{self._refusal} {stay} in `failed`.")
        refusal.jobs = self._refused
        return refusal


class Counting:
    """Counts the jobs that are meant, and takes none."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self.count = 0

    def __call__(self, message: Message) -> Verdict:
        if self.selection.means(message) and not self.selection.again(message):
            self.count += 1
        return Keep()


class Finding:
    """Keeps a page of what a filter matches; unless it has to count them all, it stops behind the page."""

    def __init__(self, filter: FailedFilter, *, offset: int, limit: int, newest: bool, count: bool = True) -> None:
        #: How many match; None if it stopped and there are more.
        self.total: int | None = 0
        self._filter = filter
        self._seen: set[str] = set()
        self._first, self._end, self._newest = offset, offset + limit, newest
        self._stops = not (count or newest)
        self._found: deque[Message] = deque(maxlen=self._end if newest else None)

    def __call__(self, message: Message) -> Verdict:
        if self.total is None:
            return Stop()
        if not self._filter.matches(message) or message.id in self._seen:
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


class FindingOne:
    """Stops at the first message with this id."""

    def __init__(self, id: str) -> None:
        self.message: Message | None = None
        self._id = id

    def __call__(self, message: Message) -> Verdict:
        if self.message is not None:
            return Stop()
        if message.id == self._id:
            self.message = message
        return Keep()


@dataclass(slots=True)
class _Group:
    count: int
    first: int | None
    last: int | None
    sample: Message


class Grouping:
    """Gathers failures of one kind: same job, same exception class, same place in the code."""

    def __init__(self, filter: FailedFilter) -> None:
        self._filter = filter
        self._seen: set[str] = set()
        self._groups: dict[str, _Group] = {}

    def __call__(self, message: Message) -> Verdict:
        failure = message.failure
        if failure is None or message.id in self._seen or not self._filter.matches(message):
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
                "job": plain(group.sample.job) or None,
                "error": plain(group.sample.failure.exception_class),
                "message": plain(group.sample.failure.message),
                "first_seen": instant(group.first),
                "last_seen": instant(group.last),
                "id": plain(group.sample.id),
            }
            for key, group in ordered
            if group.sample.failure is not None
        ]


class Seeing:
    """Shows every message to someone and takes none."""

    def __init__(self, see: Callable[[Message], object]) -> None:
        self._see = see

    def __call__(self, message: Message) -> Verdict:
        self._see(message)
        return Keep()


def interrupted_by(
    stop: Callable[[], bool] | None, judge: Callable[[Message], Verdict]
) -> Callable[[Message], Verdict]:
    """The same judge, but the sweep ends before the first message at which `stop` says so."""
    if stop is None:
        return judge
    return lambda message: Stop() if stop() else judge(message)


def telling(
    taken: Sequence[Taken],
    progress: Callable[[Swept], None] | None,
    on_taken: Callable[[Sequence[Taken]], None] | None,
) -> Callable[[Swept], None] | None:
    """A progress that also tells, step by step, which jobs are gone for certain.

    A judge has taken a job once it said so; it is gone once the sweep's next step is reported.
    """
    if on_taken is None:
        return progress
    told = 0

    def tell(swept: Swept) -> None:
        nonlocal told
        if len(taken) > told:
            on_taken(taken[told:])
            told = len(taken)
        if progress is not None:
            progress(swept)

    return tell


def report(on_error: Callable[[PalermoError], None] | None, *errors: PalermoError | None) -> None:
    """Give these to `on_error`, or raise the first where there is none."""
    for error in errors:
        if error is None:
            continue
        if on_error is None:
            raise error
        on_error(error)


def no_failed_jobs(ids: Sequence[str]) -> NotFound:
    """The error for ids that are not in `failed`."""
    shown = ", ".join(ids[:5]) + (f" and {len(ids) - 5:,} more" if len(ids) > 5 else "")
    error = NotFound(f"no failed job {shown}. `palermo failed list` shows those there are.")
    error.jobs = len(ids)
    return error
