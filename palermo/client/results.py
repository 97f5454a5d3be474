"""The status, the end and the result of a job, for clients that ask for them.

Each is one coroutine on the client's own event loop (palermo/client/journal_watch.py). The public functions differ in
how they wait for it: in a thread, or in another loop.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from palermo.client.journal_watch import JournalWatch, OnRecord
from palermo.client.recorder import FLUSH_EVERY
from palermo.client.status import (
    JobStatus,
    State,
    locate,
    status_at_end,
    status_at_location,
    status_at_step,
    status_kept_with_key,
    status_with_key,
)
from palermo.contract import clock
from palermo.contract.broker import Broker
from palermo.contract.finding import CANCELLED, JobLocation
from palermo.contract.rows import as_json
from palermo.contract.serialization import FOR_DISPLAY, Serializers
from palermo.core.journal_records import JournalLevel, Record, RecordKind
from palermo.core.lifecycle import JobState, StoredResult, result_of_record
from palermo.core.times import Duration, in_seconds
from palermo.core.unique_keys import Key
from palermo.core.unique_rules import DEBOUNCE, THROTTLE
from palermo.errors import (
    BrokerUnavailable,
    JobFailed,
    JournalOff,
    MediaTypeRefused,
    NotFound,
    PalermoError,
    ResultNotKept,
    ResultRefused,
    ResultTimeout,
)
from palermo.jobs import registry
from palermo.settings.settings import Settings

T = TypeVar("T")


class JobClient(Protocol):
    """What handles, results and messages need of `palermo.client.Client`, whose class they do not import."""

    @property
    def settings(self) -> Settings:
        """The settings."""

    @property
    def serializers(self) -> Serializers:
        """The serializers of arguments and results."""

    @property
    def unpickled_job(self) -> Callable[..., Any]:
        """Makes the handle of a job that another process pickled; it asks the default client."""

    def watch(self, function: Callable[[JournalWatch], Coroutine[Any, Any, T]]) -> T:
        """See Client."""

    async def watch_async(self, function: Callable[[JournalWatch], Coroutine[Any, Any, T]]) -> T:
        """See Client."""


class AnyJob(Protocol):
    """What the handle of a job knows about it."""

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


#: Looks for a job in one place; None if it is not certain there.
Look = Callable[[], Coroutine[Any, Any, JobStatus | None]]

#: Waits for the end of a job, and returns its record.
WaitForEnd = Callable[[JournalWatch], Coroutine[Any, Any, Record]]

#: Minimum number of seconds between two searches for a job whose success is not recorded.
_LOCATE_EVERY = 1.0

#: Seconds after which a wait locates such a job although the journal counted nothing, doubled from the first to the
#: last: the count may have been read before the search that still saw the job.
_FIRST_LOOK, _LAST_LOOK = 1.0, 30.0

#: Seconds that a job may take on its way to the failed jobs.
_FAILING_TIME = 10.0


def status(client: JobClient, job: AnyJob, *, patience: float | None = None) -> JobStatus:
    """See Job. Reading the journal may take `patience` seconds, or publish_timeout if it is None."""
    return client.watch(lambda watch: find_status(watch, client, job, patience))


async def status_async(client: JobClient, job: AnyJob) -> JobStatus:
    """See Job."""
    return await client.watch_async(lambda watch: find_status(watch, client, job, None))


def result(client: JobClient, job: AnyJob, timeout: Duration | None) -> Any:
    """See Job."""
    return load_result(client, client.watch(_kept_end(client, job, timeout)))


async def result_async(client: JobClient, job: AnyJob, timeout: Duration | None) -> Any:
    """See Job."""
    return load_result(client, await client.watch_async(_kept_end(client, job, timeout)))


def wait(client: JobClient, job: AnyJob, timeout: Duration | None, on_record: OnRecord | None = None) -> JobStatus:
    """See Job; `on_record` gets the journal's records of the job in the meantime, in the client's own thread."""
    return status_at_end(end(client, job, timeout, on_record))


async def wait_async(client: JobClient, job: AnyJob, timeout: Duration | None) -> JobStatus:
    """See Job."""
    return status_at_end(await client.watch_async(_end(client, job, timeout)))


def end(client: JobClient, job: AnyJob, timeout: Duration | None, on_record: OnRecord | None = None) -> Record:
    """Wait until the job has ended; returns the record of its end. Raises as Job.wait."""
    return client.watch(_end(client, job, timeout, on_record))


def ends(
    client: JobClient, jobs: Sequence[AnyJob], timeout: Duration | None, on_record: OnRecord | None = None
) -> list[Record | PalermoError]:
    """`end` for many jobs, in their order; an error about one of them takes the place of its record."""
    waits = [_end(client, job, timeout, on_record) for job in jobs]

    async def ended(watch: JournalWatch) -> list[Record | PalermoError]:
        found: list[Record | PalermoError] = []
        for one in await asyncio.gather(*(wait(watch) for wait in waits), return_exceptions=True):
            if isinstance(one, BaseException) and not isinstance(one, PalermoError):
                raise one
            found.append(one)
        return found

    return client.watch(ended)


def _kept_end(client: JobClient, job: AnyJob, timeout: Duration | None) -> WaitForEnd:
    check_kept(client, job)
    return lambda watch: _within(watch, job, timeout, _journal_end(watch, client, job, only_kept=True))


def _end(client: JobClient, job: AnyJob, timeout: Duration | None, on_record: OnRecord | None = None) -> WaitForEnd:
    check_on(client)
    return lambda watch: _within(watch, job, timeout, _any_end(watch, client, job, on_record))


def check_on(client: JobClient) -> None:
    """Raise JournalOff if the setting journal is off."""
    if client.settings.journal == JournalLevel.OFF:
        raise JournalOff(
            "the setting journal is off, so nothing tells how jobs end or what they return."
            ' Set it to "failures" or "all", for workers and clients alike.'
        )


def check_kept(client: JobClient, job: AnyJob) -> None:
    """Raise JournalOff or ResultNotKept if no result can come."""
    check_on(client)
    if job.keep_result is False:
        raise _not_kept(job.id, "was enqueued without keep_result")


def find_end(client: JobClient, job: AnyJob) -> Record | None:
    """The record of the job's end, if the journal has it by now. Raises JournalOff, BrokerUnavailable."""
    check_on(client)
    patience = client.settings.publish_timeout

    async def look(watch: JournalWatch) -> Record | None:
        try:
            async with asyncio.timeout(patience):
                return await watch.find_end(job.id, job.created_at, _since(job))
        except TimeoutError:
            raise BrokerUnavailable(
                f"the journal was not read within {patience:g} s. {watch.read_error}".strip()
            ) from None

    return client.watch(look)


def load_result(client: JobClient, record: Record) -> Any:
    """The value that a job returned, from the record of its end. Raises as `serialized_result`, and DecodeError."""
    value = serialized_result(record)
    if value is None:
        return None
    definition = registry.find(str(record.get("job")))
    classes = {**client.serializers.classes, **(definition.result_classes if definition is not None else {})}
    loaded = _safe(client, value, record["id"]).loads(value.body, classes)
    models = definition.models if definition is not None else None
    return loaded if models is None else models.read_result(loaded)


def serialized_result(record: Record) -> StoredResult | None:
    """The kept result of a job, still serialized, from the record of its end; None if a hook skipped the job.

    Raises JobFailed, ResultNotKept, ResultRefused.
    """
    id = record["id"]
    if record["kind"] != RecordKind.SUCCEEDED:
        raise _failed(record)
    refused = record.get("refused")
    if refused:
        raise ResultRefused(f"job {id} is done, and {refused}")
    value = result_of_record(record)
    if value is not None or record.get("skipped"):
        return value
    raise _not_kept(id, "is done, and did not keep its result")


def result_as_json(client: JobClient, record: Record) -> Any:
    """The kept result of a job as JSON values, from the record of its end; None for none. Runs no code of the job."""
    value = result_of_record(record)
    return None if value is None else as_json(_safe(client, value, record["id"]).loads(value.body, FOR_DISPLAY))


def _safe(client: JobClient, value: StoredResult, id: str) -> Any:
    serializer = client.serializers.get(value.content_type)
    if not serializer.safe:
        raise MediaTypeRefused(
            f"the result of job {id} is {value.content_type}, which could run anything when it is read."
        )
    return serializer


def _failed(record: Record) -> JobFailed:
    found = status_at_end(record)
    why = f"{found.error}: {found.message}" if found.error else found.message
    text = (
        f"job {found.id} {'' if found.state is State.FAILED else 'was '}{found.state.value}{f': {why}' if why else ''}."
    )
    return JobFailed(text, state=found.state.value, error=found.error, message=found.message)


def _not_kept(id: str, what: str) -> ResultNotKept:
    return ResultNotKept(
        f"job {id} {what}. Declare it with @palermo.job(keep_result=True), or enqueue it by"
        " .options(keep_result=True), to have what it returns kept."
    )


def _since(job: AnyJob) -> float:
    """The instant from which the journal may have the job's end, by this process's clock."""
    return 0.0 if job.created_at is None else job.created_at - 1.0


async def _within(
    watch: JournalWatch, job: AnyJob, timeout: Duration | None, wait: Coroutine[Any, Any, Record]
) -> Record:
    seconds = in_seconds(timeout)
    try:
        async with asyncio.timeout(seconds):
            return await wait
    except TimeoutError:
        why = (
            f"The journal cannot be read: {watch.read_error}"
            if watch.read_error
            else "`palermo status ID` says where it is, `palermo queues` whether a worker serves its queue."
        )
        raise ResultTimeout(f"job {job.id} has not ended within {seconds:g} s. {why}") from None


async def _journal_end(
    watch: JournalWatch, client: JobClient, job: AnyJob, on_record: OnRecord | None = None, *, only_kept: bool
) -> Record:
    """Wait until the journal has the end of the job.

    With `only_kept` it raises ResultNotKept for a job that is seen to keep no result.
    """

    async def check(known: Record | None, cancelled: bool) -> Record | None:
        if known is None and job.keep_result and not cancelled:
            return None
        if known is not None and known["kind"] != RecordKind.FAILED:
            return known
        place = await locate(await watch.session(), job.id, job.queue)
        if known is not None:
            # It failed once; it may have been requeued since.
            return known if not place.alive or _same_run(place, known) else None
        if only_kept and place.message is not None and place.message.keep_result is False:
            raise _not_kept(job.id, "was enqueued without keep_result")
        if place.gone and job.created_at is None:
            raise NotFound(f"job {job.id}: {_not_found_text(client, place)}")
        return _located_end(job, place)

    return await watch.end(job.id, job.created_at, _since(job), check=check, on_record=on_record)


async def _any_end(watch: JournalWatch, client: JobClient, job: AnyJob, on_record: OnRecord | None) -> Record:
    """Wait for the end of any job, also of one whose end is not recorded."""
    told = _journal_end(watch, client, job, on_record, only_kept=False)
    if job.keep_result:
        return await told
    ways = {asyncio.ensure_future(told), asyncio.ensure_future(_disappearance(watch, job))}
    try:
        done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _disappearance(watch: JournalWatch, job: AnyJob) -> Record:
    """Wait until a job is gone whose success may not be recorded.

    When the journal counts successes of jobs of its name in its queue, this asks the broker whether it is still there.
    """
    # `_journal_end` searches the failed jobs as well, at first, and the journal has later failures.
    place = await locate(await watch.session(), job.id, job.queue, failed=False)
    if place.gone and job.created_at is None:
        # Whether the job ever existed is for `_journal_end` to say, which reads the journal.
        await asyncio.get_running_loop().create_future()
    known = place.running or place.message or job
    name, queue = known.job, known.queue
    missed, patience = place.gone, _FIRST_LOOK
    with watch.counting(queue, name) as counted:
        while (found := _located_end(job, place)) is None:
            if not missed:
                counted.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(patience):
                        await counted.wait()
                patience = min(2 * patience, _LAST_LOOK)
            await asyncio.sleep(_LOCATE_EVERY)
            # Once is not enough: a worker may have taken the job and not show it yet.
            place = await locate(await watch.session(), job.id, queue, failed=missed)
            if missed and place.gone:
                break
            missed = place.gone
    # If the job had gone wrong, the journal would have that by now, or soon.
    found = found or await watch.find_end(job.id, job.created_at, _since(job))
    unwritten = {"kind": RecordKind.SUCCEEDED, "at": clock.now(), "id": job.id, "job": name, "queue": queue}
    return found or {**unwritten, "unwritten": True}


def _same_run(place: JobLocation, ended: Record) -> bool:
    """Whether the worker is still settling the run that this record ends: it writes the record first."""
    began = 0.0 if place.running is None else place.running.started_at
    return place.worker == ended.get("writer") and began <= ended["at"]


def _located_end(job: AnyJob, place: JobLocation) -> Record | None:
    """The record that the journal would have of a job that is found failed, or cancelled before a worker drops it."""
    message = place.message
    if message is None or place.state not in (JobState.FAILED, CANCELLED):
        return None
    about = {"at": clock.now(), "id": job.id, "job": message.job, "queue": message.queue}
    if place.state == CANCELLED:
        return {"kind": RecordKind.CANCELLED, **about}
    if (failure := message.failure) is not None:
        about |= {"at": float(failure.failed_at), "error": failure.exception_class, "message": failure.message}
    return {"kind": RecordKind.FAILED, **about, "attempt": message.attempt}


async def find_status(watch: JournalWatch, client: JobClient, job: AnyJob, patience: float | None) -> JobStatus:
    """The status of a job, with what its key says."""
    patience = client.settings.publish_timeout if patience is None else patience
    found = await _Looks(watch, client, job, patience).status()
    if found.state is State.UNKNOWN and client.settings.journal != JournalLevel.OFF:
        await _records_written()
        found = await _Looks(watch, client, job, patience).status()
    if not found.key:
        return found
    try:
        return status_with_key(found, await (await watch.session()).keys.find(found.key))
    except BrokerUnavailable as error:
        reason = f"{found.reason} Nothing is known of its key now: {error}".strip()
        return replace(found, reason=reason)


@dataclass(eq=False)
class _Looks:
    """The looks at one job, in the order in which jobs move. The first that is certain gives the status."""

    watch: JournalWatch
    client: JobClient
    job: AnyJob
    #: Seconds that reading the journal may take.
    patience: float
    #: Where the job was searched last.
    place: JobLocation = field(default_factory=JobLocation)
    #: The end that the journal has of the job, and its last step; whether it was read, and why not.
    end: Record | None = None
    step: Record | None = None
    journal_read: bool = False
    read_error: str = ""

    async def status(self) -> JobStatus:
        # The job may be on its way from one place to the next while the journal is read: it is located again then.
        journal_off = self.client.settings.journal == JournalLevel.OFF
        again: tuple[Look, ...] = () if journal_off else (self._read_journal, self._located)
        looks = (self._ended_lately, self._located, *again, self._ended, self._kept_with_key, self._last_step)
        for look in looks:
            if (found := await look()) is not None:
                return found
        gone = "It failed, and is not among the failed jobs any more." if self.end is not None else ""
        reasons = (gone, _not_found_text(self.client, self.place), self.read_error)
        return self._without_record(State.UNKNOWN, reason=" ".join(filter(None, reasons)))

    async def _ended_lately(self) -> JobStatus | None:
        known = self.watch.recent_end(self.job.id, self.job.created_at)
        return status_at_end(known) if known is not None and known["kind"] == RecordKind.SUCCEEDED else None

    async def _located(self) -> JobStatus | None:
        failed = self.end is None or self.end["kind"] == RecordKind.FAILED
        self.place = await locate(await self.watch.session(), self.job.id, self.job.queue, failed=failed)
        return status_at_location(self.job.id, self.place, self.client.serializers) if self.place.state else None

    async def _read_journal(self) -> None:
        about = self.job.id, self.job.created_at, _since(self.job)
        try:
            async with asyncio.timeout(self.patience):
                self.end = await self.watch.find_end(*about)
                if self.end is None and self.place.unseen:
                    self.step = await self.watch.last_step(*about)
            self.journal_read = True
        except TimeoutError:
            self.read_error = f"The journal was not read in time. {self.watch.read_error}".strip()

    async def _ended(self) -> JobStatus | None:
        """Its end, unless it failed and is no longer among the failed jobs: then a user took it from there."""
        if self.end is None:
            return None
        # A failure is recorded before the job is in its queue of failed jobs.
        fresh = clock.now() - self.end["at"] < _FAILING_TIME
        certain = self.end["kind"] != RecordKind.FAILED or self.place.unseen or fresh
        return status_at_end(self.end) if certain else None

    async def _kept_with_key(self) -> JobStatus | None:
        key = None if self.end is not None else await _key_about(await self.watch.session(), self.job.id)
        if key is None:
            return None
        done = self.journal_read and _tells_of_success(key)
        return status_kept_with_key(self.job.id, key) or (
            self._without_record(State.DONE, key=key.name, reason=_KEY_CLOSED) if done else None
        )

    async def _last_step(self) -> JobStatus | None:
        return status_at_step(self.step, self.place) if self.step is not None and self.place.unseen else None

    def _without_record(self, state: State, **more: Any) -> JobStatus:
        job = self.job
        return JobStatus(state=state, id=job.id, job=job.job, queue=job.queue, **more)


async def _records_written() -> None:
    """Wait for the records of a job that has just begun or ended: its worker writes several together."""
    await asyncio.sleep(2 * FLUSH_EVERY)


async def _key_about(broker: Broker, id: str) -> Key | None:
    """The key with which this job is kept, or which is closed because this job had it, if any."""
    for key in (await broker.keys.page(id, offset=0, limit=sys.maxsize)).keys:
        kept, closed = key.next, key.closed
        if (kept is not None and kept.message.id == id) or (closed is not None and closed.id == id):
            return key
    return None


def _tells_of_success(key: Key) -> bool:
    """Whether the key is closed by `dedupe`, so that its job is done: a job that goes wrong frees its key."""
    return key.closed is not None and not key.name.startswith((f"{THROTTLE}:", f"{DEBOUNCE}:"))


#: How it is known that a job is done of which the journal does not tell.
_KEY_CLOSED = "no second one is enqueued for a while after its end, as dedupe says; the journal tells of no failure"

#: Why the journal does not have a job, by its level.
_SILENCE = {
    JournalLevel.OFF: "The setting journal is off, so nothing tells of jobs that have ended.",
    JournalLevel.FAILURES: "It may have succeeded: at the journal's level, failures, that is known only of jobs that"
    " keep their result.",
    JournalLevel.ALL: "The journal has no record of it either: check the id. Else the record was too old to be kept, or"
    " its worker has another journal level or was killed before it wrote the record.",
}


def _not_found_text(client: JobClient, place: JobLocation) -> str:
    where = "it does not wait in a queue or for its time, does not run, and is not among the failed jobs"
    if place.unseen:
        where += f", as far as could be looked; not looked at: {'; '.join(place.unseen)}"
    return f"{where}. {_SILENCE[JournalLevel(client.settings.journal)]}"
