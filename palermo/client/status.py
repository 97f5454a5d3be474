"""The status of a job: its state in one word, and other known details.

`find_status` searches for the job in every place. The `status_…` functions build a status from the result of a search,
and take the job's id only if that result doesn't contain it.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from palermo.client.journal_watch import JournalWatch, Question
from palermo.client.recorder import FLUSH_EVERY
from palermo.contract import clock
from palermo.contract.broker import Broker, UniqueKeys
from palermo.contract.finding import CANCELLED, SCHEDULED, JobLocation
from palermo.contract.rows import Row, as_json, iso_instant, running_row
from palermo.contract.serialization import Serializers
from palermo.contract.unique_jobs import UniqueJob
from palermo.core.journal_records import JournalLevel, Record, RecordKind
from palermo.core.lifecycle import JobState, result_of_record
from palermo.core.message import parent_in
from palermo.core.unique_keys import Key, key_in
from palermo.core.unique_rules import DEBOUNCE, THROTTLE
from palermo.core.workflow import workflows_above
from palermo.core.workflow_rules import Phase
from palermo.errors import BrokerUnavailable
from palermo.settings.settings import Settings

T = TypeVar("T")


class JobClient(Protocol):
    """The part of `palermo.client.Client` used here and by handles, without importing the class."""

    settings: Settings
    serializers: Serializers

    def unpickled_job(self, fields: dict[str, Any]) -> Any:
        """See Client."""

    def unique_job(self, name: str) -> UniqueJob | None:
        """See Client."""

    def watch(self, question: Question[T]) -> T:
        """See Client."""

    async def watch_async(self, question: Question[T]) -> T:
        """See Client."""


class AnyJob(Protocol):
    """The fields of a job's handle that a search needs."""

    @property
    def id(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def job(self) -> str: ...
    @property
    def created_at(self) -> int | None: ...
    @property
    def keep_result(self) -> bool | None: ...


async def locate(broker: Broker, id: str, queue: str = "", *, failed: bool = True) -> JobLocation:
    """Find the job with this id. `queue` is the queue where it would wait, or "".

    Without `failed`, failed jobs are `gone`. A job that isn't found is searched for again, in case it moved during the
    search. For a moment after a worker is killed, its job may not be anywhere, so callers that act on `gone` must
    search again a second later. Raises BrokerUnavailable, BrokerRefused.
    """
    for _ in range(2):
        found = await broker.find((id,), queue=queue, failed=failed)
        if found.jobs:
            return found.jobs[0]
    return JobLocation(unseen=found.unseen)


#: The state of an unknown job; `reason` says why it is unknown.
UNKNOWN = "unknown"


class State(StrEnum):
    """The states of the job lifecycle (docs/reference/lifecycle.md), and four more."""

    PENDING = JobState.PENDING
    #: Pending and due later, so that a free worker wouldn't run it now.
    SCHEDULED = SCHEDULED
    WORKING = JobState.WORKING
    RETRYING = JobState.RETRYING
    FAILED = JobState.FAILED
    DONE = JobState.DONE
    DISCARDED = JobState.DISCARDED
    #: Cancelled by a user: it was discarded, or stays in its queue until a worker drops it. It won't run.
    CANCELLED = CANCELLED
    #: In an outbox table of the program's database, not yet on the broker (palermo.contrib.outbox).
    OUTBOX = "outbox"
    #: The job is unknown.
    UNKNOWN = UNKNOWN


#: The state for each kind of end record.
ENDED: Mapping[str, State] = {
    RecordKind.SUCCEEDED: State.DONE,
    RecordKind.FAILED: State.FAILED,
    RecordKind.DISCARDED: State.DISCARDED,
    RecordKind.CANCELLED: State.CANCELLED,
}


#: The kinds of records after which a job is waiting.
WAITING = (
    *(RecordKind.ENQUEUED, RecordKind.FIRED, RecordKind.LIMITED),
    *(RecordKind.RETRIED, RecordKind.SNOOZED, RecordKind.RELEASED),
)

#: Reason shown for a running job whose worker does not answer.
_SILENT = "its worker, which ran it when last seen, does not answer"

#: Reason shown for a job without a kept result that is assumed to be done.
_UNWRITTEN = "it is in no queue and has not failed; its end was not recorded"


#: The fields that are in Unix seconds.
INSTANTS = ("started_at", "run_at", "ended_at", "closed_until")


@dataclass(frozen=True, kw_only=True, eq=False)
class JobStatus(str):
    """The status of a job: a string with the state, and attributes for all other known details.

    For example `job.status() == "done"`, and `job.status().progress`.
    """

    state: State
    id: str
    #: Its wire name; "" if unknown.
    job: str = ""
    #: Its queue; "" if unknown.
    queue: str = ""
    #: The number of the run, starting at 1.
    attempt: int | None = None
    #: The worker that runs it, or the slot where it failed.
    worker: str | None = None
    #: Start of the run, in Unix seconds.
    started_at: float | None = None
    #: When the job is due, in Unix seconds.
    run_at: float | None = None
    #: When the job ended, in Unix seconds.
    ended_at: float | None = None
    #: Duration of the last run in seconds.
    took: float | None = None
    #: The reported progress, from 0 to 1.
    progress: float | None = None
    #: The text reported with the progress.
    text: str = ""
    #: The arguments; None if they are unknown or can't be shown.
    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None
    #: The arguments as a short text.
    preview: str | None = None
    #: The class of the exception, if it failed.
    error: str = ""
    #: The text of the exception, or why the job was discarded.
    message: str = ""
    #: Whether its result is kept; None before the job is done, or if unknown.
    result_kept: bool | None = None
    #: The key of a unique, throttled or debounced job; "" if it has none, or if unknown.
    key: str = ""
    #: The id of the job that holds this key now or gets it next, or "".
    next_id: str = ""
    #: Unix seconds until which the key stays closed, so that further enqueues are refused or deferred.
    closed_until: float | None = None
    #: The id of the job that enqueued it; "" if there is none, or if unknown.
    parent: str = ""
    #: Why the status is unknown, or where it was found.
    reason: str = ""

    def __new__(cls, *, state: State, **_: Any) -> "JobStatus":
        return super().__new__(cls, state.value)

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]:
        return (), {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def over(self) -> bool:
        """Whether the job has ended. Only an operator can make it run again."""
        return self.state in ENDED.values()

    def row(self) -> Row:
        """Return the row for listings and `--json`."""
        found = {each.name: as_json(getattr(self, each.name)) for each in fields(self)}
        return found | {name: iso_instant(getattr(self, name)) for name in INSTANTS}


def status_at_location(place: JobLocation, id: str, serializers: Serializers) -> JobStatus:
    state = State(place.state)
    if place.running is not None:
        running = place.running
        shown = running_row(running, serializers)
        return JobStatus(
            args=shown["args"],
            kwargs=shown["kwargs"],
            preview=shown["preview"],
            state=state,
            id=id,
            job=running.job,
            queue=running.queue,
            worker=place.worker,
            started_at=running.started_at,
            progress=running.progress,
            text=running.text,
            key=running.key,
            parent=running.parent,
            reason=_SILENT if place.silent else "",
        )
    message = place.message
    assert message is not None
    failure = message.failure
    return JobStatus(
        state=state,
        id=id,
        job=message.job,
        queue=message.queue,
        attempt=message.attempt,
        worker=place.worker,
        run_at=message.run_at if state in (State.SCHEDULED, State.RETRYING) else None,
        ended_at=float(failure.failed_at) if failure and failure.failed_at and state is State.FAILED else None,
        error="" if failure is None else failure.exception_class,
        message="" if failure is None else failure.message,
        key=key_in(message.extra),
        parent=message.parent,
    )


def status_at_end(record: Record) -> JobStatus:
    state = ENDED[record["kind"]]
    slot, writer, headers = record.get("slot"), record.get("writer"), record.get("headers")
    headers = headers if isinstance(headers, dict) else {}
    return JobStatus(
        state=state,
        id=record["id"],
        job=_text(record, "job"),
        queue=_text(record, "queue"),
        attempt=record.get("attempt"),
        worker=_text(record, "worker") or (f"{writer}/worker-{slot}" if writer and slot else None),
        ended_at=record["at"],
        took=record.get("took"),
        error=_text(record, "error"),
        message=_text(record, "message") or _text(record, "reason"),
        result_kept=result_of_record(record) is not None if state is State.DONE else None,
        key=key_in(headers),
        parent=parent_in(headers),
        reason=_UNWRITTEN if record.get("unwritten") else "",
    )


def status_by_last_record(record: Record, place: JobLocation) -> JobStatus | None:
    """Return the status of a job that wasn't found; None unless its last record means that it is waiting.

    `place` lists the places that were not searched; the job may have been purged there.
    """
    run_at, again = record.get("run_at"), record["kind"] == RecordKind.RETRIED
    if record["kind"] not in WAITING:
        return None
    due = isinstance(run_at, int | float) and run_at > clock.now()
    return JobStatus(
        state=State.RETRYING if again else State.SCHEDULED if due else State.PENDING,
        id=record["id"],
        job=_text(record, "job"),
        queue=_text(record, "queue"),
        attempt=record.get("attempt"),
        run_at=float(run_at) if due and run_at is not None else None,
        error=_text(record, "error"),
        message=_text(record, "message"),
        parent=_text(record, "parent"),
        reason=f"according to the journal; not searched: {'; '.join(place.unseen)}",
    )


def status_kept_with_key(key: Key, id: str) -> JobStatus | None:
    """Return the status of a job that is stored with its key until a certain time or until another job ends."""
    message = None if key.next is None else key.next.message
    if message is None or message.id != id:
        return None
    due = key.due if key.holder is None else None
    waits = f"until job {key.holder.id} has ended" if key.holder is not None else "until then"
    return JobStatus(
        state=State.PENDING if due is None else State.SCHEDULED,
        id=id,
        job=message.job,
        queue=message.queue,
        attempt=message.attempt,
        run_at=due,
        key=key.name,
        parent=message.parent,
        reason=f"its key holds it back {waits}",
    )


def _text(record: Record, name: str) -> str:
    found = record.get(name)
    return found if isinstance(found, str) else ""


#: Seconds within which a failed job reaches its failed queue.
_FAILING_TIME = 10.0

#: Reason shown for a done job without an end in the journal.
_KEY_CLOSED = "it has ended, since dedupe blocks its key, and the journal has no failure of it"

#: Why the journal doesn't contain a job, by journal level.
_SILENCE = {
    JournalLevel.OFF: 'The "journal" setting is "off", so jobs that have ended are not recorded.',
    JournalLevel.FAILURES: "It may have succeeded: at the journal level failures, successful jobs are recorded"
    " only if their result is kept, or if they failed before.",
    JournalLevel.ALL: "The journal has no record of it either. Check the id. Its record may have"
    " expired, or its worker has another journal level or was killed before it wrote the record.",
}


def find_status(client: JobClient, job: AnyJob, patience: float | None = None) -> Question[JobStatus]:
    """Find the status of a job, including its key.

    Reads the journal for at most `patience` seconds (default: publish_timeout).
    """

    async def find(watch: JournalWatch) -> JobStatus:
        seconds = client.settings.publish_timeout if patience is None else patience
        search = _Search(watch=watch, client=client, job=job, patience=seconds)
        found = await search.status()
        if found.state is State.UNKNOWN and search.journal_read and not search.key_error:
            await _wait_for_records()
            found = await replace(search, end=None, last_record=None).status()
        return found

    return find


async def _wait_for_records() -> None:
    """Wait a moment, because workers write the records of jobs that have just started or ended in batches."""
    await asyncio.sleep(2 * FLUSH_EVERY)


@dataclass(eq=False, kw_only=True)
class _Search:
    """Searches for one job in every place, in the order in which jobs move, until a result is certain."""

    watch: JournalWatch
    client: JobClient
    job: AnyJob
    #: Seconds left for reading the journal.
    patience: float
    #: Where the job was last found.
    place: JobLocation = field(default_factory=JobLocation)
    #: The job's end and last record in the journal, whether the journal was read, and why not.
    end: Record | None = None
    last_record: Record | None = None
    journal_read: bool = False
    read_error: str = ""
    #: Why the keys couldn't be read.
    key_error: str = ""

    async def status(self) -> JobStatus:
        for look in (
            self._ended_lately,
            self._located,
            self._ended,
            self._kept_with_key,
            self._waiting,
            self._step_of_workflow,
        ):
            if (found := await look()) is not None:
                return await self._with_key(found)
        why = (
            not_found_text(self.client, self.place)
            if self.end is None
            else "It failed, but is no longer among the failed jobs."
        )
        reasons = (why, self.read_error, self.key_error)
        return self._without_record(State.UNKNOWN, reason=" ".join(filter(None, reasons)))

    async def _ended_lately(self) -> JobStatus | None:
        known = self.watch.recent_end(self.job.id, self.job.created_at)
        return status_at_end(known) if known is not None and known["kind"] == RecordKind.SUCCEEDED else None

    async def _located(self) -> JobStatus | None:
        """Return the status by location. If the job isn't found, search again after reading the journal, because it may
        have moved.
        """
        found = await self._locate()
        if found is None and self.client.settings.journal != JournalLevel.OFF:
            await self._read_journal()
            found = await self._locate()
        return found

    async def _locate(self) -> JobStatus | None:
        failed = self.end is None or self.end["kind"] == RecordKind.FAILED
        self.place = await locate(await self.watch.session(), self.job.id, self.job.queue, failed=failed)
        return status_at_location(self.place, self.job.id, self.client.serializers) if self.place.state else None

    async def _read_journal(self) -> None:
        about = self.job.id, self.job.created_at, since(self.job)
        loop = asyncio.get_running_loop()
        until = loop.time() + self.patience
        try:
            async with asyncio.timeout_at(until):
                self.end = await self.watch.find_end(*about)
                if self.end is None and self.place.unseen:
                    self.last_record = await self.watch.last_record(*about)
            self.journal_read, self.patience = True, until - loop.time()
        except TimeoutError:
            self.read_error = f"The journal was not read in time. {self.watch.read_error}".strip()

    async def _ended(self) -> JobStatus | None:
        """Return the status at its end, unless it failed and an operator has removed it from the failed queue."""
        if self.end is None:
            return None
        # A failure is recorded before the job reaches its failed queue. Failed workflows never do, nor do steps whose
        # own steps have failed.
        fresh = clock.now() - self.end["at"] < _FAILING_TIME
        of_workflow = "workflow" in self.end or "step_of" in self.end
        certain = self.end["kind"] != RecordKind.FAILED or of_workflow or self.place.unseen or fresh
        return status_at_end(self.end) if certain else None

    async def _kept_with_key(self) -> JobStatus | None:
        id = self.job.id
        key = None if self.end is not None else await self._ask_keys(lambda keys: _key_about(keys, id))
        if key is None:
            return None
        done = self.journal_read and _implies_success(key)
        return status_kept_with_key(key, id) or (
            self._without_record(State.DONE, key=key.name, reason=_KEY_CLOSED) if done else None
        )

    async def _waiting(self) -> JobStatus | None:
        """Return the status of a job that is waiting according to the journal, in a place that was not searched."""
        if self.last_record is None or not self.place.unseen:
            return None
        return status_by_last_record(self.last_record, self.place)

    async def _step_of_workflow(self) -> JobStatus | None:
        return await find_step(await self.watch.session(), self.job.id)

    async def _with_key(self, found: JobStatus) -> JobStatus:
        if found.key and (key := await self._ask_keys(lambda keys: keys.find(found.key))) is not None:
            found = replace(found, key=key.name, next_id=key.job_after(found.id), closed_until=key.closed_until)
        return replace(found, reason=f"{found.reason} {self.key_error}".strip()) if self.key_error else found

    async def _ask_keys(self, question: Callable[[UniqueKeys], Awaitable[T | None]]) -> T | None:
        """Return the answer; or None, with `key_error` set, if keys can't be read, for example because the leader is
        silent.
        """
        try:
            return await question((await self.watch.session()).keys)
        except BrokerUnavailable as error:
            self.key_error = f"Its key cannot be read: {error}"
            return None

    def _without_record(self, state: State, **more: Any) -> JobStatus:
        job = self.job
        return JobStatus(state=state, id=job.id, job=job.job, queue=job.queue, **more)


#: The states of a step by its phase.
_STEP_STATES = {
    Phase.WAITING: State.PENDING,
    Phase.PENDING: State.PENDING,
    Phase.EXPANDED: State.WORKING,
    Phase.DONE: State.DONE,
    Phase.FAILED: State.FAILED,
    Phase.DISCARDED: State.DISCARDED,
    Phase.CANCELLED: State.CANCELLED,
    Phase.SKIPPED: State.DISCARDED,
}


async def find_step(broker: Broker, id: str) -> JobStatus | None:
    """Return the status of a workflow's step that has no job: a map, or a step that waits for others or for a signal,
    or never started. None for any other id, and once the workflow is no longer stored.
    """
    for workflow, path in workflows_above(id):
        with suppress(BrokerUnavailable):
            info = await broker.workflows.find(workflow)
            if info is not None and (step := info.steps.get(path)) is not None:
                what = "waits for other steps" if step.state == Phase.WAITING else f"is {step.state}"
                why = f"a step of workflow {workflow} that {what}. `palermo workflows show {workflow}` shows why."
                state = _STEP_STATES[Phase(step.state)]
                return JobStatus(state=state, id=id, job=step.job, queue=step.queue, parent=workflow, reason=why)
    return None


async def _key_about(keys: UniqueKeys, id: str) -> Key | None:
    """Return the key that stores this job or that it has closed, if any."""
    for key in (await keys.page(id, offset=0, limit=sys.maxsize)).keys:
        kept, closed = key.next, key.closed
        if (kept is not None and kept.message.id == id) or (closed is not None and closed.id == id):
            return key
    return None


def _implies_success(key: Key) -> bool:
    """Whether the key is held by `dedupe`, which implies that the job is done because failed jobs free their keys."""
    return key.closed is not None and not key.name.startswith((f"{THROTTLE}:", f"{DEBOUNCE}:"))


def since(job: AnyJob) -> float:
    """Return the earliest local time at which the journal may contain the job's end."""
    return 0.0 if job.created_at is None else job.created_at - 1.0


def not_found_text(client: JobClient, place: JobLocation) -> str:
    """The places where a job was not found, and why the journal may not have it."""
    where = "it is not waiting, scheduled, running or failed"
    if place.unseen:
        where += f", though not everything was searched (not {'; '.join(place.unseen)})"
    return f"{where}. {_SILENCE[JournalLevel(client.settings.journal)]}"
