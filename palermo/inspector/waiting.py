"""The part of the inspector's noun `jobs` that counts, cancels, moves and discards many waiting jobs of a queue.

WaitingFilter chooses the jobs.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterable
from typing import Unpack

from msgspec import Struct

from palermo.contract import clock
from palermo.contract.rows import Row
from palermo.core.arguments import PREVIEW
from palermo.core.conditions import check_conditions
from palermo.core.failure import printable
from palermo.core.job_edit import JobEdit
from palermo.core.lifecycle import JobState
from palermo.core.message import JSON, Message
from palermo.core.text import fits
from palermo.core.topology import check_id, check_job_queue, check_new_queue
from palermo.errors import UsageError
from palermo.inspector.changes import check_options
from palermo.inspector.context import Context
from palermo.inspector.control import cancel
from palermo.inspector.judges import Judge, Progress, Selection, TakeJudge, TakenJob, Watching, reading, stoppable
from palermo.jobs.redaction import masked_row

#: The most jobs that one call cancels: the broker keeps so many marks.
MAX_CANCELLED = 100_000

#: What a row may show with other digits than JSON in ASCII has: escapes, tags, exponents, long or small numbers.
_OTHER_DIGITS = re.compile(rb"[\\$\x7f]|[0-9][eE]|\.0000|[0-9.]{19}")


class WaitingFilter(Struct, frozen=True, kw_only=True):
    """The conditions that a waiting job must meet, all at once; a filter without conditions matches every job.

    Raises OptionInvalid for a blank text.
    """

    #: Its wire name, matched as `palermo.core.text.fits` says.
    job: str | None = None
    #: Text, in any letter case, at the beginning of its id, or in its name, its arguments as they are shown, or the
    #: error of its last run (what the setting web_redact hides is not searched).
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
    """Whether a job's masked row has this text, in lower case, at the beginning of its id or anywhere in what is shown.

    Only what is shown is searched, so that nobody can find hidden values by searching.
    """
    error = row.get("error") or {}
    arguments = json.dumps([row["args"], row["kwargs"]], ensure_ascii=False)
    texts = (row["job"], row["preview"], arguments, error.get("class"), error.get("message"))
    return row["id"].casefold().startswith(wanted) or any(wanted in text.casefold() for text in texts if text)


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


def check_move(queue: str, to: str) -> None:
    """Raise QueueNameInvalid or UsageError if jobs that wait in a queue cannot be moved to this other one."""
    check_job_queue(queue)
    check_new_queue(to)
    if to == queue:
        raise UsageError(f"the jobs are already in queue {queue}: name another queue.")


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

    def discard(self, queue: str, which: WaitingJobs, **watching: Unpack[Watching]) -> list[TakenJob]:
        """Remove waiting jobs of a queue: one id, several ids, or all that a filter matches (WaitingFilter() for all).

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
        if isinstance(which, WaitingFilter):
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
        self._record("cancel", ids=ids, what=str(which) if isinstance(which, WaitingFilter) else None, at=began)
        if (on_taken := watching.get("on_taken")) is not None:
            on_taken(chosen)
        return chosen

    def count(self, queue: str, filter: WaitingFilter, *, depth: int | None = None) -> int:
        """How many of the first `depth` jobs that wait in a queue a filter matches; of all unless given.

        Raises NotFound, and NotBrowsable where looking would harm.
        """
        check_job_queue(queue)
        seen = itertools.count()
        return len(self._found(queue, filter, stop=lambda: next(seen) == depth))

    def _found(
        self,
        queue: str,
        filter: WaitingFilter,
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
