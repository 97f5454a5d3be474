"""The inspector's noun for failed jobs: list, count and group them, requeue them, discard them.

ReplaceArguments gives a requeued job other arguments.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from palermo.client.actor import OTHER_ARGUMENTS
from palermo.client.failed_queues import browse_failed
from palermo.client.failed_queues import trim_failed as trim
from palermo.contract import clock
from palermo.contract.row_types import FailedRow
from palermo.contract.rows import Listing, Row
from palermo.contract.serialization import SIGNED, Serializers, media_type
from palermo.core.arguments import preview, unpack
from palermo.core.job_edit import JobEdit, check_priority
from palermo.core.lifecycle import JobState
from palermo.core.message import Message
from palermo.core.times import Duration, Instant, in_seconds, unix_seconds
from palermo.core.topology import check_new_queue
from palermo.errors import DecodeError, MediaTypeUnknown, PalermoError, SerializationError, SignatureInvalid
from palermo.inspector.context import Context, Progress
from palermo.inspector.failed_filter import FailedFilter
from palermo.inspector.judges import (
    CountJudge,
    DiscardJudge,
    FindJudge,
    GroupJudge,
    PageJudge,
    RequeueJudge,
    Selection,
    TakenJob,
    Which,
    not_found_error,
    report_errors,
    report_taken,
    stoppable,
)
from palermo.jobs import registry

#: Gets an error that would else be raised at the end of a command that did all it could.
OnError = Callable[[PalermoError], None]
#: Gets the jobs that are gone for certain, while a long command runs.
OnTaken = Callable[[Sequence[TakenJob]], None]
#: Asked before each job: once it returns True, a long command ends, and the jobs that it has not reached stay.
Stopping = Callable[[], bool]
#: Every failed job.
ALL = FailedFilter()


class ReplaceArguments(Struct, frozen=True):
    """Writes other arguments into a message, with the serializer that wrote it, and leaves everything else as it was.

    If that one is not safe, or not known here, JSON is used; a signed message is signed again. If the job's code is
    imported here, the arguments must fit it.
    None for `args` or `kwargs` leaves that half as it is.
    """

    serializers: Serializers
    args: Sequence[object] | None
    kwargs: Mapping[str, object] | None

    def __call__(self, message: Message) -> Message:
        """The message with the other arguments: same id, same headers, new preview.

        Raises ArgumentsInvalid, EncodeError, BodyTooLarge, SignatureInvalid if there is no key to
        sign with, and DecodeError if the half that stays cannot be read.
        """
        args, kwargs = self._merged(message)
        definition = registry.find(message.job)
        one: dict[str, Any] = {}
        if definition is not None:
            definition.bind(args, kwargs)
            args, kwargs = definition.written(args, kwargs)
        if message.topic or (definition is not None and definition.one):
            one["one"] = True
        encoded = self.serializers.encode(
            args,
            kwargs,
            job=message.signed_job,
            id=message.signed_id,
            serializer=self._serializer(message),
            compression=self._compression(message),
            sign=media_type(message.content_type) == SIGNED,
            **one,
        )
        return replace(
            message,
            body=encoded.body,
            content_type=encoded.content_type,
            content_encoding=encoded.content_encoding,
            arguments=encoded.arguments,
            preview=preview(args, kwargs),
        )

    def _merged(self, message: Message) -> tuple[Sequence[object], Mapping[str, object]]:
        if self.args is not None and self.kwargs is not None:
            return self.args, self.kwargs
        try:
            # Verified: only what someone with the key wrote may be signed anew below, not what was slipped in.
            there = unpack(
                self.serializers.decode_for_display(message, verify=True), message.arguments, one=bool(message.topic)
            )
        except SignatureInvalid:
            raise
        except SerializationError as error:
            raise DecodeError(
                f"the arguments of job {message.id} ({message.content_type}) cannot be read here, so no half of them"
                " can be kept. Give both the positional and the named ones: --args and --kwargs."
            ) from error
        return (there[0] if self.args is None else self.args, there[1] if self.kwargs is None else self.kwargs)

    def _serializer(self, message: Message) -> str:
        try:
            found = self.serializers.get(self.serializers.written_by(message))
        except SerializationError:
            return "json"
        return found.name if found.safe else "json"

    def _compression(self, message: Message) -> str:
        """The message's compression; none if another client wrote a charset into that property."""
        try:
            return self.serializers.compression(message.content_encoding).name
        except MediaTypeUnknown:
            return ""


class FailedJobs(Context):
    """The failed jobs: list, count and group them, requeue them, discard them."""

    def show(self, id: str) -> FailedRow:
        """One failed job. Raises NotFound."""
        finding = FindJudge(id)
        self._read_failed(finding, ids=(id,))
        if finding.message is None:
            raise not_found_error([id])
        return self._rows((finding.message,), JobState.FAILED)[0]

    def count(self, which: Which = ALL) -> int:
        """Count the failed jobs that are meant; two copies of one id are one job.

        It reads what a requeue or discard would read, also in quorum queues: the count must say what they will do.
        """
        counting = CountJudge(Selection.of(which, self._shown))
        self._sweep_failed(counting, ids=counting.selection.ids)
        return counting.count

    def groups(self, filter: FailedFilter = ALL, *, progress: Progress | None = None) -> list[Row]:
        """Group the failed jobs by kind, the largest group first.

        A row is fingerprint, count, job, error, message, first_seen, last_seen and the id of the newest.
        """
        grouping = GroupJudge(filter, self._shown)
        self._read_failed(grouping, progress)
        return grouping.rows()

    def requeue(
        self,
        which: Which,
        *,
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
        queue: str | None = None,
        priority: int | None = None,
        at: Instant | None = None,
        progress: Progress | None = None,
        on_error: OnError | None = None,
        on_taken: OnTaken | None = None,
        stop: Stopping | None = None,
    ) -> list[TakenJob]:
        """Run failed jobs again: one id, several ids, or all that a filter matches (FailedFilter() for all).

        Each job is published and confirmed before it leaves `failed`, so an interruption loses none. Jobs that fail
        again meanwhile are not looked at. `args` and `kwargs` replace their half of the arguments, `queue` replaces the
        queue that the job came from, `priority` its priority, and with `at` it runs then.

        Ids that are not there, and jobs that cannot be requeued and so stay in `failed` (their
        queue's name is invalid, the new arguments do not fit), do not stop the others. At the
        end NotFound, or the first reason, is raised, or given to `on_error` if there is one.
        `on_taken` gets the jobs that have gone while the command runs, and `stop` can end it early.
        """
        if queue is not None:
            check_new_queue(queue)
        selection = Selection.of(which, self._shown)
        change = JobEdit(priority=check_priority(priority), run_at=None if at is None else unix_seconds(at))
        judge = RequeueJudge(selection, queue=queue, rewrite=self._rewriting(args, kwargs, change))
        what = OTHER_ARGUMENTS if args is not None or kwargs is not None else ""
        with self._taking("requeue", which, judge.taken, queue=queue, what=what) as errors:
            self._sweep_failed(stoppable(stop, judge), report_taken(judge.taken, progress, on_taken), ids=selection.ids)
            errors += (judge.refusal, selection.missing_error())
        report_errors(on_error, *errors)
        return judge.taken

    def discard(
        self,
        which: Which,
        *,
        progress: Progress | None = None,
        on_error: OnError | None = None,
        on_taken: OnTaken | None = None,
        stop: Stopping | None = None,
    ) -> list[TakenJob]:
        """Discard failed jobs: one id, several ids, or all that a filter matches.

        For ids that are not there, NotFound is raised after all other jobs are done, or given to `on_error`.
        """
        judge = DiscardJudge(Selection.of(which, self._shown))
        with self._taking("discard", which, judge.taken) as errors:
            self._sweep_failed(
                stoppable(stop, judge), report_taken(judge.taken, progress, on_taken), ids=judge.selection.ids
            )
            errors.append(judge.selection.missing_error())
        report_errors(on_error, *errors)
        return judge.taken

    def trim(self, *, max_age: Duration | None = None, max_count: int | None = None, now: float | None = None) -> int:
        """Remove failed jobs that are older than `max_age` and, oldest first, those above `max_count`.

        `max_age` is seconds, or a timedelta. Both default to the settings failed_max_age and failed_max_count. Returns
        how many were removed.
        """
        settings = self._client.settings
        age = settings.failed_max_age if max_age is None else in_seconds(max_age)
        count = settings.failed_max_count if max_count is None else max_count
        if age is None and count is None:
            return 0
        at = clock.now() if now is None else now
        return self._ask(lambda broker: trim(broker, max_age=age, max_count=count, now=at))

    def _rewriting(
        self, args: Sequence[object] | None, kwargs: Mapping[str, object] | None, change: JobEdit
    ) -> Callable[[Message], Message] | None:
        if args is None and kwargs is None:
            return None if change.empty else change.applied_to
        replaced = ReplaceArguments(self._client.serializers, args, kwargs)
        return lambda message: change.applied_to(replaced(message))

    def list(
        self,
        *,
        offset: int = 0,
        limit: int = 100,
        newest: bool = False,
        filter: FailedFilter = ALL,
        count: bool = True,
    ) -> Listing[FailedRow]:
        """Failed jobs, the oldest first unless `newest` is set; of two copies of one id only the first.

        `total` counts a job once of which the page has two copies. `queues` counts messages, and so both copies.
        Without a filter only the page is read. With a filter all failed jobs are read, unless `count` is False and
        the oldest are asked for: then the search ends where the page ends, and `total` is None.
        """
        if not filter.everything:
            finding = PageJudge(filter, offset=offset, limit=limit, newest=newest, count=count, shown=self._shown)
            swept = self._read_failed(finding)
            return Listing(self._rows(finding.messages, JobState.FAILED), finding.total, swept.unseen)
        page = self._ask(lambda broker: browse_failed(broker, offset=offset, limit=limit, newest=newest), again=True)
        unique: dict[str, Message] = {}
        for message in page.messages:
            unique.setdefault(message.id, message)
        copies = len(page.messages) - len(unique)
        return Listing(self._rows(tuple(unique.values()), JobState.FAILED), page.total - copies, page.unseen)
