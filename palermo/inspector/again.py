"""The part of the inspector's noun `jobs` that runs an ended job again, and that changes a job before it runs.

`run_again` enqueues a new job from what the journal recorded of the ended one. `edit` changes a job that waits in a
queue, for its time or for its retry.
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from palermo.client.actor import OTHER_ARGUMENTS
from palermo.client.handle import Job
from palermo.client.prepare import new_id
from palermo.client.recorded_jobs import CONVERTED, EDITED, HIDDEN, SHORTENED, UNREADABLE, RecordedJob
from palermo.client.status import locate
from palermo.contract import clock
from palermo.contract.recurring_entries import RECURRING, TICK
from palermo.contract.sweep import Keep, Move, Stop, SweepDecision
from palermo.core.job_edit import JobEdit, check_priority
from palermo.core.message import MAX_SECONDS, PARENT, Message
from palermo.core.times import Instant, unix_seconds
from palermo.core.topology import check_id, check_new_queue
from palermo.errors import ArgumentsInvalid, NotFound, UsageError
from palermo.inspector.context import Context, Progress
from palermo.inspector.failed import ReplaceArguments

#: Why the recorded arguments are not those of the job, for people.
REASONS = {
    SHORTENED: "the journal recorded only the beginning of its arguments, which are longer than the setting"
    " journal_arguments",
    HIDDEN: "the journal recorded its arguments with hidden values, as the setting web_redact says",
    CONVERTED: "the journal recorded its arguments as JSON, though they were serialized in another way",
    UNREADABLE: "the journal recorded only a preview of its arguments, which cannot be read safely",
    EDITED: "somebody changed its arguments after the journal recorded them",
}


#: The states of a job that may be changed.
_EDITABLE = ("pending", "retrying", "scheduled")


class _EditJudge:
    """Replaces the message with this id, and stops behind it."""

    def __init__(self, id: str, change: JobEdit) -> None:
        self.moved = self.refused = False
        self._id = id
        self._change = change

    def __call__(self, message: Message) -> SweepDecision:
        if self.moved:
            return Stop()
        if message.id != self._id:
            return Keep()
        self.moved = True
        return Move(self._change.applied_to(message), self._refuse)

    def _refuse(self) -> None:
        self.refused = True


class EndedJobs(Context):
    """Jobs that have ended, and changes of jobs before they run."""

    def recorded(self, id: str, *, progress: Progress | None = None) -> RecordedJob | None:
        """The recorded arguments and options of a job; None if the journal has none. Reads the journal to its end."""
        from palermo.history import listings

        return listings.recorded_of(self._client, check_id(id), progress=progress)

    def run_again(
        self,
        id: str,
        *,
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
        queue: str | None = None,
        priority: int | None = None,
        at: Instant | None = None,
        known: RecordedJob | None = None,
    ) -> Job:
        """Enqueue a job that is over once more, as a new job with the recorded arguments and options; returns that one.

        `args` and `kwargs` replace their half of the arguments, and `queue`, `priority` and `at` its queue, priority
        and time. `known` is what `recorded` told, if the caller has it already; else the journal is read.

        Raises NotFound if the journal does not hold the job, ArgumentsInvalid if it does not hold its arguments as they
        were and `args` or `kwargs` is not given, and UsageError if the job is not over.
        """
        found = known or self.recorded(id)
        if found is None:
            raise NotFound(
                f"the journal recorded no arguments of job {id}. It records them at the end of a job, if the setting"
                ' journal is "all" where the job runs.'
            )
        if (why := REASONS.get(found.inexact)) and (args is None or kwargs is None):
            raise ArgumentsInvalid(f"job {id} cannot be run again as it was: {why}. Give its args and kwargs.")
        place = self._ask(lambda broker: locate(broker, id, found.message.queue, failed=False), again=True)
        if place.state:
            raise UsageError(f"job {id} is {place.state}, and not over. Wait for its end, or change it where it waits.")
        now = clock.now()
        extra = {name: value for name, value in found.message.extra.items() if name not in (RECURRING, TICK, PARENT)}
        expires = None if found.expires is None else min(MAX_SECONDS - 1, now + found.expires)
        fresh = replace(
            found.message, id=new_id(), extra=extra, created_at=int(now), queued_at=now, run_at=now, expires_at=expires
        )
        if found.inexact:
            # The given arguments are written in the way of the old ones, and signed if those were.
            fresh = replace(fresh, body=b"", content_type=found.content_type)
        # Moved with its instant, the expiry is as long after that as before.
        again = self._edit(fresh, args, kwargs, queue, priority, at).applied_to(fresh)
        job = self._client.enqueue_message(again if at is not None else replace(again, run_at=None))
        self._record("run again", queue=job.queue, ids=[id, job.id], count=1, what=f"{id} as {job.id}", at=now)
        return job

    def edit(
        self,
        id: str,
        *,
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
        queue: str | None = None,
        priority: int | None = None,
        at: Instant | None = None,
        waits_in: str = "",
    ) -> Job:
        """Change a job that waits in a queue, for its time or for its retry; what is not given stays as it is.

        The job keeps its id. In a queue it goes to the end. The changed job is stored before the old one is removed: if
        the program is killed in between, the job may run twice. `waits_in` is the queue in which to look first. Raises
        NotFound if the job is not seen to wait, or was faster.
        """
        check_id(id)
        place = self._ask(lambda broker: locate(broker, id, waits_in, failed=False), again=True)
        message = place.message
        if message is None or place.state not in _EDITABLE:
            raise NotFound(
                f"job {id} is not seen to wait: {place.state or 'it has ended, or waits amid a long queue'}."
            )
        change = self._edit(message, args, kwargs, queue, priority, at)
        if not change.empty:
            began = clock.now()
            self._change(message, change)
            what = OTHER_ARGUMENTS if change.content is not None else None
            self._record("edit", queue=change.queue, ids=[id], what=what, at=began)
        return Job(id, change.queue or message.queue, message.job, _client=self._client)

    def _change(self, message: Message, change: JobEdit) -> None:
        """Replace the message where it waits. Raises NotFound if it is not there any more."""
        if message.run_at is not None and message.run_at > clock.now():
            dated = change if change.run_at is not None else replace(change, run_at=message.run_at)
            if self._ask(lambda broker: broker.edit_scheduled(message.id, dated)):
                return
            # It came due while the form was open: it may wait in its queue now.
        judge = _EditJudge(message.id, change)
        self._ask(lambda broker: broker.sweep(message.queue, judge))
        if not judge.moved:
            raise NotFound(f"job {message.id} does not wait any more: a worker was faster. Nothing was changed.")
        if judge.refused:
            raise UsageError(f"job {message.id} is unique, and its key is not its own any more. Nothing was changed.")

    def _edit(
        self,
        message: Message,
        args: Sequence[object] | None,
        kwargs: Mapping[str, object] | None,
        queue: str | None,
        priority: int | None,
        at: Instant | None,
    ) -> JobEdit:
        """The changes. Raises what is wrong with them."""
        content: Message | None = None
        if args is not None or kwargs is not None:
            content = ReplaceArguments(self._client.serializers, args, kwargs)(message)
        return JobEdit(
            content=content,
            queue=None if queue is None else check_new_queue(queue),
            priority=check_priority(priority),
            run_at=None if at is None else unix_seconds(at),
        )
