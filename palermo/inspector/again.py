"""The part of the inspector's noun `jobs` that runs an ended job again, and that changes a job before it runs.

`run_again` enqueues a new job from what the journal recorded of the ended one. `edit` changes a job that waits in a
queue, for its time or for its retry.
"""

from typing import Unpack

from msgspec.structs import replace

from palermo.client.actor import OTHER_ARGUMENTS
from palermo.client.handle import Job
from palermo.client.prepare import new_id
from palermo.client.recorded_jobs import CONVERTED, EDITED, HIDDEN, SHORTENED, UNREADABLE, RecordedJob
from palermo.client.status import locate
from palermo.contract import clock
from palermo.contract.recurring_entries import RECURRING, TICK
from palermo.core.job_edit import JobEdit
from palermo.core.message import MAX_SECONDS, PARENT, Message
from palermo.core.topology import check_id
from palermo.errors import ArgumentsInvalid, NotFound, UsageError
from palermo.inspector.changes import Changes, Rewriter, check_options
from palermo.inspector.context import Context
from palermo.inspector.judges import Progress, Selection, TakeJudge, stoppable

#: Why the recorded arguments are not those of the job, for people.
REASONS = {
    SHORTENED: "the journal recorded only the beginning of its arguments, which are longer than the setting"
    " journal_arguments",
    HIDDEN: "the journal recorded its arguments with hidden values, as the setting web_redact says",
    CONVERTED: "the journal recorded its arguments as JSON, though they were serialized in another way",
    UNREADABLE: "the journal recorded only a preview of its arguments, which cannot be read safely",
    EDITED: "an operator changed its arguments after the journal recorded them",
}


#: The states of a job that may be changed.
_EDITABLE = ("pending", "retrying", "scheduled")


class EndedJobs(Context):
    """Jobs that have ended, and changes of jobs before they run."""

    def recorded(self, id: str, *, progress: Progress | None = None) -> RecordedJob | None:
        """The recorded arguments and options of a job; None if the journal has none. Reads the whole journal."""
        from palermo.history import listings

        return listings.recorded_of(self._client, check_id(id), progress=progress)

    def run_again(self, id: str, *, known: RecordedJob | None = None, **changes: Unpack[Changes]) -> Job:
        """Enqueue an ended job again, as a new job with the recorded arguments and options; returns the new job.

        `args` and `kwargs` replace the positional and the named arguments, and `queue`, `priority` and `at` its queue,
        priority and time. `known` is the result of `recorded`, if the caller has it already; else the journal is read.

        Raises NotFound if the journal does not hold the job, ArgumentsInvalid if it does not hold its arguments as they
        were and `args` or `kwargs` is not given, and UsageError if the job has not ended.
        """
        check_options(changes, Changes)
        found = known or self.recorded(id)
        if found is None:
            raise NotFound(
                f"the journal recorded no arguments of job {id}. It records them at the end of a job, if the setting"
                ' journal is "all" where the job runs.'
            )
        if (why := REASONS.get(found.inexact)) and None in (changes.get("args"), changes.get("kwargs")):
            raise ArgumentsInvalid(f"job {id} cannot be run again as it was: {why}. Give its args and kwargs.")
        place = self._ask(lambda broker: locate(broker, id, found.message.queue, failed=False), again=True)
        if place.state:
            raise UsageError(f"job {id} is {place.state}: it has not ended. Wait for its end, or edit it.")
        now = clock.now()
        extra = {name: value for name, value in found.message.extra.items() if name not in (RECURRING, TICK, PARENT)}
        expires = None if found.expires is None else min(MAX_SECONDS - 1, now + found.expires)
        fresh = replace(
            found.message, id=new_id(), extra=extra, created_at=int(now), queued_at=now, run_at=now, expires_at=expires
        )
        if found.inexact:
            # The given arguments are written in the way of the old ones, and signed if those were.
            fresh = replace(fresh, body=b"", content_type=found.content_type)
        # The expiry moves with the instant, and stays as long after it as before.
        again = Rewriter.of(self._client.serializers, changes)(fresh)
        job = self._client.enqueue_message(again if changes.get("at") is not None else replace(again, run_at=None))
        self._record("run again", queue=job.queue, ids=[id, job.id], count=1, what=f"{id} as {job.id}", at=now)
        return job

    def edit(self, id: str, *, waits_in: str = "", **changes: Unpack[Changes]) -> Job:
        """Change a job that waits in a queue, for its time or for its retry; the changes are those of `run_again`.

        The job keeps its id. In a queue it goes to the end. The changed job is stored before the old one is removed: if
        the program is killed in between, the job may run twice. `waits_in` is the queue to search first. Raises
        NotFound if the job isn't found waiting, or has started in the meantime.
        """
        check_options(changes, Changes)
        check_id(id)
        place = self._ask(lambda broker: locate(broker, id, waits_in, failed=False), again=True)
        message = place.message
        if message is None or place.state not in _EDITABLE:
            raise NotFound(
                f"job {id} was not found waiting: {place.state or 'it has ended, or is deep inside a long queue'}."
            )
        change = Rewriter.of(self._client.serializers, changes).edit(message)
        if not change.empty:
            began = clock.now()
            self._change(message, change)
            what = OTHER_ARGUMENTS if change.content is not None else None
            self._record("edit", queue=change.queue, ids=[id], what=what, at=began)
        return Job(id, change.queue or message.queue, message.job, _client=self._client)

    def _change(self, message: Message, change: JobEdit) -> None:
        """Replace the message where it waits. Raises NotFound if it no longer waits."""
        if message.run_at is not None and message.run_at > clock.now():
            dated = change if change.run_at is not None else replace(change, run_at=message.run_at)
            if self._ask(lambda broker: broker.edit_scheduled(message.id, dated)):
                return
            # It came due in the meantime: it may wait in its queue now.
        judge = TakeJudge(Selection(message.id), change.applied_to, queue=f"queue {message.queue}")
        decide = stoppable(lambda: message.id in judge.selection.seen, judge)
        self._ask(lambda broker: broker.sweep(message.queue, decide))
        if judge.refusal is not None:
            raise UsageError(f"{judge.refusal} Nothing was changed.")
        if not judge.taken:
            raise NotFound(f"job {message.id} is no longer waiting: a worker was faster. Nothing was changed.")
