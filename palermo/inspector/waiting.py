"""The part of the inspector's noun `jobs` that counts, cancels, moves and discards many waiting jobs of a queue.

WaitingFilter chooses the jobs.
"""

import json
import re
from collections.abc import Callable, Iterable

from msgspec import Struct

from palermo.contract.rows import Row
from palermo.contract.sweep import Keep, Move, Remove, Stop, SweepDecision
from palermo.core.arguments import PREVIEW
from palermo.core.conditions import check_conditions
from palermo.core.failure import printable
from palermo.core.job_edit import JobEdit
from palermo.core.lifecycle import JobState
from palermo.core.message import JSON, Message
from palermo.core.text import fits
from palermo.core.topology import check_id, check_job_queue, check_new_queue
from palermo.errors import DuplicateJob, PalermoError, UsageError
from palermo.inspector.context import Context, Progress
from palermo.inspector.control import cancel
from palermo.inspector.failed import OnError, OnTaken, Stopping
from palermo.inspector.judges import DiscardJudge, Selection, TakenJob, report_errors, report_taken, stoppable
from palermo.jobs.redaction import masked_row

#: The most jobs that one call cancels: the broker keeps so many marks.
MAX_CANCELLED = 100_000

#: What a row may show with other digits than JSON in ASCII has: escapes, tags, exponents, long or small numbers.
_OTHER_DIGITS = re.compile(rb"[\\$\x7f]|[0-9][eE]|\.0000|[0-9.]{19}")


class WaitingFilter(Struct, frozen=True, kw_only=True):
    """The conditions that a waiting job must meet, all at once; a filter without conditions matches every job.

    Raises OptionInvalid for a blank text.
    """

    #: Its wire name; it may hold `*`, `?` and `[…]`.
    job: str | None = None
    #: Text, in any letter case, in its id, its name, its arguments as they are shown, or the error of its last run
    #: (what the setting web_redact hides is not searched).
    text: str | None = None

    def __post_init__(self) -> None:
        check_conditions(self)

    def __str__(self) -> str:
        asked = [f"{name}={value!r}" for name, value in (("job", self.job), ("text", self.text)) if value is not None]
        return " ".join(asked) or "any name"

    def fits_row(self, row: Row) -> bool:
        """Whether the row of a job, with hidden values masked, meets the conditions."""
        named = self.job is None or fits(row["job"] or "", self.job)
        return named and (self.text is None or contains(row, self.text.casefold()))


#: The waiting jobs that are meant: one id, several, or those that a filter matches.
WaitingJobs = str | Iterable[str] | WaitingFilter


def contains(row: Row, wanted: str) -> bool:
    """Whether a job's masked row has this text, in lower case: in its id, name, arguments or error.

    Only what is shown is searched, so that nobody can find hidden values by searching.
    """
    error = row.get("error") or {}
    arguments = json.dumps([row["args"], row["kwargs"]], ensure_ascii=False)
    texts = (row["id"], row["job"], row["preview"], arguments, error.get("class"), error.get("message"))
    return any(wanted in text.casefold() for text in texts if text)


def may_contain(message: Message, wanted: str) -> bool:
    """Whether the row of a waiting job may have this text, in lower case.

    Fast path for a number, such as that of an order: it stands in the body as it is shown, or nowhere. A search that
    looks at 500 jobs takes 60 ms of a core in the web process; 100 if it makes all their rows.
    """
    body = message.body
    if (
        not (wanted.isascii() and wanted.isdigit())
        or message.failure is not None
        or message.content_type != JSON
        or message.content_encoding
        or not body.isascii()
        or body.count(b",") > PREVIEW  # a preview may tell how many values there are
        or wanted.encode() in body
        or _OTHER_DIGITS.search(body)
    ):
        return True
    return any(wanted in printable(text) for text in (message.id, message.job, message.preview or ""))


class _MoveJudge:
    """Moves the jobs that are meant to another queue."""

    def __init__(self, selection: Selection, to: str) -> None:
        self.selection = selection
        self.to = to
        #: The jobs that were taken, in their order; `report_taken` tells of them.
        self.taken: list[TakenJob] = []
        self._refused = 0

    def __call__(self, message: Message) -> SweepDecision:
        if not self.selection.includes(message):
            return Keep()
        if self.selection.is_repeated(message):
            return Remove()  # A second copy, which a kill between publishing and acknowledging left.
        job = TakenJob(message.id, message.job, self.to)
        self.taken.append(job)
        return Move(JobEdit(queue=self.to).applied_to(message), lambda: self._refuse(job))

    def _refuse(self, job: TakenJob) -> None:
        self.taken.remove(job)
        self._refused += 1

    @property
    def refusal(self) -> PalermoError | None:
        """The reason why jobs that are meant stay where they are."""
        if not self._refused:
            return None
        stay = "one unique job stays" if self._refused == 1 else f"{self._refused:,} unique jobs stay"
        refusal = DuplicateJob(f"{stay} in the queue: the key of each is not its own any more.")
        refusal.jobs = self._refused
        return refusal


def check_move(queue: str, to: str) -> None:
    """Raise QueueNameInvalid or UsageError if jobs that wait in a queue cannot be moved to this other one."""
    check_job_queue(queue)
    check_new_queue(to)
    if to == queue:
        raise UsageError(f"the jobs wait in {queue} already: name another queue.")


class JobsInQueue(Context):
    """Many jobs that wait in a queue: count, cancel, move and discard them."""

    def _selection(self, which: WaitingJobs) -> Selection:
        if not isinstance(which, WaitingFilter):
            return Selection(which)

        def matches(message: Message) -> bool:
            if which.text is None:
                return which.job is None or fits(message.job, which.job)
            if not may_contain(message, which.text.casefold()):
                return False
            [row] = self._rows((message,), JobState.PENDING)
            return which.fits_row(masked_row(row, self._hidden))

        return Selection((), matches)

    def discard(
        self,
        queue: str,
        which: WaitingJobs,
        *,
        progress: Progress | None = None,
        on_error: OnError | None = None,
        on_taken: OnTaken | None = None,
        stop: Stopping | None = None,
    ) -> list[TakenJob]:
        """Remove waiting jobs of a queue: one id, several ids, or all that a filter matches (WaitingFilter() for all).

        A job that a worker has taken meanwhile is left to it. For ids that do not wait there, NotFound is raised after
        all other jobs are done, or given to `on_error`. `on_taken` gets the jobs that have gone while the command runs,
        and `stop` can end it early. Raises NotFound for a queue that does not exist.
        """
        judge = DiscardJudge(self._selection(which))
        return self._take(queue, which, judge, progress, on_error, on_taken, stop)

    def move(
        self,
        queue: str,
        which: WaitingJobs,
        to: str,
        *,
        progress: Progress | None = None,
        on_error: OnError | None = None,
        on_taken: OnTaken | None = None,
        stop: Stopping | None = None,
    ) -> list[TakenJob]:
        """Move jobs that wait in a queue to the end of another; the rest is as for `discard`.

        Each job is stored in its new queue before it leaves the old one, so an interruption loses none. Run again, the
        command goes on with those that are left.
        """
        check_move(queue, to)
        judge = _MoveJudge(self._selection(which), to)
        return self._take(queue, which, judge, progress, on_error, on_taken, stop)

    def _take(
        self,
        queue: str,
        which: WaitingJobs,
        judge: DiscardJudge | _MoveJudge,
        progress: Progress | None,
        on_error: OnError | None,
        on_taken: OnTaken | None,
        stop: Stopping | None,
    ) -> list[TakenJob]:
        check_job_queue(queue)
        decide = stoppable(stop, judge)
        tell = report_taken(judge.taken, progress, on_taken)
        if isinstance(judge, _MoveJudge):
            action, place, what = "move", judge.to, f"from {queue}"
        else:
            action, place, what = "discard", queue, ""
        with self._taking(action, which, judge.taken, queue=place, what=what) as errors:
            self._client.run(lambda broker: broker.sweep(queue, decide, progress=tell))
            errors += (
                judge.refusal if isinstance(judge, _MoveJudge) else None,
                judge.selection.missing_error("no job {} waits there any more."),
            )
        report_errors(on_error, *errors)
        return judge.taken

    def cancel_waiting(
        self,
        queue: str,
        which: WaitingJobs,
        *,
        progress: Progress | None = None,
        on_error: OnError | None = None,
        on_taken: OnTaken | None = None,
        stop: Stopping | None = None,
    ) -> list[TakenJob]:
        """Cancel jobs that wait in a queue: each stays there until a worker takes it, and drops it.

        A job that runs already is ended, as by `cancel`. The rest is as for `discard`, but ids that do not wait
        there are cancelled too. Raises UsageError for more than 100,000 jobs, and NotBrowsable where looking would
        harm.
        """
        check_job_queue(queue)
        if isinstance(which, WaitingFilter):
            chosen = self._found(queue, which, progress=progress, stop=stop)
        else:
            ids = [which] if isinstance(which, str) else dict.fromkeys(which)
            chosen = [TakenJob(check_id(id), "", queue) for id in ids]
        if stop is not None and stop():
            return []
        if len(chosen) > MAX_CANCELLED:
            raise UsageError(
                f"{len(chosen):,} jobs are meant, and one call cancels at most {MAX_CANCELLED:,}: discard them instead."
            )
        if chosen:
            by = self._actor.name
            with self._taking("cancel", which, chosen):
                self._ask(lambda broker: cancel(broker, [job.id for job in chosen], by=by), again=True)
            if on_taken is not None:
                on_taken(chosen)
        return chosen

    def count(self, queue: str, filter: WaitingFilter, *, depth: int | None = None) -> int:
        """How many of the first `depth` jobs that wait in a queue a filter matches; of all unless given.

        Raises NotFound, and NotBrowsable where looking would harm.
        """
        check_job_queue(queue)
        return len(self._found(queue, filter, depth=depth))

    def _found(
        self,
        queue: str,
        filter: WaitingFilter,
        *,
        depth: int | None = None,
        progress: Progress | None = None,
        stop: Stopping | None = None,
    ) -> list[TakenJob]:
        """The jobs that a filter matches; only the first `depth` jobs of the queue are looked at."""
        self._ask(lambda broker: broker.browse(queue, limit=0), again=True)
        found: dict[str, TakenJob] = {}
        selection = self._selection(filter)
        left = depth

        def look(message: Message) -> SweepDecision:
            nonlocal left
            if left == 0:
                return Stop()
            if left is not None:
                left -= 1
            if selection.includes(message):
                found[message.id] = TakenJob(message.id, message.job, queue)
            return Keep()

        decide: Callable[[Message], SweepDecision] = stoppable(stop, look)
        self._client.run(lambda broker: broker.sweep(queue, decide, progress=progress, only_look=True), again=True)
        return list(found.values())
