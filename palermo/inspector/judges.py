"""Judges, which decide what a sweep through a queue does with each message.

A sweep calls its judge for each message, oldest first, and the judge returns a SweepDecision. Judges don't use the
broker. They remember the ids that they took, because two copies of one id (after a crash between publish and ack) count
as one job.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypedDict

from msgspec import Struct

from palermo.contract.rows import Row, as_json, iso_instant
from palermo.contract.sweep import Keep, Move, Remove, Stop, SweepDecision, SweepProgress
from palermo.core.failure import fingerprint
from palermo.core.message import Message
from palermo.core.text import some_of
from palermo.core.topology import check_id
from palermo.core.unique_keys import UNIQUE_KEY
from palermo.core.workflow import step_of
from palermo.errors import DuplicateJob, NotFound, PalermoError, UsageError
from palermo.views.facts import PreviewOf, facts_of_failed, wire_preview
from palermo.views.filter import JobFilter

#: The text of NotFound for ids that aren't in `failed`.
NO_FAILED_JOB = "no failed job {}. `palermo failed list` lists the failed jobs."

#: A selection of failed jobs: one id, several ids, or a filter.
Which = str | Iterable[str] | JobFilter

#: Decides about each message of a sweep.
Judge = Callable[[Message], SweepDecision]

#: Called with the progress of a long command.
Progress = Callable[[SweepProgress], None]


class TakenJob(NamedTuple):
    """A job that a command took out of its queue."""

    id: str
    job: str
    #: The queue to which it was moved, or else its old queue.
    queue: str


class Watching(TypedDict, total=False):
    """Callbacks to follow or stop a command on many jobs."""

    progress: Progress | None
    #: Called with each error that would otherwise be raised at the end.
    on_error: Callable[[PalermoError], None] | None
    #: Called during the command with the jobs that have certainly been taken.
    on_taken: Callable[[Sequence[TakenJob]], None] | None
    #: Called before each job. Once it returns True, the command stops.
    stop: Callable[[], bool] | None


class Selection:
    """The chosen jobs, and which of them have been read."""

    def __init__(self, ids: str | Iterable[str], matches: Callable[[Message], bool] = lambda _: False) -> None:
        """Choose one or more ids, and the messages that `matches` accepts."""
        self.ids = dict.fromkeys(check_id(id) for id in ([ids] if isinstance(ids, str) else ids))
        self.seen: set[str] = set()
        self._matches = matches

    @classmethod
    def of(cls, which: Which, shown: PreviewOf = wire_preview) -> "Selection":
        """Choose failed jobs. `shown` returns the text of a message's arguments for text filters."""
        if isinstance(which, JobFilter):
            return cls((), lambda message: which.matches(facts_of_failed(message, shown)))
        return cls(which)

    def includes(self, message: Message) -> bool:
        """Whether this message, or another with the same id, was chosen."""
        return message.id in self.seen or message.id in self.ids or self._matches(message)


class TakeJudge:
    """Takes the chosen jobs out of their queue, to remove them or move them as changed by `change`.

    A job counts as taken once the sweep has carried out the decision, since a worker or another operator may have taken
    the job before.
    """

    def __init__(
        self, selection: Selection, change: Callable[[Message], Message] | None = None, *, queue: str = "`failed`"
    ) -> None:
        """`queue` names the queue in errors."""
        self.selection = selection
        self.taken: list[TakenJob] = []
        self._taken_ids: set[str] = set()
        #: By id, why a job was refused. Jobs of which another message was taken are not refused.
        self._refusals: dict[str, PalermoError] = {}
        #: The ids of the messages to move, each with the generation if it is a workflow's step.
        self._moving: set[tuple[str, int]] = set()
        self._change = change
        self._queue = queue

    def __call__(self, message: Message) -> SweepDecision:
        if not self.selection.includes(message):
            return Keep()
        try:
            changed = message if self._change is None else self._change(message)
        except PalermoError as error:
            # An exception would end the whole sweep because of one invalid job from another program.
            self.selection.seen.add(message.id)
            self._refuse(message.id, error)
            return Keep()
        self.selection.seen.add(message.id)
        # A step of an earlier workflow with this id is another job: the broker refuses it.
        step = step_of(message.extra)
        move = (message.id, 0 if step is None else step[2])
        is_copy = move in self._moving
        self._moving.add(move)
        done = partial(self._count, TakenJob(message.id, message.job, changed.queue))
        if self._change is None:
            return Remove(done)
        return Remove() if is_copy else Move(changed, done, partial(self._put_back, changed))

    def _count(self, job: TakenJob) -> None:
        """Record that a job, or a copy of it, has been taken."""
        if job.id not in self._taken_ids:
            self._taken_ids.add(job.id)
            self.taken.append(job)
            self._refusals.pop(job.id, None)

    def _put_back(self, message: Message) -> None:
        """Record that a job is not moved because its unique key is in use, or because its workflow has moved on."""
        id, key = message.id, message.extra.get(UNIQUE_KEY)
        self._refuse(
            id,
            UsageError(
                f"job {id} is a step that is no longer failed, a step after it has not ended, its workflow is"
                " cancelled, or another job has the key of its workflow."
            )
            if step_of(message.extra) is not None
            else DuplicateJob(
                f"job {id} needs the key {key!r}, but another job has it, or a run of this job has not ended."
            ),
        )

    def _refuse(self, id: str, error: PalermoError) -> None:
        if id not in self._taken_ids:
            self._refusals.setdefault(id, error)

    def missing_error(self, text: str = NO_FAILED_JOB) -> NotFound | None:
        """Return NotFound if chosen ids weren't there, or were gone when they should be taken. Otherwise None.

        In `text`, {} stands for these ids.
        """
        missing = [id for id in self.selection.ids if id not in self._taken_ids and id not in self._refusals]
        return not_found_error(missing, text) if missing else None

    @property
    def refusal(self) -> PalermoError | None:
        """Why chosen jobs remain in their queue: the first reason, and the number of jobs."""
        if not self._refusals:
            return None
        first, number = next(iter(self._refusals.values())), len(self._refusals)
        stay = "The job remains" if number == 1 else f"{number:,} such jobs remain"
        refusal = type(first)(f"{first} {stay} in {self._queue}.")
        refusal.jobs = number
        return refusal


class PageJudge:
    """Keeps a page of the jobs that match a filter. Stops after the page unless it must count all of them."""

    def __init__(
        self,
        filter: JobFilter,
        *,
        offset: int,
        limit: int,
        newest: bool,
        count: bool = True,
        shown: PreviewOf = wire_preview,
    ) -> None:
        #: Number of matches, or None if it stopped early.
        self.total: int | None = 0
        self._filter, self._shown = filter, shown
        self._seen: set[str] = set()
        self._first, self._end, self._newest = offset, offset + limit, newest
        self._stops = not (count or newest)
        self._found: deque[Message] = deque(maxlen=self._end if newest else None)

    def __call__(self, message: Message) -> SweepDecision:
        if self.total is None:
            return Stop()
        if not self._filter.matches(facts_of_failed(message, self._shown)) or message.id in self._seen:
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
        """The page, in the requested order."""
        return list(reversed(self._found))[self._first :] if self._newest else list(self._found)


class FindJudge:
    """Stops at the first message with this id."""

    def __init__(self, id: str) -> None:
        self.message: Message | None = None
        self._id = id

    def __call__(self, message: Message) -> SweepDecision:
        if self.message is None and message.id == self._id:
            self.message = message
        return Keep() if self.message is None else Stop()


class _Group(Struct, frozen=True):
    count: int
    #: When its first and last jobs failed, if known.
    first: int | None
    last: int | None
    sample: Message


class GroupJudge:
    """Groups failures with the same job, exception class and place in the code."""

    def __init__(self, filter: JobFilter, shown: PreviewOf = wire_preview) -> None:
        self._filter, self._shown = filter, shown
        self._seen: set[str] = set()
        self._groups: dict[str, _Group] = {}

    def __call__(self, message: Message) -> SweepDecision:
        failure = message.failure
        if (
            failure is None
            or message.id in self._seen
            or not self._filter.matches(facts_of_failed(message, self._shown))
        ):
            return Keep()
        self._seen.add(message.id)
        key = fingerprint(message.job, failure)
        known = self._groups.get(key, _Group(0, None, None, message))
        times = [at for at in (known.first, known.last, failure.failed_at or None) if at is not None]
        first, last = min(times, default=None), max(times, default=None)
        self._groups[key] = _Group(known.count + 1, first, last, message)
        return Keep()

    def rows(self) -> list[Row]:
        """Return one row per group, largest first. `message` and `id` are those of the newest failure."""
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


def reading(see: Callable[[Message], object]) -> Judge:
    """Return a judge that calls a function with every message and takes none."""

    def judge(message: Message) -> SweepDecision:
        see(message)
        return Keep()

    return judge


def stoppable(stop: Callable[[], bool] | None, judge: Judge) -> Judge:
    """Return the same judge, but stop the sweep before the first message for which `stop` returns True."""
    if stop is None:
        return judge
    return lambda message: Stop() if stop() else judge(message)


def report_taken(taken: Sequence[TakenJob], watching: Watching) -> Progress:
    """Return a progress callback that also reports the jobs that have been taken since the last call."""
    reported = 0
    progress, on_taken = watching.get("progress"), watching.get("on_taken")

    def report(swept: SweepProgress) -> None:
        nonlocal reported
        if on_taken is not None and len(taken) > reported:
            on_taken(taken[reported:])
            reported = len(taken)
        if progress is not None:
            progress(swept)

    return report


def not_found_error(ids: Sequence[str], text: str = NO_FAILED_JOB) -> NotFound:
    """Return NotFound with `text`, in which {} stands for the ids that weren't found."""
    error = NotFound(text.format(some_of(ids)))
    error.jobs = len(ids)
    return error
